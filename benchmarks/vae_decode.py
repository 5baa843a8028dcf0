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
import json
import math
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import torch
from diffusers import AutoencoderKLWan
from diffusers.utils import logging as diffusers_logging
from torch import Tensor, nn

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # A file that is run as a program finds only the modules of its own folder.

from benchmarks.interrupts import EXIT_INTERRUPTED, until_interrupted  # noqa: E402
from diffusers_helper.errors import LongtakeError  # noqa: E402
from diffusers_helper.files import write_atomic  # noqa: E402
from diffusers_helper.job.plans import machine_of  # noqa: E402
from diffusers_helper.loading.loaders import load_models  # noqa: E402
from diffusers_helper.machine.sysfs import host_memory  # noqa: E402
from diffusers_helper.memory.accounting import to_host  # noqa: E402
from diffusers_helper.memory.device import Device, open_device  # noqa: E402
from diffusers_helper.models.registry import find_model  # noqa: E402
from diffusers_helper.planning.profiles import Profile, profile_for  # noqa: E402
from diffusers_helper.planning.shortage import is_out_of_memory  # noqa: E402
from diffusers_helper.planning.vae import CHUNKS, VaeSettings, Video, settings_for  # noqa: E402
from diffusers_helper.units import gb_bytes, gb_text  # noqa: E402
from diffusers_helper.vae.engine import VaeEngine  # noqa: E402
from diffusers_helper.vae.families import family_of  # noqa: E402
from diffusers_helper.vae.guest import Guest  # noqa: E402

# A function that takes latents, and returns frames and a description of the plan.
Decode = Callable[[Tensor], tuple[Tensor, str]]


@dataclass(frozen=True)
class Case:
    """A video to decode. `target` is the wished time in seconds with the VAE of WAN 2.2 i2v, if any."""

    name: str
    frames: int
    height: int
    width: int
    target: float | None = None

    @property
    def title(self) -> str:
        return f"{self.name} {self.frames}x{self.height}x{self.width}"


CASES = (
    Case("one frame", 1, 320, 320),
    Case("short", 5, 320, 320),
    Case("medium", 9, 320, 320),
    Case("medium", 17, 320, 320, target=10.0),
    # Two seconds at the 16 frames per second of WAN 2.2 i2v, and one frame for the picture.
    Case("two seconds", 33, 320, 320, target=5.0),
    Case("large", 33, 480, 720),
    Case("stress", 17, 512, 512),
    Case("stress", 17, 768, 768),
    Case("stress", 17, 1024, 1024),
)
QUICK = (Case("one frame", 1, 64, 64), Case("short", 9, 64, 64))
# The width of the first layer of WAN 2.2 i2v's VAE; narrower ones stand in for it on a CPU.
WAN_WIDTH = 96
TARGET_PEAK_BYTES, TARGET_FAILURES = 50 * 1024**3, 0.01


@dataclass(frozen=True)
class Row:
    """The result of one way to decode one case. If it failed, `error` says why, and the figures are None."""

    kind: str
    case: str
    way: str
    plan: str
    seconds: float | None
    peak_bytes: int | None
    psnr_db: float | None
    error: str = ""
    target_seconds: float | None = None


def clip(case: Case) -> Tensor:
    """Draw a smooth picture with a moving disc, (1, 3, F, H, W) in -1 to 1."""
    y, x = torch.meshgrid(
        torch.linspace(-1, 1, case.height), torch.linspace(-1, 1, case.width), indexing="ij"
    )
    base = torch.stack([torch.sin(2 * x + y), torch.cos(3 * x * y), x * y])
    frames = [torch.where((x - k / 40 + 0.5) ** 2 + y**2 < 0.1, -base, base) for k in range(case.frames)]
    return 0.8 * torch.stack(frames, dim=1)[None]


def psnr(found: Tensor, expected: Tensor) -> float:
    """Return the PSNR in dB for values in -1 to 1; infinite for identical values."""
    error = (found.float().clamp(-1, 1) - expected.clamp(-1, 1)).square().mean().item()
    return math.inf if error == 0 else 10 * math.log10(4 / error)


