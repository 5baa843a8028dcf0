"""The SQLite index of the job folders, which can be rebuilt at any moment."""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import time
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

from app.jobs.job import Job
from app.jobs.storage.state_log import StateLog
from diffusers_helper.errors import InputError
from diffusers_helper.events import Cancelled, Event, Failed, Finished
from diffusers_helper.output.job_folder import JobFolder
from diffusers_helper.output.lineage import Lineage
from diffusers_helper.request import GenerationRequest
from diffusers_helper.strangers.limited_json import parse_json, read_short

_MOST_REQUEST = 2**18  # bytes; the longest prompts and sixteen LoRAs have half of it
_log = logging.getLogger(__name__)
# The wait for a locked index is short, because it delays the page. Necessary writes are repeated.
_BUSY_SECONDS = 2.0
# An index of another version is rebuilt.
_VERSION = 4
_COLUMNS = (
    "id", "state", "place", "created", "started", "ended", "video", "frames", "message", "remedy",
    "favourite", "request", "size", "model", "seconds", "words", "parent",
)  # fmt: skip
_SCHEMA = f"""
DROP TABLE IF EXISTS jobs;
CREATE TABLE jobs (
    id TEXT PRIMARY KEY, state TEXT NOT NULL, place REAL NOT NULL, created REAL NOT NULL, started REAL,
    ended REAL, video TEXT, frames INTEGER NOT NULL, message TEXT NOT NULL, remedy TEXT NOT NULL,
    favourite INTEGER NOT NULL, request TEXT NOT NULL, size INTEGER NOT NULL, model TEXT NOT NULL,
    seconds REAL NOT NULL, words TEXT NOT NULL, parent TEXT NOT NULL
);
CREATE INDEX jobs_by_state ON jobs (state, place);
CREATE INDEX jobs_by_place ON jobs (place);
CREATE INDEX jobs_by_time ON jobs (created, id);
PRAGMA user_version = {_VERSION};
"""


def open_index(path: Path) -> sqlite3.Connection:
    """Open the index and bring it up to date with the job folders; set a damaged index aside and rebuild it.

    Raises:
        sqlite3.OperationalError: If the file cannot be opened or written.
        OSError: If the folder cannot be read.
    """
    try:
        return _open(path)
    except sqlite3.OperationalError:
        raise
    except sqlite3.DatabaseError:
        aside = path.with_name(f"{path.name}.damaged-{time.time_ns()}")
        _log.warning("The job index %s is damaged; it is kept as %s and rebuilt.", path, aside.name)
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
        # A power cut may remove the last changes from the index. The folders keep them, because their logs
        # are synced before a change is announced, and the next start compares the two.
        database.execute("PRAGMA synchronous = NORMAL")
        database.execute("BEGIN IMMEDIATE")
        if database.execute("PRAGMA user_version").fetchone()[0] != _VERSION:
            for statement in _SCHEMA.split(";"):
                database.execute(statement)
        agree(database, path.parent.parent)
        database.execute("COMMIT")
        on_failure.pop_all()
    return database


def agree(database: sqlite3.Connection, outputs: Path) -> None:
    """Read the folders that have changed since the index was written, and remove missing ones from it."""
    known = {row["id"]: row["size"] for row in database.execute("SELECT id, size FROM jobs")}
    there = {folder.job: folder for folder in job_folders(outputs)}
    for job_id in known.keys() - there.keys():
        database.execute("DELETE FROM jobs WHERE id = ?", (job_id,))
    for job_id, folder in there.items():
        if known.get(job_id) != _size(folder):
            try:
                put(database, folder)
            except (OSError, ValueError, TypeError) as error:
                _log.warning("The job folder %s cannot be read and is left out: %s", folder.path, error)


def job_folders(outputs: Path) -> Iterable[JobFolder]:
    """Yield the folders of all jobs."""
    with os.scandir(outputs) as entries:
        names = [entry.name for entry in entries if not entry.name.startswith(".")]
    for name in names:
        if os.path.exists(f"{outputs}/{name}/request.json"):  # faster than Path, for thousands of jobs
            yield JobFolder(outputs / name)


def _size(folder: JobFolder) -> int:
    """Return the size of a job's `states.jsonl`, which grows with each change; -1 if there is none."""
    try:
        return os.stat(folder.states).st_size
    except FileNotFoundError:
        return -1


def put(database: sqlite3.Connection, folder: JobFolder) -> dict[str, Any]:
    """Copy the facts of a job's folder into the index, and return them.

    Raises:
        OSError, ValueError: If the folder cannot be read.
    """
    text = read_short(folder.request, _MOST_REQUEST).decode()
    size = _size(folder)
    row = {**StateLog(folder).read(), "id": folder.job, "request": text, "size": size}
    request = job_from_row(folder.path.parent, row).request  # raises for a request of another version
    row |= {"model": request.model, "seconds": request.seconds, "words": words_of(request)}
    row["parent"] = _parent_of(folder)
    marks = ", ".join("?" * len(_COLUMNS))
    database.execute(
        f"INSERT OR REPLACE INTO jobs ({', '.join(_COLUMNS)}) VALUES ({marks})",
        tuple(row[column] for column in _COLUMNS),
    )
    return row


def _parent_of(folder: JobFolder) -> str:
    """Return the id of the job that a branch was made from; empty for any other job."""
    try:
        return Lineage.read(folder.lineage).parent
    except InputError:  # the file is damaged; making the job reports it
        return ""


def words_of(request: GenerationRequest) -> str:
    """Return the text that a search looks through, with case folded."""
    return f"{request.prompt}\n{request.negative}\n{request.seed}".casefold()


def job_from_row(outputs: Path, row: sqlite3.Row | dict[str, Any]) -> Job:
    """Return a row as a job, with paths below `outputs`, so that an outputs folder can be moved."""
    folder, image = _paths(outputs, row["id"])
    return Job(
        id=row["id"],
        state=row["state"],
        request=_request(row["request"], image),
        folder=folder,
        created=row["created"],
        place=row["place"],
        started=row["started"],
        ended=row["ended"],
        video=None if row["video"] is None else folder / row["video"],
        frames=row["frames"],
        message=row["message"],
        remedy=row["remedy"],
        favourite=bool(row["favourite"]),
    )


@lru_cache(maxsize=8192)
def _paths(outputs: Path, job_id: str) -> tuple[Path, str]:
    """Return a job's folder and the path of its picture."""
    folder = JobFolder(outputs / job_id)
    return folder.path, str(folder.input)


@lru_cache(maxsize=8192)
def _request(text: str, image: str) -> GenerationRequest:
    """Return a request from its JSON. It is cached, because a page reads a long queue again and again."""
    return GenerationRequest.from_dict({**parse_json(text.encode()), "image": image})


def final_event(job: Job) -> Event:
    """Return a final event for a job that is over, made from its facts in the index."""
    seconds = (job.ended or job.created) - (job.started or job.created)
    video = None if job.video is None else str(job.video)
    if job.state == "finished" and video is not None:
        return Finished(job=job.id, time=seconds, video=video, frames=job.frames, seconds=seconds)
    if job.state == "cancelled":
        return Cancelled(job=job.id, time=seconds, video=video, frames=job.frames)
    return Failed(
        job=job.id, time=seconds, message=job.message, remedy=job.remedy, video=video, frames=job.frames
    )
