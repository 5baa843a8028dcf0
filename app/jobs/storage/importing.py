"""How jobs come into the database from their folders, as those of earlier versions do.

All of them do if the database was lost. Nothing starts by that: unfinished jobs arrive paused.
"""

import json
import logging
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any, cast

from app.jobs.job import BEGUN, COMMANDS, OVER, TRANSITIONS
from app.jobs.storage.commands import LEAVE, apply_commands
from app.jobs.storage.database import DATABASE_FOLDER
from app.jobs.storage.folders import folder_names
from app.jobs.storage.logs import append_line, change_by, events_in
from app.jobs.storage.rows import (
    add_transition,
    facts_of_request,
    insert_row,
    request_facts,
    update_row,
    words_of_damage,
)
from diffusers_helper.errors import InputError
from diffusers_helper.files import json_line, read_file, sync_folder
from diffusers_helper.library_errors import is_exhausted, is_storage_trouble
from diffusers_helper.provenance.job_folder import JobFolder
from diffusers_helper.request import GenerationRequest
from diffusers_helper.untrusted.limited_json import plain_json

_log = logging.getLogger(__name__)
FOUND = {
    "message": "It was found in its folder and waits for you.",
    "remedy": "Resume it, or the whole queue.",
}
_MARK = "newer"  # in the lines of `states.jsonl` that this version writes for version 0.2
_NOT_YOURS = {
    "state": "failed",
    "message": "A newer version of Longtake makes this video.",
    "remedy": "Use that version.",
}
_ENDED = ("state", "message", "remedy")
_NUMBER = int | float
# The facts in a line of `states.jsonl` that count, with their types.
_KINDS: dict[str, Any] = {
    "place": _NUMBER, "created": _NUMBER, "started": _NUMBER | None, "ended": _NUMBER | None,
    "video": str | None, "frames": int, "message": str, "remedy": str, "card": str, "favourite": bool,
    "deaths": int, "death": str, "state": str, "time": _NUMBER, "reason": str, "press": str, _MARK: bool,
}  # fmt: skip


def import_jobs(
    database: sqlite3.Connection,
    outputs: Path,
    *,
    is_new: bool = False,
    can_write: bool = True,
    anew: bool = False,
) -> None:
    """Add the jobs without a row, and mark those without a folder.

    Args:
        is_new: Whether the database was just made. The queue is then paused if a job is unfinished.
        anew: Whether to read the requests of all jobs anew.
    """
    rows = {row["id"]: row for row in database.execute("SELECT id, damage, removed FROM jobs")}
    names = set(folder_names(outputs, rows))
    unfinished = list[str]()
    for name in sorted(names):
        folder = JobFolder(outputs / name)
        try:
            if name not in rows:
                unfinished += _import(database, folder, can_write=can_write)
            elif rows[name]["removed"] is not None or rows[name]["damage"] or anew:
                update_row(database, name, removed=None, **request_facts(folder))
        except InputError as error:
            update_row(database, name, removed=None, damage="request", **words_of_damage(error))
        except OSError as error:  # one unreadable job must not hold up the others
            if is_exhausted(error):
                raise
            _log.warning("The job folder %s cannot be read now: %s", folder.path, error)
    for name in rows.keys() - names:
        if rows[name]["removed"] is None and rows[name]["damage"] != "folder":
            in_trash = (outputs / DATABASE_FOLDER / "trash" / name).is_dir()
            update_row(database, name, **({"removed": time.time()} if in_trash else {"damage": "folder"}))
    was_paused = (outputs / DATABASE_FOLDER / "held").exists()  # by version 0.2
    if is_new and (unfinished or was_paused):
        _log.info("The list of jobs was made from their folders. The queue is paused until you resume it.")
        database.execute("UPDATE folder SET paused = ?", (json.dumps(unfinished),))


