"""The time, the memory and the error of decoding with the VAE engine and with diffusers.

    python benchmarks/vae_decode.py [--quick] [--model NAME|DIR] [--kinds KINDS] [--cases NAMES] [--cap-gb GB]

The cases are those that owners of Radeons have tried: one picture, a few to 33 frames of 320x320 pixels, 33
frames of 480x720, and sizes that grow until the memory is full. Each is decoded by diffusers in one pass in
fp32, which is the reference; by diffusers with tiling; and by the engine: with its own plan, with this
machine's profile, and with each chunk, tile size and precision. Peaks count live tensors without the weights;
on a GPU, the memory that the allocator holds for them. The latents are those of a moving picture, encoded
with the same VAE. HunyuanVideo's weights are those of the bundled model or of --model. Wan's are random, so
its errors show only whether results are bit-identical.

It writes vae_decode.json and vae_decode.svg, anew after each measurement, so that Ctrl-C loses nothing. The
targets are wishes of owners of a gfx1151 for the VAE of WAN 2.2 i2v at 320x320 pixels. Each is listed with
the time measured here for the same size and network, on whatever device this is; other sizes and networks
have no target.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import torch
from diffusers.utils import logging as diffusers_logging

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # A file that is run as a program finds only the modules of its own folder.

from benchmarks.rows import Rows  # noqa: E402
from diffusers_helper.bench.vae_cases import (  # noqa: E402
    CASES,
    QUICK,
    DecodeRow,
    benches,
    db_text,
    own_vae,
    wan_vae,
)
from diffusers_helper.files import write_atomic  # noqa: E402
from diffusers_helper.job.plans import machine_of  # noqa: E402
from diffusers_helper.machine.sysfs import host_memory  # noqa: E402
from diffusers_helper.memory.device import Device, open_device  # noqa: E402
from diffusers_helper.planning.profiles import profile_for  # noqa: E402
from diffusers_helper.units import gb_bytes, gb_text  # noqa: E402

TARGET_PEAK_BYTES, TARGET_FAILURES = 50 * 1024**3, 0.01


def targets(rows: list[DecodeRow]) -> list[dict[str, Any]]:
    """Return each target with its measured figure; None if that size and network were not measured."""
    found: list[dict[str, Any]] = []
    for case in (case for case in CASES if case.target):
        same = [row for row in rows if row.case == case.title and row.target_seconds]
        best = min(
            (row.seconds for row in same if row.seconds and row.way.startswith("engine")), default=None
        )
        found.append({"name": f"seconds for {case.title}, WAN 2.2", "target": case.target, "measured": best})
    peak = max((row.peak_bytes for row in rows if row.peak_bytes is not None), default=None)
    return [
        *found,
        {"name": "highest peak in bytes", "target": TARGET_PEAK_BYTES, "measured": peak},
        {"name": "share of failures", "target": TARGET_FAILURES, "measured": share_of_failures(rows)},
    ]


def share_of_failures(rows: list[DecodeRow]) -> float:
    """Return the share of rows that failed."""
    return sum(bool(row.error) for row in rows) / max(1, len(rows))


def target_line(target: dict[str, Any]) -> str:
    """Return a target and its measured figure as a sentence."""

    def figure(value: float) -> str:
        return f"{gb_text(value)} GB" if target["name"].endswith("bytes") else f"{value:g}"

    measured = target["measured"]
    reported = "no target for what was decoded" if measured is None else f"measured {figure(measured)}"
    return f"Target: {target['name'].removesuffix(' in bytes')} below {figure(target['target'])}; {reported}."


def chart(rows: list[DecodeRow]) -> str:
    """Return an SVG drawing with the seconds as bars, and the peak and the PSNR as text."""
    values = (value for row in rows for value in (row.seconds, row.target_seconds) if value)
    most = max(values, default=1.0)
    lines: list[str] = []
    y, last = 10, ""
    for row in rows:
        title = f"{row.kind}, {row.case}"
        if title != last:
            y, last = y + 34, title
            wish = f" (wish for gfx1151: {row.target_seconds:g} s)" if row.target_seconds else ""
            lines.append(f'<text x="10" y="{y - 6}" font-weight="bold">{escape(title + wish)}</text>')
        reported = row.error or f"{row.seconds:.2f} s, {gb_text(row.peak_bytes or 0)} GB, {db_text(row)}"
        length = 300 * (row.seconds or 0) / most
        lines.append(f'<text x="10" y="{y + 12}">{escape(row.way)}</text>')
        lines.append(f'<rect x="170" y="{y + 2}" width="{length:.1f}" height="12" fill="#c2410c"/>')
        lines.append(f'<text x="{178 + length:.1f}" y="{y + 12}">{escape(reported)}</text>')
        y += 18
    size = f'width="860" height="{y + 10}" viewBox="0 0 860 {y + 10}"'
    style = 'font-family="sans-serif" font-size="11" fill="#222"'
    background = '<rect width="100%" height="100%" fill="white"/>'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>{background}{"".join(lines)}</svg>\n'


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="run two small cases only")
    parser.add_argument(
        "--model", default="demo", metavar="NAME|DIR", help="model whose VAE decodes (default: demo)"
    )
    parser.add_argument("--kinds", default="hunyuan,wan", help="hunyuan, wan or both (default)")
    parser.add_argument(
        "--cap-gb", type=float, metavar="GB", help="most memory to use (default: what is free)"
    )
    parser.add_argument(
        "--cases", metavar="NAMES", help="cases to run: some of one frame, short, medium, large, stress"
    )
    parser.add_argument("--out", type=Path, default=Path(), metavar="DIR", help="folder for the two files")
    return parser.parse_args()


def facts_of(device: Device, rows: list[DecodeRow]) -> dict[str, Any]:
    """Return what the table has besides the rows."""
    return {
        "torch": torch.__version__, "machine": platform.processor() or platform.machine(),
        "device": str(device.torch_device), "error_rate": share_of_failures(rows), "targets": targets(rows),
    }  # fmt: skip


def main() -> int:
    """Print a line for each row, and write the table and the chart; return the exit code."""
    arguments = parse()
    diffusers_logging.set_verbosity_error()
    device = open_device()
    if arguments.cap_gb or not device.has_gpu:
        device.limit(gb_bytes(arguments.cap_gb) if arguments.cap_gb else host_memory().available)
    cases, rows = QUICK if arguments.quick else CASES, list[DecodeRow]()
    if arguments.cases:
        names = [name.strip() for name in arguments.cases.split(",")]
        cases = tuple(case for case in cases if case.name in names)
    write_chart = partial(write_atomic, arguments.out / "vae_decode.svg")
    with Rows(__file__, arguments.out / "vae_decode.json", lambda: facts_of(device, rows)) as kept:
        makers = {"hunyuan": partial(own_vae, arguments.model), "wan": partial(wan_vae, device)}
        vaes = {kind: makers[kind] for kind in arguments.kinds.split(",")}
        for bench in benches(vaes, device, profile_for(machine_of(device, os.environ), os.environ)):
            for row in (row for case in cases for row in bench.run(case)):
                rows.append(row)
                # The PSNR is written as text, because JSON has no infinity.
                kept.add({**asdict(row), "psnr_db": None if row.error else db_text(row)})
                write_chart(chart(rows).encode())
                figures = f"{row.seconds or 0:8.2f} s {gb_text(row.peak_bytes or 0):>8} GB {db_text(row):>10}"
                reported = row.error or figures
                sys.stdout.write(f"{row.kind:<8}{row.case:<24}{row.way:<18}{reported}  {row.plan}\n")
                sys.stdout.flush()
    write_chart(chart(rows).encode())
    sys.stdout.write(f"{sum(bool(row.error) for row in rows)} of {len(rows)} failed.\n")
    for wish in targets(rows):
        sys.stdout.write(f"{target_line(wish)}\n")
    return kept.exit_code()


if __name__ == "__main__":
    raise SystemExit(main())
