"""The cost of counting live tensors: the CPU time of `generate` with counting, divided by that without.

    python benchmarks/accounting.py [--model demo] [--seconds 2] [--steps 8] [--repeat 7] [--json]

The benchmark is for machines without a GPU; on a GPU nothing is counted. Runs of both kinds alternate after
one warm-up run of each. The CPU time of the whole process is compared, because other programs disturb it less
than wall time. Programs that share a core or its caches still disturb it, but least in the fastest run of
each kind. The exit code is 1 if the ratio of the fastest runs is above 1.05.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # A file that is run as a program finds only the modules of its own folder.

from benchmarks.rows import Rows  # noqa: E402
from benchmarks.whole_jobs import load_whole, request_of  # noqa: E402
from diffusers_helper.events import Event, Finished  # noqa: E402
from diffusers_helper.loading.loaders import Models  # noqa: E402
from diffusers_helper.memory.device import CudaDevice, Device  # noqa: E402
from diffusers_helper.pipeline import generate  # noqa: E402
from diffusers_helper.request import GenerationRequest  # noqa: E402

GOAL = 1.05


@contextmanager
def not_counting() -> Iterator[None]:
    """Disable the counting of the accounting device within the context."""
    with (
        patch.object(Device, "__enter__", lambda device: device),
        patch.object(Device, "__exit__", lambda *_: None),
        patch.object(Device, "repeater", CudaDevice.repeater),
    ):
        yield


def run(models: Models, request: GenerationRequest, folder: Path) -> dict[str, float]:
    """Make one video, and return its CPU and wall seconds and the counted peak in bytes."""
    peak = 0

    def on_event(event: Event) -> None:
        nonlocal peak
        if isinstance(event, Finished):
            peak = event.peak_device_bytes

    cpu, wall = time.process_time(), time.perf_counter()
    generate(request, models, folder=folder, on_event=on_event)
    return {"cpu": time.process_time() - cpu, "wall": time.perf_counter() - wall, "peak_bytes": peak}


def measure(models: Models, request: GenerationRequest, repeat: int, scratch: Path, rows: Rows) -> None:
    """Add a row for each run. The first one of each kind is the warm-up."""
    for number in range(repeat + 1):
        for is_counted in (number % 2 == 0, number % 2 == 1):
            folder = scratch / f"{number}-{is_counted}"
            with nullcontext() if is_counted else not_counting():
                row = run(models, request, folder)
            assert (row["peak_bytes"] > 0) == is_counted
            rows.add({"is_counted": is_counted, **row})


def compare(rows: Rows) -> dict[str, Any]:
    """Return all runs, the median of the ratios of neighbouring runs, and the ratio of the fastest runs."""
    counted, plain = ([row for row in rows if row["is_counted"] == kind] for kind in (True, False))
    pairs = list(zip(counted[1:], plain[1:], strict=True))
    ratios = {kind: [a[kind] / b[kind] for a, b in pairs] for kind in ("cpu", "wall")}
    return {
        "plain": plain[1:],
        "counted": counted[1:],
        "ratios": ratios,
        "median": {kind: statistics.median(values) for kind, values in ratios.items()},
        "fastest": {kind: min(a[kind] for a, _ in pairs) / min(b[kind] for _, b in pairs) for kind in ratios},
    }


def main() -> int:
    """Print the figures; return 1 if the cost is above the goal."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default="demo")
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--threads", type=int, help="number of torch's threads (default: torch's own choice)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    models = load_whole(arguments.model, device="cpu")
    with tempfile.TemporaryDirectory() as scratch, Rows(__file__) as rows:
        request = request_of(arguments, models, Path(scratch), mode=models.info.modes[0])
        measure(models, request, arguments.repeat, Path(scratch), rows)
    if rows.is_interrupted:
        return rows.exit_code()
    result = compare(rows)
    if arguments.json:
        sys.stdout.write(json.dumps({"torch": torch.__version__, **result}, indent=2) + "\n")
    else:
        ratios, peak = result["ratios"]["cpu"], result["counted"][-1]["peak_bytes"]
        sys.stdout.write(
            f"counted over plain, CPU: fastest runs {result['fastest']['cpu']:.3f}, pairs "
            f"{result['median']['cpu']:.3f} ({min(ratios):.3f} to {max(ratios):.3f}); wall: fastest "
            f"{result['fastest']['wall']:.3f}; peak {peak / 1024**2:.1f} MiB\n"
        )
    return 0 if result["fastest"]["cpu"] <= GOAL else 1


if __name__ == "__main__":
    raise SystemExit(main())
