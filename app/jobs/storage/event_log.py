"""The log `events.jsonl`, which holds every event of a job, one per line, numbered by its line."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diffusers_helper.events import Event, from_dict, to_dict
from diffusers_helper.files import json_line, make_way, read_file, sync_folder
from diffusers_helper.provenance.job_folder import JobFolder
from diffusers_helper.strangers.limited_json import plain_json

_MOST_LINE_BYTES = 2**20


def append_event(path: Path, event: Event) -> None:
    """Append an event with a single write. What stands in the place of the log is set aside."""
    make_way(path)
    append_line(path, to_dict(event), sync=event.is_final)


def append_line(path: Path, facts: Mapping[str, Any], *, sync: bool) -> None:
    """Append a line of JSON to a log, after removing an incomplete last line, as left by a full disk.

    Args:
        path: The log, which is made if it is missing.
        facts: The content of the line.
        sync: Whether the line is on the disk on return.
    """
    line = json_line(facts)
    with path.open("a+b") as file:
        _cut_torn_line(file.fileno())
        file.write(line)
        file.flush()
        if sync:
            os.fsync(file.fileno())


def _cut_torn_line(descriptor: int) -> None:
    """Remove everything after the last line break of a file that is open for appending.

    More than any line of ours stays, and ends as a damaged line.
    """
    size = os.lseek(descriptor, 0, os.SEEK_END)
    start = max(0, size - _MOST_LINE_BYTES)
    os.lseek(descriptor, start, os.SEEK_SET)
    kept = start + os.read(descriptor, size - start).rfind(b"\n") + 1
    if start and kept == start:
        os.write(descriptor, b"\n")
    elif kept < size:
        os.ftruncate(descriptor, kept)


def last_event(path: Path) -> Event | None:
    """Return the last event of a log; None if it has none."""
    events = [event for _, event in EventReader(path).read()]
    return events[-1] if events else None


def time_of_last(path: Path) -> float:
    """Return the time of the last event of a log; 0 if it has none."""
    last = last_event(path)
    return last.time if last else 0.0


@dataclass(slots=True)
class EventReader:
    """A reader of a log that may still grow, which yields each event once.

    Attributes:
        sequence: The number of the last line that was read.
    """

    path: Path
    sequence: int = 0
    _offset: int = 0

    def read(self) -> Iterator[tuple[int, Event]]:
        """Yield the sequence number and the event of each complete line added since the last call."""
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


def sync_video(event: Event, folder: JobFolder) -> None:
    """Make sure that the directory entry of an event's video, if it has one, is on the disk."""
    if video := getattr(event, "video", None):
        for path in {folder.path, Path(video).parent}:
            with contextlib.suppress(FileNotFoundError):
                sync_folder(path)