def mark_for_old_versions(folder: JobFolder, **facts: Any) -> None:
    """Add a line to `states.jsonl` that keeps version 0.2 from making a job.

    The facts are those that would be lost with the database, or the state of a job that is over.
    """
    line = {**_NOT_YOURS, "time": round(time.time(), 3), **facts, _MARK: True}
    append_line(folder.states, json_line(line), sync=True)


def _import(database: sqlite3.Connection, folder: JobFolder, *, can_write: bool) -> list[str]:
    """Add one job, and return its id in a list if it would go on by itself in the version that made it."""
    lines = list(_lines(folder))
    facts = _facts_of(folder, lines)
    state = facts["state"]
    try:
        request = request_facts(folder)
    except InputError as error:
        request = facts_of_request(GenerationRequest(image=str(folder.input))) | {"damage": "request"}
        facts |= {"state": "failed", **words_of_damage(error)}
    else:
        if state not in (*OVER, "paused"):
            facts |= {"state": "paused", "ended": None, **FOUND}
    insert_row(database, {"id": folder.job, **facts, **request})
    for line in lines:
        if "state" in line and _MARK not in line:
            reason = line.get("reason") or line.get("message", "")
            add_transition(database, folder.job, line["state"], reason, line.get("time", 0.0))
    if facts["state"] != state:
        add_transition(database, folder.job, facts["state"], facts["message"])
    if can_write and not any(_MARK in line for line in lines):
        for command in COMMANDS:
            file = folder.path / f"wish-{command}"
            if file.is_file() and command != "pause":
                content = read_file(file).decode("utf-8", "replace")
                database.execute(LEAVE, (folder.job, command, content))
        apply_commands(database, folder)
        mark_for_old_versions(folder, **({name: facts[name] for name in _ENDED} if state in OVER else {}))
        sync_folder(folder.path)
    return [folder.job] if facts["state"] == "paused" != state else []


def _lines(folder: JobFolder) -> Iterator[dict[str, Any]]:
    """Yield the facts in the lines of a job's `states.jsonl` that a version of Longtake can have written."""
    try:
        content = read_file(folder.states)
    except OSError as error:
        if is_storage_trouble(error):
            raise
        return
    for text in content.splitlines():
        with suppress(ValueError):
            line: Any = plain_json(text)
            items = cast(dict[str, Any], line).items() if isinstance(line, dict) else ()
            yield {name: value for name, value in items if name in _KINDS and _fits(name, value)}


def _fits(name: str, value: Any) -> bool:
    if name == "state":
        return value in tuple(TRANSITIONS)
    if name == "video" and isinstance(value, str):  # in the job's folder
        return bool(value) and PurePosixPath(value).name == value
    return _KINDS[name] is bool if isinstance(value, bool) else isinstance(value, _KINDS[name])


def _facts_of(folder: JobFolder, lines: list[dict[str, Any]]) -> dict[str, Any]:
    """Collect a job's state and facts from its lines, and from its events where those do not have them.

    Version 0.1 wrote no lines, and this version writes none after the first.
    """
    created = (folder.request if folder.request.exists() else folder.path).stat().st_mtime
    facts: dict[str, Any] = {"state": "queued", "created": created, "place": created}
    facts |= {"message": "", "remedy": ""}
    last = None
    for last in events_in(folder):
        if change := change_by(last, folder.path):
            facts |= {"state": change[0], **change[1]}
    if last is not None:
        written = os.stat(folder.events).st_mtime
        facts |= {"started": max(0.0, written - last.time), "ended": written if last.is_final else None}
    if (last is None and folder.has_begun) or (last is not None and not last.is_final):
        facts["state"] = "interrupted"
    is_marked = any(_MARK in line for line in lines)
    for line in lines:
        names = ("created", "place", "favourite", "press") if is_marked else line.keys() - {"time", "reason"}
        facts |= {name: line[name] for name in names if name in line}
    if facts["state"] in BEGUN:
        facts["state"] = "interrupted"
    return facts
