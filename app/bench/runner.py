"""The runner of the benchmark's parts, each in a process of its own with a time limit.

The report is written after each case. A case that ends its process or does not answer has this as its result,
and the part goes on behind it in another process.
"""

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.bench.facts import Readings, summary_of
from app.bench.report import Report, published
from app.bench.table import PART_SECONDS, PARTS, BenchPart
from app.jobs.stdio import complain
from app.trials import ask_probe
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
        model: The name or folder of real weights; "" for random ones.
        report: The report so far, with the level and the machine.
        show: Called with a line for each part that begins and ends, and for each case.
    """

    folder: Path
    model: str
    environ: Mapping[str, str]
    report: Report
    save: Callable[[Report], None]
    sensors: Callable[[], Readings] | None = None
    show: Callable[[str], None] = complain

    def run(self, names: Sequence[str], end: float) -> None:
        """Measure these parts until a time of `time.monotonic`, and leave no files but the report."""
        self.save(self.report)  # fails at once where the report cannot be written
        limit = PART_SECONDS[self.report["level"]]
        try:
            for number, name in enumerate(names, 1):
                self.show(f"[{number}/{len(names)}] {PARTS[name].title}")
                self._run_part(name, min(end, time.monotonic() + limit))
            self.report["is_complete"] = all(entry["is_complete"] for entry in self.report["parts"].values())
        finally:
            self.save(self.report)
            shutil.rmtree(self.folder / "files", ignore_errors=True)

    def _run_part(self, name: str, end: float) -> None:
        part = PARTS[name]
        start_time = time.monotonic()
        reason = lack_for(part, self.report, self.folder)
        entry: dict[str, Any] = {
            "title": part.title, "level": self.report["level"], "reason": reason, "seconds": 0.0,
            "is_complete": bool(reason), "card": {}, "cases": {},
        }  # fmt: skip
        self.report["parts"][name] = entry
        if not reason:
            with readings(self.sensors or dict, _WATCH_SECONDS) as sensor_values:
                try:
                    entry["reason"] = published(self._measure(part, entry, end))
                finally:
                    entry["seconds"] = published(time.monotonic() - start_time)
                    entry["card"] = published(summary_of(sensor_values))
        self.save(self.report)
        self.show(f"      {summary_line(entry)}")

    def _measure(self, part: BenchPart, entry: dict[str, Any], end: float) -> str:
        cases = entry["cases"]
        files = self.folder / "files"
        files.mkdir(parents=True, exist_ok=True)
        case, start_time = "", 0.0

        def take(message: dict[str, Any]) -> None:
            nonlocal case, start_time
            if "over" in message:
                entry["is_complete"] = True
            elif "begin" in message:
                case, start_time = message["begin"], time.monotonic()
                self.show(f"      {case}")
            else:
                label, case = message.pop("case"), ""
                cases[label] = published(message)
                self.save(self.report)

        for _ in range(_MOST_DEATHS):
            count = len(cases)
            seconds = end - time.monotonic()
            if seconds < _LEAST_SECONDS:
                return _NO_TIME
            question = ("bench", part.function, entry["level"] == "quick", self.model, str(files), [*cases])
            end_of_process = ask_probe(question, take, {**self.environ, **part.environ}, all_seconds=seconds)
            if entry["is_complete"]:
                return ""
            # A case that began late is not at fault.
            if end_of_process.is_late and case and time.monotonic() - start_time < seconds / 2:
                return _NO_TIME
            if case:
                cases[case] = {"failed": published(end_of_process.reason)}
                case = ""
                self.save(self.report)
            if len(cases) == count:  # another process would end before its first case, too
                return end_of_process.reason
        return f"{_MOST_DEATHS} processes have died"


def lack_for(part: BenchPart, report: Report, folder: Path) -> str:
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
    for name, needed, available in lacks:
        if available < needed:
            needed_text = gb_text(needed, round_up=True)
            return f"it needs {needed_text} GB of {name}; there are {gb_text(available)} GB"
    return ""


def summary_line(entry: Mapping[str, Any]) -> str:
    cases = entry["cases"].values()
    counts = {kind: sum(kind in case for case in cases) for kind in ("figures", "failed", "skipped")}
    words = [f"{counts['figures']} measured"]
    words += [f"{counts[kind]} {kind}" for kind in ("failed", "skipped") if counts[kind]]
    if entry["reason"] and not cases:
        return f"left out: {entry['reason']}"
    words[-1] += f" in {duration(entry['seconds'])}"
    return "; ".join(filter(None, (", ".join(words), entry["reason"])))
