"""The parts of the trial, and the processes that they run in."""

import json
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from diffusers_helper.files import write_atomic
from diffusers_helper.models.registry import FACTS_FILE

LOG = "trial.log"
_LEAST_SECONDS = 15


@dataclass(frozen=True)
class Part:
    """A part of the trial.

    Attributes:
        seconds: The most that it may take.
        function: Its module in this folder, and the function there that takes a `trial.Trial` and yields
            cases.
    """

    title: str
    seconds: int
    function: str

    def load(self) -> Any:
        """Return its function."""
        module, _, name = self.function.partition(".")
        return getattr(import_module(f"benchmarks.gpu_trial.{module}"), name)


PARTS = {
    "0": Part("the machine and the weights", 150, "weights.weights"),
    "1": Part("a step by the profiler", 150, "step.profiled"),
    "2": Part("a step with fused work", 200, "step.fused"),
    "3": Part("ceilings", 120, "ceilings.ceilings"),
    "4": Part("side by side with diffusers", 270, "peers.side_by_side"),
    "5": Part("one section", 150, "peers.one_section"),
    "6": Part("decoding", 90, "decoding.decodes"),
    "7": Part("weights made resident", 90, "loading.resident"),
}
CALLS = {"A": "0123", "B": "4567"}


def model_of(work: Path, *, is_tiny: bool) -> Path:
    """Return the folder of the model whose weights part 0 writes."""
    return work / ("tiny" if is_tiny else "full")


def has_model(work: Path, *, is_tiny: bool) -> bool:
    """Return whether all of the model is there."""
    return (model_of(work, is_tiny=is_tiny) / FACTS_FILE).exists()


def file_of(part: str, out: Path) -> Path:
    """Return the file with the rows of a part."""
    return out / f"part-{part}.json"


def facts_of(part: str, *, is_tiny: bool) -> dict[str, Any]:
    """Return what a part's file has beside the rows."""
    return {"part": part, "title": PARTS[part].title, "is_tiny": is_tiny}


def run_child(
    part: str, command: Sequence[str], out: Path, seconds: float, *, is_tiny: bool = False,
    environ: Mapping[str, str] | None = None,
) -> str:  # fmt: skip
    """Run a part in a process of its own, and return why it did not end well, or "".

    However it ends, the part's file holds what it had measured, and that reason. What the process prints goes
    to the log.
    """
    file = file_of(part, out)
    file.unlink(missing_ok=True)
    if seconds < _LEAST_SECONDS:
        reason = f"left out: {max(0.0, seconds):.0f} s were left"
    else:
        reason = _reason(command, out / LOG, seconds, environ)
    if reason:
        found = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        content = {
            "complete": False,
            **facts_of(part, is_tiny=is_tiny),
            "rows": [],
            **found,
            "failed": reason,
        }
        write_atomic(file, json.dumps(content, indent=1).encode() + b"\n")
    return reason


def _reason(command: Sequence[str], log: Path, seconds: float, environ: Mapping[str, str] | None) -> str:
    """Run a command, and return why it did not end well: its last words, a signal, or the time."""
    with log.open("ab") as stream:
        begin = stream.tell()
        # In a session of its own, whatever it has started can be ended with it.
        process = subprocess.Popen(
            command, stdout=stream, stderr=subprocess.STDOUT, env=environ, start_new_session=True
        )
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            return f"no end within {seconds:.0f} s"
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    said = log.read_bytes()[begin:].decode(errors="replace").split("\n")
    return next(filter(None, reversed(said)), f"ended with code {code}") if code else ""
