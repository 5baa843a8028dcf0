"""The SQLite side of the job store: the table, its rows as jobs, and how it is made anew from the folders."""

from __future__ import annotations

import contextlib
import json
import logging
import sqlite3
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from app.jobs.event_log import EventReader
from app.jobs.job import Job
from diffusers_helper.events import Cancelled, Event, Failed, Finished, SectionFinished
from diffusers_helper.output.job_folder import JobFolder
from diffusers_helper.request import GenerationRequest

_log = logging.getLogger(__name__)
_BUSY_SECONDS = 10.0
_SCHEMA = """
CREATE TABLE jobs (
    number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, owner TEXT NOT NULL, state TEXT NOT NULL,
    request TEXT NOT NULL, created REAL NOT NULL, started REAL, ended REAL, video TEXT,
    frames INTEGER NOT NULL DEFAULT 0, message TEXT NOT NULL DEFAULT '', remedy TEXT NOT NULL DEFAULT ''
);
CREATE INDEX jobs_by_state ON jobs (state, owner);
"""


def open_index(path: Path) -> sqlite3.Connection:
    """Opens the index. A missing one is made from the job folders; a damaged one is set aside first.

    Raises:
        sqlite3.OperationalError: if the file cannot be opened or written.
    """
    try:
        return _open(path)
    except sqlite3.OperationalError:
        raise
    except sqlite3.DatabaseError:
        aside = path.with_name(f"{path.name}.damaged-{time.time_ns()}")
        _log.warning("The job index %s is damaged; it is kept as %s and made anew.", path, aside.name)
        path.rename(aside)
        for suffix in ("-wal", "-shm"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)
        return _open(path)


def _open(path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    with contextlib.ExitStack() as on_failure:
        on_failure.callback(database.close)
        database.row_factory = sqlite3.Row
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = NORMAL")
        database.execute("BEGIN IMMEDIATE")
        if not database.execute("SELECT 1 FROM sqlite_master WHERE name = 'jobs'").fetchone():
            for statement in _SCHEMA.split(";"):
                database.execute(statement)
            _fill(database, path.parent.parent)
        database.execute("COMMIT")
        on_failure.pop_all()
    return database


def _fill(database: sqlite3.Connection, outputs: Path) -> None:
    for request in sorted(outputs.glob("*/request.json")):
        try:
            insert(database, _job_from_folder(JobFolder(request.parent)), owner="")
        except (OSError, ValueError, TypeError) as error:
            _log.warning("The job folder %s cannot be read and is left out: %s", request.parent, error)


def _job_from_folder(folder: JobFolder) -> Job:
    row: dict[str, Any] = dict.fromkeys(("started", "ended", "video"))
    row |= {"id": folder.job, "state": "queued", "frames": 0, "message": "", "remedy": ""}
    row["request"] = folder.request.read_text(encoding="utf-8")
    row["created"] = folder.request.stat().st_mtime
    last = None
    for _, last in EventReader(folder.events).read():
        row |= changes_by(last)
    if last is not None:
        ended = folder.events.stat().st_mtime
        row["started"] = ended - last.time
        row |= {"ended": ended} if last.is_final else {"state": "running"}
    return job_from_row(folder.path.parent, row)


def insert(database: sqlite3.Connection, job: Job, owner: str) -> None:
    """Adds a job at the end."""
    values: dict[str, Any] = {
        "id": job.id,
        "owner": owner,
        "state": job.state,
        "request": job.request.to_json(),
        "created": job.created,
        "started": job.started,
        "ended": job.ended,
        "video": None if job.video is None else relative(job.folder, str(job.video)),
        "frames": job.frames,
        "message": job.message,
        "remedy": job.remedy,
    }
    columns, marks = ", ".join(values), ", ".join("?" * len(values))
    database.execute(f"INSERT INTO jobs ({columns}) VALUES ({marks})", tuple(values.values()))


def job_from_row(outputs: Path, row: sqlite3.Row | dict[str, Any]) -> Job:
    """A row as a job. The paths follow the folder, so that an outputs folder can be moved."""
    folder = JobFolder(outputs / row["id"])
    request = GenerationRequest.from_dict(json.loads(row["request"]))
    return Job(
        id=row["id"],
        state=row["state"],
        request=replace(request, image=str(folder.input)),
        folder=folder.path,
        created=row["created"],
        started=row["started"],
        ended=row["ended"],
        video=None if row["video"] is None else folder.path / row["video"],
        frames=row["frames"],
        message=row["message"],
        remedy=row["remedy"],
    )


def changes_by(event: Event) -> dict[str, Any]:
    """The columns, with their new values, that an event changes."""
    changes: dict[str, Any] = {}
    if isinstance(event, SectionFinished | Finished | Cancelled | Failed):
        changes = {"video": event.video, "frames": event.frames}
    if isinstance(event, Finished):
        changes["state"] = "finished"
    elif isinstance(event, Cancelled):
        changes["state"] = "cancelled"
    elif isinstance(event, Failed):
        changes |= {"state": "failed", "message": event.message, "remedy": event.remedy}
    return changes


def changed_by(job: Job, event: Event) -> Job:
    """The job as a row with the event's changes would give it, but for the time of its end."""
    changes = changes_by(event)
    if changes.get("video") is not None:
        changes["video"] = job.folder / changes["video"]
    return replace(job, **changes)


def final_event(job: Job) -> Event:
    """The final event of a job that is over, from what the index knows of it."""
    seconds = (job.ended or job.created) - (job.started or job.created)
    video = None if job.video is None else str(job.video)
    if job.state == "finished" and video is not None:
        return Finished(job=job.id, time=seconds, video=video, frames=job.frames, seconds=seconds)
    if job.state == "cancelled":
        return Cancelled(job=job.id, time=seconds, video=video, frames=job.frames)
    return Failed(
        job=job.id, time=seconds, message=job.message, remedy=job.remedy, video=video, frames=job.frames
    )


def relative(folder: Path, video: str) -> str:
    """The path as seen from the job's folder."""
    return str(Path(video).relative_to(folder)) if Path(video).is_relative_to(folder) else video
