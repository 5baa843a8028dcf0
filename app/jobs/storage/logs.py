"""The two logs of a job: `events.jsonl`, with every event, and `states.jsonl`, which determines its state.

Both have a line of JSON for each entry. A line in `states.jsonl` has the time and the reason of a change.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, cast

from app.jobs.job import TRANSITIONS, JobState
from diffusers_helper.errors import InputError, short_repr
from diffusers_helper.events import Cancelled, Event, Failed, Finished, SectionFinished, from_dict, to_dict
from diffusers_helper.files import json_line, make_way, read_file, set_aside, sync_folder
from diffusers_helper.library_errors import is_storage_trouble
from diffusers_helper.provenance.job_folder import JobFolder
from diffusers_helper.untrusted.limited_json import plain_json

_MOST_NUMBER = 1e11  # seconds since the epoch are far below it, and every calendar can show it


def append_event(path: Path, event: Event) -> None:
    """Append an event with a single write. What stands in the place of the log is set aside."""
    make_way(path)
    _append_line(path, to_dict(event), sync=event.is_final)


def _append_line(path: Path, facts: Mapping[str, Any], *, sync: bool) -> None:
    """Append a line of JSON to a log, after removing an incomplete last line, as left by a full disk."""
    line = json_line(facts)
    with path.open("a+b") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 1))
        if file.read() != b"\n":
            file.truncate(read_file(path).rfind(b"\n") + 1)
        file.write(line)
        file.flush()
        if sync:
            os.fsync(file.fileno())


@dataclass(slots=True)
class EventReader:
    """A reader of a log of events that may still grow, which yields each event once.

    Attributes:
        sequence: The number of the last line that was read.
    """

    path: Path
    sequence: int = 0
    _offset: int = 0

    def read(self) -> Iterator[tuple[int, Event]]:
        try:
            data = read_file(self.path, start=self._offset)
        except OSError:  # a missing or unreadable log must not prevent the reading of other logs
            return
        for line in data[: data.rfind(b"\n") + 1].splitlines(keepends=True):
            self._offset += len(line)
            self.sequence += 1
            try:
                event = from_dict(plain_json(line))
            except ValueError:  # a line of another version keeps its number but yields no event
                continue
            yield self.sequence, event


def events_in(folder: JobFolder) -> list[Event]:
    """Return the events of a job so far."""
    return [event for _, event in EventReader(folder.events).read()]


def time_of_last(folder: JobFolder) -> float:
    """Return the time of the last event of a job; 0 if it has none."""
    events = events_in(folder)
    return events[-1].time if events else 0.0


def change_by(event: Event, folder: Path) -> tuple[JobState, dict[str, Any]] | None:
    """Return the state and the facts that follow from an event; None if it does not change the state."""
    if not isinstance(event, SectionFinished | Finished | Cancelled | Failed):
        return None
    # The path is stored relative to the job's folder, so that an outputs folder can be moved.
    video = event.video
    if video is not None:  # the folder may have been moved since an earlier version wrote the event
        inside = Path(video).is_relative_to(folder)
        video = str(Path(video).relative_to(folder)) if inside else Path(video).name or None
    facts: dict[str, Any] = {"video": video, "frames": event.frames, "message": "", "remedy": ""}
    if isinstance(event, SectionFinished):
        return "running", facts
    facts["ended"] = round(time.time(), 3)
    if isinstance(event, Finished):
        return "finished", facts
    if isinstance(event, Cancelled):
        return "cancelled", facts
    return "failed", facts | {"message": event.message, "remedy": event.remedy}


_NUMBER = int | float
# The facts of a job besides its request, with their initial values and their types.
_FACTS: dict[str, tuple[Any, Any]] = {
    "state": ("queued", str), "place": (0.0, _NUMBER), "created": (0.0, _NUMBER),
    "started": (None, _NUMBER | None), "ended": (None, _NUMBER | None), "video": (None, str | None),
    "frames": (0, int), "message": ("", str), "remedy": ("", str), "card": ("", str),
    "favourite": (False, bool), "edits": (0, int), "deaths": (0, int), "death": ("", str),
}  # fmt: skip
_FIRST = {name: first for name, (first, _) in _FACTS.items()}
_KINDS: dict[str, Any] = {name: kind for name, (_, kind) in _FACTS.items()} | {"reason": str, "time": _NUMBER}


def _fits(name: str, value: Any) -> bool:
    """Return whether a value can be that of a fact. Facts that only other versions know have any value."""
    kind = _KINDS.get(name, object)
    if name == "state":
        return value in tuple(TRANSITIONS)
    if name == "video" and isinstance(value, str):  # below the job's folder
        path = PurePosixPath(value)
        return bool(path.name) and not path.is_absolute() and ".." not in path.parts and "\0" not in value
    if isinstance(value, _NUMBER) and kind not in (bool, object):
        return isinstance(value, kind) and not isinstance(value, bool) and abs(value) <= _MOST_NUMBER
    return isinstance(value, kind)


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

    A line that no version of Longtake has written is damage, and none of its facts count. The next state is
    then written with all facts and the mark `whole`, after which earlier damage does not matter.

    Methods raise OSError if the folder, or its disk, is away. A method that writes a line returns when
    the line is on the disk. The process that makes the job may write at any time, other processes only while
    the index is locked.
    """

    def __init__(self, folder: JobFolder) -> None:
        self._folder = folder
        self.path = folder.states

    def read(self) -> dict[str, Any]:
        """Return the facts by name, and as `fault` a clause about damage, which is empty if there is none.

        For a folder of version 0.1, which has no such log, its events are read.
        """
        lines, fault = self._lines()
        is_old = not any("created" in line for line in lines)
        facts = _facts_of_old_folder(self._folder) if is_old else dict(_FIRST)
        for line in lines:
            facts |= {name: value for name, value in line.items() if name in _FIRST}
        return facts | {"fault": fault}

    def transitions(self) -> list[Transition]:
        """Return the changes of the state, oldest first."""
        found: list[Transition] = []
        for line in self._lines()[0]:
            if "state" in line and (not found or line["state"] != found[-1].state):
                reason = line.get("reason") or line.get("message") or ""
                found.append(Transition(line["state"], line.get("time", 0.0), reason))
        return found

    def _lines(self) -> tuple[list[dict[str, Any]], str]:
        """Return the lines that can be used, and a clause about the first other one that matters."""
        name, found, fault = self.path.name, list[dict[str, Any]](), ""
        try:
            data = read_file(self.path)
        except OSError as error:
            if is_storage_trouble(error):
                raise
            return [], f"{name}: {error.strerror}" if os.path.lexists(self.path) else ""
        for number, text in enumerate(data[: data.rfind(b"\n") + 1].splitlines(), 1):
            try:
                found.append(line := _checked(plain_json(text)))
            except ValueError as error:
                fault = fault or f"line {number} of {name} cannot be used: {error}"
            else:
                fault = "" if line.get("whole") is True else fault
        return found, fault

    def enter(
        self, state: JobState, *, reason: str = "", is_maker: bool = False, **facts: Any
    ) -> dict[str, Any]:
        """Add a line with a state, which may equal the present one, and return all facts.

        Args:
            reason: Why the state changes, if the fact `message` does not say so.
            is_maker: Whether this process makes the job, so that no other may have changed its state.

        Raises:
            InputError: If this state cannot follow the present one.
        """
        before = self.read()
        fault = before.pop("fault")
        is_odd = state not in (before["state"], *TRANSITIONS[before["state"]])
        if is_odd and not (is_maker or fault):
            raise InputError(
                f"Job {self._folder.job} is {before['state']}; it cannot become {state}.",
                "Look at the job, and try again.",
            )
        after = {**before, "state": state, **facts}
        if after == before and not fault and self.path.exists():  # a failed attempt wrote the line
            return before
        if fault:
            self._make_way()
        line = {"state": state, **({"reason": reason} if reason else {}), **facts}
        is_new = not self.path.exists() or not self.path.stat().st_size
        self.append(**({"whole": True, **before, **line} if is_new or is_odd or fault else line))
        if is_new:
            sync_folder(self.path.parent)
        return after

    def _make_way(self) -> None:
        try:
            read_file(self.path)
        except OSError:
            set_aside(self.path)

    def add(self, **facts: Any) -> None:
        """Add a line with facts but no state, so that a state written at the same time stays in force."""
        if not self.path.is_file():  # what stands in its place is set aside
            self.enter(self.read()["state"])
        self.append(**facts)

    def append(self, **facts: Any) -> None:
        _append_line(self.path, {"time": round(time.time(), 3), **facts}, sync=True)


def _checked(line: Any) -> dict[str, Any]:
    if not isinstance(line, dict):
        raise ValueError(f"it is {short_repr(line)}")
    for name, value in cast(dict[str, Any], line).items():
        if not _fits(name, value):
            raise ValueError(f"{name} is {short_repr(value)}")
    return cast(dict[str, Any], line)


def _facts_of_old_folder(folder: JobFolder) -> dict[str, Any]:
    created = (folder.request if folder.request.exists() else folder.path).stat().st_mtime
    facts = {**_FIRST, "created": created, "place": created}
    last = None
    for last in events_in(folder):
        if change := change_by(last, folder.path):
            facts |= {"state": change[0], **change[1]}
    is_over = last is not None and last.is_final
    if last is not None:
        written = folder.events.stat().st_mtime
        facts |= {"started": max(0.0, written - last.time), "ended": written if is_over else None}
    if not is_over and (last is not None or folder.has_begun):
        facts["state"] = "interrupted"
    return facts