class Bench:
    """The benchmark of one VAE on one device."""

    def __init__(self, kind: str, vae: nn.Module, device: Device, profile: Profile) -> None:
        self.kind, self.vae, self.device, self.profile = kind, vae, device, profile
        self.weights = sum(tensor.nbytes for tensor in vae.parameters())
        config: Any = vae.config
        self.is_wan = kind == "wan" and config.base_dim == WAN_WIDTH

    def run(self, case: Case) -> Iterator[Row]:
        """Decode the case in each way, the reference first, and yield the results."""
        try:
            moments = VaeEngine(Guest(self.vae, self.device)).encode(clip(case))
        except LongtakeError as error:
            yield Row(self.kind, case.title, "encode", "", None, None, None, error.message)
            return
        latents = self.device.put(moments[:, : moments.shape[1] // 2])
        if self.device.has_gpu:
            # The driver searches for its kernels once; without a warm-up, only the first way would be slow.
            self._one(case.title, "warm-up", self._diffusers(tiled=False), latents, None)
        expected: Tensor | None = None
        for way, decode in self.ways(case):
            with torch.inference_mode():
                row, found = self._one(case.title, way, decode, latents, expected)
            if way == "diffusers":
                expected = found
            yield replace(row, target_seconds=case.target if self.is_wan else None)

    def _one(
        self,
        case: str,
        way: str,
        decode: Decode,
        latents: Tensor,
        expected: Tensor | None,
    ) -> tuple[Row, Tensor | None]:
        self.device.empty_cache()
        self.device.reset_peak()
        begin, found, plan = time.perf_counter(), None, ""
        try:
            with self.device:
                found, plan = decode(latents)
        except Exception as error:
            if not is_out_of_memory(error) and not isinstance(error, LongtakeError):
                raise
            text = str(error).splitlines()[0][:100]
            return Row(self.kind, case, way, plan, None, None, None, text), None
        seconds, peak = time.perf_counter() - begin, self.device.peak_bytes() - self.weights
        error = math.nan if expected is None else psnr(found, expected)
        error = None if way == "diffusers" else error
        return Row(self.kind, case, way, plan, seconds, peak, error), found

    def ways(self, case: Case) -> Iterator[tuple[str, Decode]]:
        """Yield diffusers' two ways and then the engine's, by name."""
        yield "diffusers", self._diffusers(tiled=False)
        yield "diffusers tiled", self._diffusers(tiled=True)
        yield "engine", self._engine(VaeSettings())
        yield f"engine, {self.profile.family}", self._engine(settings_for(self.profile))
        if case.frames > 1:
            for chunk in CHUNKS:
                yield f"engine chunk {chunk}", self._engine(VaeSettings(chunk=chunk))
        for tile in (256, 128):
            if tile < max(case.height, case.width):
                yield f"engine tile {tile}", self._engine(VaeSettings(tile_px=tile))
        if case.height <= 320:
            # In fp16 a CPU takes a minute, so only a GPU is measured.
            for precision in ("bf16", "fp16") if self.device.has_gpu else ("bf16",):
                yield f"engine {precision}", self._engine(VaeSettings(precision=precision))

    def _diffusers(self, *, tiled: bool) -> Decode:
        vae: Any = self.vae

        def decode(latents: Tensor) -> tuple[Tensor, str]:
            vae.use_tiling = vae.use_framewise_decoding = tiled
            return to_host(vae.decode(latents, return_dict=False)[0]), ""

        return decode

    def _engine(self, settings: VaeSettings) -> Decode:
        engine = VaeEngine(Guest(self.vae, self.device, settings, self.profile.backend))
        shrink = family_of(self.vae).shrink

        def decode(latents: Tensor) -> tuple[Tensor, str]:
            video = Video(latents.shape[2], latents.shape[3] * shrink, latents.shape[4] * shrink)
            plan = engine.owner.plans("decode", video)[0].reason
            return engine.decode(latents), plan

        return decode


def benches(kinds: list[str], model: str, device: Device) -> Iterator[Bench]:
    """Yield a benchmark for each VAE, in fp32 on the device."""
    for kind in kinds:
        torch.manual_seed(0)
        if kind == "wan":
            width = WAN_WIDTH if device.has_gpu else 16
            vae: nn.Module = AutoencoderKLWan(base_dim=width)
        else:
            vae = load_models(find_model(model, allow_folder=True)).part("vae")
        vae = nn.Module.to(vae, torch.float32).eval().to(device.torch_device)
        device.adopt(vae)
        yield Bench(kind, vae, device, profile_for(machine_of(device, os.environ), os.environ))
        device.release(vae)


def targets(rows: list[Row]) -> list[dict[str, Any]]:
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


def share_of_failures(rows: list[Row]) -> float:
    """Return the share of rows that failed."""
    return sum(bool(row.error) for row in rows) / max(1, len(rows))


def target_line(target: dict[str, Any]) -> str:
    """Return a target and its measured figure as a sentence."""

    def figure(value: float) -> str:
        return f"{gb_text(value)} GB" if target["name"].endswith("bytes") else f"{value:g}"

    measured = target["measured"]
    reported = "no target for what was decoded" if measured is None else f"measured {figure(measured)}"
    return f"Target: {target['name'].removesuffix(' in bytes')} below {figure(target['target'])}; {reported}."


def chart(rows: list[Row]) -> str:
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
        reported = row.error or f"{row.seconds:.2f} s, {gb_text(row.peak_bytes or 0)} GB, {_db(row)}"
        length = 300 * (row.seconds or 0) / most
        lines.append(f'<text x="10" y="{y + 12}">{escape(row.way)}</text>')
        lines.append(f'<rect x="170" y="{y + 2}" width="{length:.1f}" height="12" fill="#c2410c"/>')
        lines.append(f'<text x="{178 + length:.1f}" y="{y + 12}">{escape(reported)}</text>')
        y += 18
    size = f'width="860" height="{y + 10}" viewBox="0 0 860 {y + 10}"'
    style = 'font-family="sans-serif" font-size="11" fill="#222"'
    background = '<rect width="100%" height="100%" fill="white"/>'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>{background}{"".join(lines)}</svg>\n'


def _db(row: Row) -> str:
    if row.psnr_db is None:
        return "reference"
    if math.isnan(row.psnr_db):
        return "no reference"
    return "same bits" if math.isinf(row.psnr_db) else f"{row.psnr_db:.1f} dB"


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


def write(folder: Path, device: Device, rows: list[Row], *, complete: bool) -> None:
    """Write the table and the chart of what was measured so far."""
    facts = {"torch": torch.__version__, "machine": platform.processor() or platform.machine()}
    facts["device"] = str(device.torch_device)
    # The PSNR is written as text, because JSON has no infinity.
    table = [{**asdict(row), "psnr_db": None if row.error else _db(row)} for row in rows]
    result = {**facts, "complete": complete, "error_rate": share_of_failures(rows), "targets": targets(rows)}
    write_atomic(folder / "vae_decode.json", json.dumps({**result, "rows": table}, indent=1).encode() + b"\n")
    write_atomic(folder / "vae_decode.svg", chart(rows).encode())


def main() -> int:
    """Print a line for each row, and write the table and the chart; return the exit code."""
    arguments = parse()
    diffusers_logging.set_verbosity_error()
    device = open_device()
    if arguments.cap_gb or not device.has_gpu:
        device.limit(gb_bytes(arguments.cap_gb) if arguments.cap_gb else host_memory().available)
    cases, rows = QUICK if arguments.quick else CASES, list[Row]()
    if arguments.cases:
        names = [name.strip() for name in arguments.cases.split(",")]
        cases = tuple(case for case in cases if case.name in names)
    arguments.out.mkdir(parents=True, exist_ok=True)
    with until_interrupted() as interrupt:
        for bench in benches(arguments.kinds.split(","), arguments.model, device):
            for row in (row for case in cases for row in bench.run(case)):
                rows.append(row)
                write(arguments.out, device, rows, complete=False)
                figures = f"{row.seconds or 0:8.2f} s {gb_text(row.peak_bytes or 0):>8} GB {_db(row):>10}"
                reported = row.error or figures
                sys.stdout.write(f"{row.kind:<8}{row.case:<24}{row.way:<18}{reported}  {row.plan}\n")
                sys.stdout.flush()
    write(arguments.out, device, rows, complete=not interrupt.happened)
    sys.stdout.write(f"{sum(bool(row.error) for row in rows)} of {len(rows)} failed.\n")
    for wish in targets(rows):
        sys.stdout.write(f"{target_line(wish)}\n")
    return EXIT_INTERRUPTED if interrupt.happened else 0


if __name__ == "__main__":
    raise SystemExit(main())
