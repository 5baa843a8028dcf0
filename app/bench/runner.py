"""The runner of the benchmark's parts, each in a process of its own with a time limit.

What a part measures is kept case by case. A case that runs out of memory, ends its process or does not answer
has this as its result, and the part goes on in another process behind it.
"""

from __future__ import annotations

import math
import queue
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app.bench.child import EXIT_LOST
from app.bench.facts import Readings, summary_of
from app.bench.parts import PART_SECONDS, BenchPart
from app.bench.report import Report, published, sealed
from app.jobs.stdio import Child, close_child, complain
from app.machine import module_command
from diffusers_helper.library_errors import last_trouble
from diffusers_helper.machine.signals import SIGKILL
from diffusers_helper.machine.sysfs import host_memory, readings
from diffusers_helper.units import duration, gb_text

_MOST_DEATHS = 3
_WATCH_SECONDS = 1.0
_LEAST_SECONDS = 5.0  # less is not enough for another process
_NO_TIME = "no time was left for the remaining cases"


@dataclass
class BenchRun:
    """A run of the benchmark.

    Attributes:
        parts: The parts, in their order.
        model: The name or folder of real weights; "" for random ones.
        report: The report so far, with the level and the machine; parts that it holds completely, at the same
            level, are not repeated.
        save: Called with the report, which has a checksum, after each case.
        seconds: The time limit of all parts together.
        sensors: Reads the card's sensors; None without any.
        show: Called with a line for each part that begins and ends, and for each case.
    """

    parts: Sequence[BenchPart]
    folder: Path
    model: str
    environ: Mapping[str, str]
    report: Report
    save: Callable[[Report], None]
    seconds: float = math.inf
    sensors: Callable[[], Readings] | None = None
    module: str = "app.bench.child"
    show: Callable[[str], None] = complain
    _begin: float = field(default_factory=time.monotonic)

    def run(self) -> None:
        """Measure all parts, and leave no files but the report."""
        self._keep()  # fails at once where the report cannot be written
        try:
            for part in self.parts:
                self._take(part)
            self.report["is_complete"] = all(entry["is_complete"] for entry in self.report["parts"].values())
        finally:
            self._keep()
            shutil.rmtree(self.folder / "files", ignore_errors=True)

    def _keep(self) -> None:
        self.save(sealed(self.report))

    def _take(self, part: BenchPart) -> None:
        known, level = self.report["parts"].get(part.name, {}), self.report["level"]
        if known.get("level") == level and known["is_complete"] and not known["reason"]:
            return
        # The quick level measures other sizes; the full one has the cases of the standard one, and more.
        is_same = known.get("level") == level or "quick" not in (known.get("level", "quick"), level)
        number, limit = self.parts.index(part), float(PART_SECONDS[level])
        left, rest = limit * (len(self.parts) - number), self.seconds - (time.monotonic() - self._begin)
        self.show(
            f"[{number + 1}/{len(self.parts)}] {part.title} (at most {duration(min(left, rest))} to go)"
        )
        entry: dict[str, Any] = {
            "title": part.title, "level": level, "reason": lack_for(part, self.report, self.folder),
            "seconds": known["seconds"] if is_same else 0.0, "is_complete": False, "card": {},
            "cases": known["cases"] if is_same else {},
        }  # fmt: skip
        self.report["parts"][part.name] = entry
        limit = min(limit, rest)
        if entry["reason"]:
            entry["is_complete"] = True
        elif limit < _LEAST_SECONDS:
            entry["reason"] = "no time was left"
        else:
            begin = time.monotonic()
            with readings(self.sensors or dict, _WATCH_SECONDS) as seen:
                try:
                    self._measure(part, entry, begin + limit)
                finally:
                    entry["seconds"] = published(entry["seconds"] + time.monotonic() - begin)
                    entry["card"] = published(summary_of(seen))
        self._keep()
        self.show(f"      {summary_line(entry)}")

    def _measure(self, part: BenchPart, entry: dict[str, Any], end: float) -> None:
        """Run processes until all cases are done, the time is over, or too many processes have died."""
        for _ in range(_MOST_DEATHS):
            left = end - time.monotonic()
            if left < _LEAST_SECONDS:
                entry["reason"] = _NO_TIME
                return
            if self._one(part, entry, left):
                return
        entry["reason"] = f"{_MOST_DEATHS} processes have died"

    def _one(self, part: BenchPart, entry: dict[str, Any], seconds: float) -> bool:
        """Run one process; return whether another one would be of no use."""
        before = len(entry["cases"])
        (self.folder / "files").mkdir(parents=True, exist_ok=True)
        command, environ = module_command(self.module, {**self.environ, **part.environ})
        messages: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        child = Child(command, environ, messages.put, is_apart=True)  # this program ends it at Ctrl-C
        try:
            child.send({
                "function": part.function, "level": self.report["level"], "model": self.model,
                "folder": str(self.folder / "files"), "skip": list(entry["cases"]),
            })  # fmt: skip
            case, ending = self._follow(messages, entry, seconds)
        finally:
            child.process.kill()
            code = child.process.wait()
            close_child(child.process, 0.0)
        if ending == "over":
            entry["is_complete"] = not entry["reason"]
            return True
        reason = ending or death(code, child.errors.text())
        if case:
            entry["cases"][case] = {"failed": reason}
            self._keep()
        elif code != EXIT_LOST:
            entry["reason"] = reason
        # A process that died before its first case would do so again.
        return len(entry["cases"]) == before

    def _follow(
        self, messages: queue.SimpleQueue[dict[str, Any] | None], entry: dict[str, Any], seconds: float
    ) -> tuple[str, str]:
        """Take what a process measures; return the case in which it ended, and "over", "" or a reason."""
        case, begun, end = "", time.monotonic(), time.monotonic() + seconds
        while True:
            try:
                message = messages.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty:
                taken = time.monotonic() - begun
                is_late = case and taken < seconds / 2
                return ("", _NO_TIME) if is_late else (case, f"no answer within {round(taken)} s")
            if message is None:
                return case, ""
            if "over" in message:
                return "", "over"
            if "begin" in message:
                case, begun = message["begin"], time.monotonic()
                self.show(f"      {case}")
            elif "case" in message:
                label, case = message.pop("case"), ""
                entry["cases"][label] = published(message)
                self._keep()


