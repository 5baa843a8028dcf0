"""Runs of the benchmark with stand-ins for its parts. As a program, it runs one until it is killed."""

import json
import math
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from app.bench.report import FORMAT, VERSION, Report, to_bytes
from app.bench.runner import BenchRun
from app.bench.table import PARTS
from app.machine import module_command
from diffusers_helper.files import write_atomic

FACTS: dict[str, Any] = {
    "versions": {
        "longtake": "0.1.0", "python": "3.11.2", "torch": "2.13.0", "rocm": "7.2", "cuda": None,
        "driver": "6.10.5", "kernel": "6.1.0",
    },
    "card": {
        "kind": "rocm", "arch": "gfx1100", "name": "Radeon RX 7900 XTX", "memory_bytes": 24 * 2**30,
        "link": "PCIe 4.0 x16",
    },
    "processor": {"name": "Ryzen", "cores": 16}, "ram_bytes": 64 * 2**30,
}  # fmt: skip


def _stand_in(module: str, environ: Mapping[str, str]) -> tuple[tuple[str, ...], dict[str, str]]:
    return module_command("tests.support.bench_child", environ)


def new_report() -> Report:
    return {
        "format": FORMAT, "version": VERSION, "level": "quick", "weights": "random", "is_complete": False,
        **FACTS, "parts": {},
    }  # fmt: skip


def run(folder: Path, functions: dict[str, str], **facts: Any) -> Report:
    """Run stand-in functions as parts of these names, and return the report that was written."""
    folder.mkdir(exist_ok=True)
    needs = {"ram_bytes": 0, **facts.pop("needs", {})}
    parts = {name: replace(PARTS[name], function=function, **needs) for name, function in functions.items()}
    file = folder / "report.json"

    def show(line: str) -> None:
        if line.startswith(" ") and __name__ == "__main__":
            sys.stdout.write(f"{line.strip()}\n")
            sys.stdout.flush()

    save = lambda report: write_atomic(file, to_bytes(report))  # noqa: E731
    with patch.dict(PARTS, parts), patch("app.trials.module_command", _stand_in):
        BenchRun(folder, "", os.environ, new_report() | facts, save, show=show).run(list(parts), math.inf)
    return json.loads(file.read_text())


if __name__ == "__main__":
    run(Path(sys.argv[1]), {"bus": "waits"})
