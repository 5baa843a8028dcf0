"""The rows of the database of jobs: how they are written in a transaction, and read as jobs."""

import sqlite3
import time
import unicodedata
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from app.jobs.job import BEGUN, TRANSITIONS, Job, JobState, NoSuchJob
from diffusers_helper.conditions.pictures import DAMAGED, request_content, stored_request
from diffusers_helper.errors import InputError
from diffusers_helper.provenance.job_folder import JobFolder
from diffusers_helper.provenance.lineage import Lineage
from diffusers_helper.request import GenerationRequest

_HIRAGANA = {katakana: katakana - 0x60 for katakana in range(0x30A1, 0x30F7)}
_COLUMNS = Job.__dataclass_fields__.keys() - {"folder", "position"}
_MISSING = {"message": "The job's folder is missing.", "remedy": "Put it back, or remove the job."}


@dataclass(frozen=True, slots=True)
class Transition:
    """A change of a job's state. Old versions did not record the time, then 0, and the reason."""

    state: JobState
    time: float
    reason: str


def row_of(database: sqlite3.Connection, job_id: str) -> sqlite3.Row:
    row: sqlite3.Row | None = database.execute("SELECT * FROM listed WHERE id = ?", (job_id,)).fetchone()
    if row is None:
        raise NoSuchJob(job_id)
    return row


def insert_row(database: sqlite3.Connection, facts: Mapping[str, Any]) -> None:
    marks = ", ".join("?" * len(facts))
    names = ", ".join(facts)
    database.execute(f"INSERT OR REPLACE INTO jobs ({names}) VALUES ({marks})", tuple(facts.values()))


def update_row(database: sqlite3.Connection, job_id: str, **facts: Any) -> None:
    changes = ", ".join(f"{name} = ?" for name in facts)
    database.execute(f"UPDATE jobs SET {changes} WHERE id = ?", (*facts.values(), job_id))


def enter_state(
    database: sqlite3.Connection, job_id: str, state: JobState, *, reason: str = "", **facts: Any
) -> None:
    """Give a job a state, which may equal the present one, and facts; the message may be the reason."""
    current: JobState = row_of(database, job_id)["state"]
    if state not in (current, *TRANSITIONS[current]):
        raise InputError(
            f"Job {job_id} is {current}; it cannot become {state}.", "Look at the job, and try again."
        )
    if state != current:
        add_transition(database, job_id, state, reason or facts.get("message", ""))
    if state not in BEGUN:
        facts["owner"] = ""
    update_row(database, job_id, state=state, **facts)


def add_transition(
    database: sqlite3.Connection, job_id: str, state: JobState, reason: str, seconds: float | None = None
) -> None:
    values = job_id, round(time.time() if seconds is None else seconds, 3), state, reason
    database.execute("INSERT INTO transitions (job, time, state, reason) VALUES (?, ?, ?, ?)", values)


def request_facts(folder: JobFolder) -> dict[str, Any]:
    """Read the request and the lineage in a job's folder as the columns for search and lists."""
    facts = facts_of_request(stored_request(request_content(folder), folder))
    with suppress(InputError, OSError):  # a damaged lineage is reported when the job is made
        lineage = Lineage.read(folder.lineage)
        facts |= {"parent": lineage.parent, "kept": lineage.kept}
    return facts


def words_of_damage(error: InputError) -> dict[str, str]:
    message = f"The job's folder is damaged: {error.message.rstrip('.')}."
    return {"message": message, "remedy": DAMAGED}


def facts_of_request(request: GenerationRequest) -> dict[str, Any]:
    return {
        "request": request.to_json(), "model": request.model, "seconds": request.seconds, "damage": "",
        "words": searchable(f"{request.prompt}\n{request.negative}\n{request.seed}"), "parent": "", "kept": 0,
    }  # fmt: skip


def searchable(text: str) -> str:
    """Fold what a search takes for the same: case, width of letters, and the two kinds of kana."""
    return unicodedata.normalize("NFKC", text).casefold().translate(_HIRAGANA)


def job_from_row(outputs: Path, row: sqlite3.Row) -> Job:
    """Read a row as a job, with paths below `outputs`, so that an outputs folder can be moved."""
    folder = JobFolder(outputs / row["id"])
    facts: dict[str, Any] = {name: row[name] for name in _COLUMNS}
    facts["position"] = row["place"]
    facts["request"] = _request_of(row["request"].encode(), folder)
    facts["favourite"] = bool(row["favourite"])
    facts["video"] = None if row["video"] is None else folder.path / row["video"]
    facts |= _MISSING if row["damage"] == "folder" else {}
    return Job(**facts, folder=folder.path)


@lru_cache(maxsize=8192)
def _request_of(content: bytes, folder: JobFolder) -> GenerationRequest:
    """Read a request. It is cached, because a page reads a long queue again and again."""
    return stored_request(content, folder)