def death(code: int, tail: str) -> str:
    """Return how a process ended, given its exit code and the end of its error output."""
    ending = f"killed by signal {-code}" if code < 0 else f"ended by itself with code {code}"
    trouble, _ = last_trouble(tail) or (None, "")
    if trouble == "device_memory":
        return f"out of memory ({ending})"
    return f"{ending}, as when main memory is full" if code == -SIGKILL else ending


def lack_for(part: BenchPart, report: Report, folder: Path) -> str:
    """Return why a part cannot run on this machine; "" if it can."""
    card = report["card"]
    if card["kind"] not in part.kinds:
        return "there is no GPU" if card["kind"] == "cpu" else "it is for AMD cards"
    while not folder.exists():
        folder = folder.parent
    lacks = (
        ("free disk space", part.disk_bytes, shutil.disk_usage(folder).free),
        ("free main memory", part.ram_bytes, host_memory().available),
        ("memory of the card", part.device_bytes, card["memory_bytes"] or 0),
    )
    for what, needed, there in lacks:
        if there < needed:
            return f"it needs {gb_text(needed, round_up=True)} GB of {what}; there are {gb_text(there)} GB"
    return ""


def summary_line(entry: Mapping[str, Any]) -> str:
    """Return a sentence on what a part has given, for the terminal."""
    cases = entry["cases"].values()
    counts = {kind: sum(kind in case for case in cases) for kind in ("figures", "failed", "skipped")}
    words = [f"{counts['figures']} measured"]
    words += [f"{counts[kind]} {kind}" for kind in ("failed", "skipped") if counts[kind]]
    if entry["reason"] and not cases:
        return f"left out: {entry['reason']}"
    words[-1] += f" in {duration(entry['seconds'])}"
    return "; ".join(filter(None, (", ".join(words), entry["reason"])))
