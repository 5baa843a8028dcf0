"""The rows of the job index: what a row holds, and how it is made from a job's folder and read as a job."""

from __future__ import annotations

import logging
import os
import sqlite3
import time
import zlib
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

from app.jobs.job import Job
from app.jobs.storage.folders import job_folders
from app.jobs.storage.logs import StateLog
from app.jobs.storage.trouble import DamagedRow
from diffusers_helper.conditions.pictures import DAMAGED, request_content, stored_request
from diffusers_helper.errors import InputError
from diffusers_helper.library_errors import is_storage_trouble
from diffusers_helper.machine.file_locks import is_locked
from diffusers_helper.provenance.job_folder import JobFolder
from diffusers_helper.provenance.lineage import Lineage
from diffusers_helper.request import SETTINGS, GenerationRequest

_log = logging.getLogger(__name__)
_COLUMNS = {
    "id": "TEXT PRIMARY KEY", "state": "TEXT NOT NULL", "place": "REAL NOT NULL", "created": "REAL NOT NULL",
    "started": "REAL", "ended": "REAL", "video": "TEXT", "frames": "INTEGER NOT NULL",
    "message": "TEXT NOT NULL", "remedy": "TEXT NOT NULL", "favourite": "INTEGER NOT NULL",
    "card": "TEXT NOT NULL", "request": "TEXT NOT NULL", "damage": "TEXT NOT NULL", "model": "TEXT NOT NULL",
    "seconds": "REAL NOT NULL", "words": "TEXT NOT NULL", "parent": "TEXT NOT NULL", "stamp": "TEXT NOT NULL",
}  # fmt: skip
COLUMNS = ", ".join((*_COLUMNS, "sum"))
VERSION = zlib.crc32(repr((8, *_COLUMNS, *SETTINGS)).encode()) >> 1  # an index of another version is rebuilt
SCHEMA = f"""
DROP TABLE IF EXISTS jobs;
CREATE TABLE jobs ({", ".join(f"{name} {kind}" for name, kind in _COLUMNS.items())}, sum INTEGER NOT NULL);
CREATE INDEX jobs_by_state ON jobs (state, place);
CREATE INDEX jobs_by_place ON jobs (place);
CREATE INDEX jobs_by_time ON jobs (created, id);
PRAGMA user_version = {VERSION};
"""
_REMEDIES = {
    "log": "Resume the job; it continues from its finished work.",
    "request": DAMAGED,
}


def agree(database: sqlite3.Connection, outputs: Path) -> None:
    """Read the folders that have changed since the index was written, and remove missing ones from it.

    Rows that were edited by hand do not count.
    """
    rows = database.execute(f"SELECT {COLUMNS} FROM jobs").fetchall()
    known = {row["id"]: row["stamp"] if row["sum"] == _sum(row) else "" for row in rows}
    there = {folder.job: folder for folder in job_folders(outputs)}
    for job_id in known.keys() - there.keys():
        database.execute("DELETE FROM jobs WHERE id IS ?", (job_id,))
    for job_id, folder in there.items():
        if known.get(job_id) != stamp_of(folder):
            try:
                put(database, folder)
            except OSError as error:
                if is_storage_trouble(error):
                    raise
                _log.warning("The job folder %s cannot be read and is left out: %s", folder.path, error)


def stamp_of(folder: JobFolder) -> str:
    """Return a text that changes with the files from which a job's row is made."""
    found: list[str] = []
    for path in (folder.states, folder.request):
        try:
            facts = os.stat(path)
            found.append(f"{facts.st_size}.{facts.st_mtime_ns}")
        except OSError:
            found.append("-")
    return " ".join(found)


def put(database: sqlite3.Connection, folder: JobFolder) -> dict[str, Any]:
    """Copy the facts of a job's folder into the index, and return them. Any content gives a valid row.

    Call this only while the index is locked.

    Raises:
        OSError: If the folder, or the disk that it is on, is out of reach.
    """
    stamp = stamp_of(folder)
    try:
        request, odd = _request_of(request_content(folder), folder)
    except InputError as error:
        request, odd = _request_of(b"", folder)[0], error.message
    row = StateLog(folder).read()
    fault = row.pop("fault")
    row |= {"id": folder.job, "request": request.to_json(), "stamp": stamp, "model": request.model}
    row |= {"seconds": request.seconds, "words": words_of(request), "parent": _parent_of(folder)}
    row["damage"] = "request" if odd else "log" if fault else ""
    # The program that makes a job goes on, and writes its log anew with the next state.
    if row["damage"] and not is_locked(folder.states):
        message = f"The job's folder is damaged: {(odd or fault).rstrip('.')}."
        row |= {"state": "failed", "message": message, "remedy": _REMEDIES[row["damage"]]}
    _write(database, row)
    return row


def bury(database: sqlite3.Connection, job_id: str, message: str, remedy: str) -> None:
    """Mark a job as failed in the index only, because its folder cannot be used."""
    for row in database.execute(f"SELECT {COLUMNS} FROM jobs WHERE id = ?", (job_id,)).fetchall():
        failed = {"state": "failed", "ended": time.time(), "message": message, "remedy": remedy}
        _write(database, {**dict(row), **failed})


def _write(database: sqlite3.Connection, row: dict[str, Any]) -> None:
    values = [*(row[column] for column in _COLUMNS), _sum(row)]
    marks = ", ".join("?" * len(values))
    database.execute(f"INSERT OR REPLACE INTO jobs ({COLUMNS}) VALUES ({marks})", values)


def _sum(row: sqlite3.Row | dict[str, Any]) -> int:
    """Return the checksum of a row, which shows that it was edited by hand."""
    values = [float(value) if isinstance(value := row[column], int) else value for column in _COLUMNS]
    return zlib.crc32(repr(values).encode("utf-8", "replace"))


def check_rows(rows: Iterable[sqlite3.Row]) -> None:
    """Raise DamagedRow if one of the rows was edited by hand."""
    for row in rows:
        if row["sum"] != _sum(row):
            raise DamagedRow(f"the row of job {row['id']} was not written by Longtake")


@lru_cache(maxsize=8192)
def _request_of(content: bytes, folder: JobFolder) -> tuple[GenerationRequest, str]:
    """Return a request from its JSON, and a clause about damage; nothing is known of a damaged one.

    It is cached, because a page reads a long queue again and again.
    """
    try:
        return stored_request(content, folder), ""
    except InputError as error:
        return GenerationRequest(image=str(folder.input)), error.message


def _parent_of(folder: JobFolder) -> str:
    try:
        return Lineage.read(folder.lineage).parent
    except (InputError, OSError):  # the file is damaged; making the job reports it
        return ""


def words_of(request: GenerationRequest) -> str:
    """Return the text that a search looks through, with case folded."""
    return f"{request.prompt}\n{request.negative}\n{request.seed}".casefold()


def job_from_row(outputs: Path, row: sqlite3.Row | dict[str, Any]) -> Job:
    """Return a row as a job, with paths below `outputs`, so that an outputs folder can be moved."""
    folder = _folder(outputs, row["id"])
    facts: dict[str, Any] = {name: row[name] for name in Job.__dataclass_fields__ if name in _COLUMNS}
    facts["request"] = _request_of(row["request"].encode(), folder)[0]
    facts["favourite"] = bool(row["favourite"])
    facts["video"] = None if row["video"] is None else folder.path / row["video"]
    return Job(**facts, folder=folder.path)


@lru_cache(maxsize=8192)
def _folder(outputs: Path, job_id: str) -> JobFolder:
    return JobFolder(outputs / job_id)
