"""The log of a job's events, `events.jsonl`, with a line of JSON for each event."""

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.jobs.job import JobState
from diffusers_helper.events import Cancelled, Event, Failed, Finished, SectionFinished, from_dict, to_dict
from diffusers_helper.files import json_line, read_file
from diffusers_helper.library_errors import is_storage_trouble
from diffusers_helper.provenance.job_folder import JobFolder
from diffusers_helper.untrusted.limited_json import plain_json


def append_event(path: Path, event: Event) -> None:
    append_line(path, json_line(to_dict(event)), sync=event.is_final)


def append_line(path: Path, line: bytes, *, sync: bool) -> None:
    """Append a line to a log by a single write, after removing an incomplete one, as left by a full disk."""
    with path.open("a+b") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 1))
        if file.read(1) != b"\n":
            file.truncate(read_file(path).rfind(b"\n") + 1)
        file.write(line)
        file.flush()
        if sync:
            os.fsync(file.fileno())


@dataclass(slots=True)
class EventReader:
    path: Path
    sequence: int = 0
    _offset: int = 0

    def read(self) -> Iterator[tuple[int, Event]]:
        """Yield the new events with their numbers; none if the log is missing or damaged."""
        try:
            data = read_file(self.path, start=self._offset)
        except OSError as error:
            if is_storage_trouble(error):
                raise
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
    return [event for _, event in EventReader(folder.events).read()]


def time_of_last(folder: JobFolder) -> float:
    events = events_in(folder)
    return events[-1].time if events else 0.0


def change_by(event: Event, folder: Path) -> tuple[JobState, dict[str, Any]] | None:
    if not isinstance(event, SectionFinished | Finished | Cancelled | Failed):
        return None
    # The path is stored relative to the job's folder, so that an outputs folder can be moved.
    video = event.video
    if video is not None:  # the folder may have been moved since an earlier version wrote the event
        is_inside = Path(video).is_relative_to(folder)
        video = str(Path(video).relative_to(folder)) if is_inside else Path(video).name or None
    facts: dict[str, Any] = {"video": video, "frames": event.frames, "message": "", "remedy": ""}
    if isinstance(event, SectionFinished):
        return "running", facts
    facts["ended"] = round(time.time(), 3)
    if isinstance(event, Finished):
        return "finished", facts
    if isinstance(event, Cancelled):
        return "cancelled", facts
    return "failed", facts | {"message": event.message, "remedy": event.remedy}
