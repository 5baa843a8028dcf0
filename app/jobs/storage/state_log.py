"""The log `states.jsonl`, which determines a job's state: one line per change, with its time and reason."""

from __future__ import annotations

import contextlib
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from app.jobs.job import TRANSITIONS, JobState
from app.jobs.storage.event_log import EventReader, cut_torn_line
from diffusers_helper.events import Cancelled, Event, Failed, Finished, SectionFinished
from diffusers_helper.files import sync_folder
from diffusers_helper.output.job_folder import JobFolder
from diffusers_helper.strangers.limited_json import parse_json, read_short

_MOST_BYTES = 16 * 2**20  # of a log; a change takes about 150
_MOST_NUMBER = 2**53
# The facts of a job besides its request, with their initial values.
_FIRST: dict[str, Any] = {
    "state": "queued", "place": 0.0, "created": 0.0, "started": None, "ended": None, "video": None,
    "frames": 0, "message": "", "remedy": "", "favourite": False, "edits": 0, "deaths": 0, "death": "",
}  # fmt: skip
FACTS = tuple(_FIRST)


@dataclass(frozen=True, slots=True)
class Transition:
    """A change of a job's state.

    Attributes:
        time: Seconds since the epoch; 0 if it was not recorded.
        reason: A sentence that says why it happened; "" if none was recorded.
    """

    state: JobState
    time: float
    reason: str


class StateLog:
    """The facts of one job, read from its log. The facts in a line replace those in the lines before it.

    A method that writes a line returns when the line is on the disk. The process that makes the job may write
    at any time, other processes only while the index is locked.
    """

    def __init__(self, folder: JobFolder) -> None:
        self._folder = folder
        self.path = folder.states

    def read(self) -> dict[str, Any]:
        """Return the facts by name. For a folder of version 0.1, which has no such log, its events are read.

        Raises:
            OSError: If the folder cannot be read.
        """
        lines = self._lines()
        if not lines:
            return _facts_of_old_folder(self._folder)
        facts = dict(_FIRST)
        for line in lines:
            facts |= {name: value for name, value in line.items() if name in _FIRST}
        return facts

    def transitions(self) -> list[Transition]:
        """Return the changes of the state, oldest first.

        Raises:
            OSError: If the folder cannot be read.
        """
        found: list[Transition] = []
        for line in self._lines():
            if "state" in line and (not found or line["state"] != found[-1].state):
                reason = line.get("reason") or line.get("message") or ""
                found.append(Transition(line["state"], line.get("time", 0.0), reason))
        return found

    def _lines(self) -> list[dict[str, Any]]:
        data = read_short(self.path, _MOST_BYTES) if self.path.exists() else b""
        found: list[dict[str, Any]] = []
        for line in data[: data.rfind(b"\n") + 1].splitlines():
            with contextlib.suppress(ValueError):  # a line was damaged from outside; the others are valid
                read = parse_json(line)
                found += [_usable(cast(dict[str, Any], read))] if isinstance(read, dict) else []
        return found

    def enter(self, state: JobState, *, reason: str = "", **facts: Any) -> dict[str, Any]:
        """Add a line with a state, and return all facts.

        Args:
            state: The job's new state, which may equal the present one.
            reason: Why the state changes, if the fact `message` does not say so.
            facts: Other changed facts, by the names in `FACTS`.

        Raises:
            OSError: If the line cannot be written.
            ValueError: If this state cannot follow the present one.
        """
        before = self.read()
        if state != before["state"] and state not in TRANSITIONS[before["state"]]:
            raise ValueError(f"job {self._folder.job} is {before['state']}; it cannot become {state}.")
        after = {**before, "state": state, **facts}
        if after == before and self.path.exists():  # an earlier attempt that failed later wrote the line
            return before
        line = {"state": state, "time": round(time.time(), 3), **_said(reason), **facts}
        is_new = not self.path.exists() or not self.path.stat().st_size
        self._append({**before, **line} if is_new else line)
        if is_new:
            sync_folder(self.path.parent)
        return after

    def add(self, **facts: Any) -> None:
        """Add a line with facts but no state, so that a state written at the same time stays in force.

        Raises:
            OSError: If the line cannot be written.
        """
        if not self.path.exists():
            self.enter(self.read()["state"])
        self._append({"time": round(time.time(), 3), **facts})

    def start(self, reason: str, **facts: Any) -> None:
        """Write the first line of a job's log."""
        self._append({"state": "queued", "time": round(time.time(), 3), **_said(reason), **facts})

    def _append(self, line: dict[str, Any]) -> None:
        with self.path.open("a+b") as file:
            cut_torn_line(file.fileno())
            file.write(json.dumps(line, allow_nan=False).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())


def _usable(line: dict[str, Any]) -> dict[str, Any]:
    """Return the entries of a line that are of the right kind, since the folder may come from elsewhere."""
    return {name: value for name, value in line.items() if _fits(name, value)}


def _fits(name: str, value: object) -> bool:
    if name == "state":
        return isinstance(value, str) and value in TRANSITIONS
    if value is None:
        return _FIRST.get(name, "") is None
    if name in ("time", "place", "created", "started", "ended", "frames", "edits", "deaths"):
        return type(value) in (int, float) and abs(cast(float, value)) < _MOST_NUMBER  # NaN is not
    return isinstance(value, bool if name == "favourite" else str)


def _said(reason: str) -> dict[str, str]:
    return {"reason": reason} if reason else {}


def change_by(event: Event, folder: Path) -> tuple[JobState, dict[str, Any]] | None:
    """Return the state and the facts that follow from an event; None if it does not change the state."""
    if not isinstance(event, SectionFinished | Finished | Cancelled | Failed):
        return None
    # The path is stored relative to the job's folder, so that an outputs folder can be moved.
    video = event.video
    if video is not None and Path(video).is_relative_to(folder):
        video = str(Path(video).relative_to(folder))
    facts: dict[str, Any] = {"video": video, "frames": event.frames, "message": "", "remedy": ""}
    if isinstance(event, SectionFinished):
        return "running", facts
    facts["ended"] = round(time.time(), 3)
    if isinstance(event, Finished):
        return "finished", facts
    if isinstance(event, Cancelled):
        return "cancelled", facts
    return "failed", facts | {"message": event.message, "remedy": event.remedy}


def _facts_of_old_folder(folder: JobFolder) -> dict[str, Any]:
    created = folder.request.stat().st_mtime
    facts = {**_FIRST, "created": created, "place": created}
    last = None
    for _, event in EventReader(folder.events).read():
        last = event
        if change := change_by(event, folder.path):
            facts |= {"state": change[0], **change[1]}
    if last is not None:
        written = folder.events.stat().st_mtime
        facts |= {"started": written - last.time, "ended": written if last.is_final else None}
    is_over = last is not None and last.is_final
    if not is_over and (last is not None or folder.has_begun):
        facts["state"] = "interrupted"
    return facts
