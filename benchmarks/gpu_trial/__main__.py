"""The trial of this product on a GPU, in parts that leave their results behind.

`scripts/gpu_trial` starts it with a Python that has what it needs.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.gpu_trial.parts import CALLS, PARTS, facts_of, file_of, has_model, run_child
from benchmarks.gpu_trial.report import rows, table

_SHARED_MEMORY, _WEIGHTS_BYTES = Path("/dev/shm"), 48e9
_SECONDS = 540.0


def main() -> int:
    """Run parts, or print the report of those that have run; return 1 if one did not end well."""
    parser = argparse.ArgumentParser(prog="scripts/gpu_trial", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "parts", nargs="*", help="A, B, numbers of parts in the order in which they run, or report"
    )
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "trial-results")))
    parser.add_argument("--work", type=Path, help="a folder for weights, which stay there for the next call")
    parser.add_argument("--seconds", type=float, default=_SECONDS, help="the most that all parts may take")
    parser.add_argument("--tiny", action="store_true", help="take tiny networks, on a CPU, too")
    parser.add_argument("--child", choices=PARTS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.parts[:1] == ["report"]:
        sys.stdout.write(table(*map(Path, arguments.parts[1:] or [arguments.out])))
        return 0
    if arguments.child:
        measure(arguments.child, arguments)
        return 0
    parts = [part for name in arguments.parts for part in CALLS.get(name, [name])]
    if not parts or not PARTS.keys() >= {*parts}:
        sys.stderr.write(f"Which parts? {', '.join((*CALLS, *PARTS))}, or report FOLDER.\n")
        return 1
    arguments.work = (arguments.work or _work_folder(is_tiny=arguments.tiny)).absolute()
    for folder in (arguments.out, arguments.work):
        folder.mkdir(parents=True, exist_ok=True)
    return run(parts, arguments)


def run(parts: list[str], arguments: argparse.Namespace) -> int:
    """Run parts one after the other, and print the rows of each; return 1 if one did not end well."""
    from app.machine import this_profile
    from diffusers_helper.planning.variables import engine_environment

    end, is_well = time.monotonic() + arguments.seconds, True
    if "0" not in parts and not has_model(arguments.work, is_tiny=arguments.tiny):
        parts = ["0", *parts]
    environ = dict(os.environ)
    environ |= engine_environment(this_profile(environ).environment, environ)
    for part in parts:
        command = [sys.executable, "-m", __package__, "--child", part]
        command += ["--work", str(arguments.work), "--out", str(arguments.out)]
        # A busy CPU may take as long as it likes with tiny networks.
        seconds = min(arguments.seconds if arguments.tiny else PARTS[part].seconds, end - time.monotonic())
        reason = run_child(
            part, [*command, *(["--tiny"] if arguments.tiny else [])], arguments.out, seconds,
            is_tiny=arguments.tiny, environ=environ,
        )  # fmt: skip
        is_well = is_well and not reason
        for what, figures, _ in rows(json.loads(file_of(part, arguments.out).read_text(encoding="utf-8"))):
            sys.stdout.write(f"{what}: {figures}\n")
        sys.stdout.flush()
    sys.stdout.write(f"The weights stay in {arguments.work} for the next call; delete them after the last.\n")
    return 0 if is_well else 1


def measure(part: str, arguments: argparse.Namespace) -> None:
    """Measure a part in this process."""
    from benchmarks.gpu_trial.trial import Trial

    trial = Trial(arguments.work, arguments.tiny)
    if not (trial.is_tiny or trial.device.has_gpu):
        raise SystemExit("torch sees no GPU here: with --tiny, a CPU goes through all parts.")
    trial.run(PARTS[part].load()(trial), file_of(part, arguments.out), facts_of(part, is_tiny=trial.is_tiny))


def _work_folder(*, is_tiny: bool) -> Path:
    """Return a folder for the weights: in main memory if that has room, as a disk takes half a minute."""
    shared = _SHARED_MEMORY if _SHARED_MEMORY.is_dir() else None
    if is_tiny or not shared or shutil.disk_usage(shared).free < _WEIGHTS_BYTES:
        shared = Path(tempfile.gettempdir())
    return shared / "longtake-trial"


if __name__ == "__main__":
    raise SystemExit(main())
