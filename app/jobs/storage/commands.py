"""The commands of users for jobs, which whoever makes a job reads at its beat and carries out.

Any program may leave a command. It outlasts the death of the job's maker; `apply_commands` in `recovery.py`
carries out those for jobs that no program makes.
"""

import logging
import sqlite3
from collections.abc import Collection
from contextlib import closing, suppress
from typing import Any, cast

from app.jobs.job import COMMANDS, Command
from app.jobs.storage.database import DATABASE_FILE, DATABASE_FOLDER, connect
from app.jobs.storage.rows import request_facts, update_row
from app.jobs.storage.trouble import TROUBLE
from diffusers_helper.conditions.pictures import (
    picture_paths,
    request_content,
    store_request,
    stored_pictures,
    stored_request,
)
from diffusers_helper.errors import InputError
from diffusers_helper.events import Event, SectionFinished
from diffusers_helper.files import sync_folder
from diffusers_helper.provenance.branch import change_remaining
from diffusers_helper.provenance.job_folder import JobFolder
from diffusers_helper.untrusted.limited_json import plain_json

_log = logging.getLogger(__name__)
COMMANDS_QUERY = "SELECT command FROM commands WHERE job = ?"
TAKEN_OVER = "Longtake was ended while it was making this video. It was resumed; no finished work was lost."
INTERRUPTED: dict[str, Any] = {
    "message": "Longtake was ended while it was making this video.",
    "remedy": "It continues when the page is started on this folder, or with: generate --resume",
}
PAUSED: dict[str, Any] = {"message": "Paused.", "remedy": ""}
WAITS: dict[str, Any] = PAUSED | {"message": "Your turn: go on, change the words, or try takes."}


def leave_command(database: sqlite3.Connection, job_id: str, command: Command, content: str = "") -> None:
    values = job_id, command, content
    database.execute("INSERT OR REPLACE INTO commands (job, command, content) VALUES (?, ?, ?)", values)


def forget_commands(database: sqlite3.Connection, job_id: str, *commands: Command) -> None:
    """Remove commands that are carried out or withdrawn; all but "wait" if none is named."""
    for command in commands or (command for command in COMMANDS if command != "wait"):
        database.execute("DELETE FROM commands WHERE job = ? AND command = ?", (job_id, command))


def read_commands(database: sqlite3.Connection, job_id: str) -> set[Command]:
    return {command for (command,) in database.execute(COMMANDS_QUERY, (job_id,))}


def commands_of(folder: JobFolder) -> set[Command]:
    """Read the commands for a job from an engine's process; none if the database is out of reach."""
    file = folder.path.parent / DATABASE_FOLDER / DATABASE_FILE
    with suppress(*TROUBLE), closing(connect(file, "rw")) as database:
        return read_commands(database, folder.job)
    return set()


def ended_by(commands: Collection[Command], event: Event | None, num_finished: int) -> Command | None:
    """Choose "cancel" or "pause" if commands want a job to end so after its newest event, else None.

    Args:
        num_finished: The number of sections that were finished before, the last of which is reported again.
    """
    if not isinstance(event, SectionFinished) or event.section >= event.sections:
        return None
    if "stop_after_section" in commands:
        return "cancel"
    return "pause" if event.section > num_finished and {"wait", "change"} & set(commands) else None


def pending_change(database: sqlite3.Connection, job_id: str) -> dict[str, Any]:
    query = "SELECT content FROM commands WHERE job = ? AND command = 'change'"
    row = database.execute(query, (job_id,)).fetchone()
    return cast(dict[str, Any], plain_json(row["content"].encode())) if row else {}


def carry_out_change(database: sqlite3.Connection, folder: JobFolder) -> None:
    """Give the sections that a job has not made yet the settings of a "change" command, if there is one.

    The lineage is written before the request, and the command is removed last: whenever this is interrupted,
    the job is consistent, and the same call afterwards has the same result.
    """
    changes = pending_change(database, folder.job)
    if not changes:
        return
    try:
        request = stored_request(request_content(folder), folder)
        changed, lineage = change_remaining(folder, request, changes)
        pictures = stored_pictures(folder, picture_paths(changed))
    except (InputError, ValueError) as error:  # it was checked when it was left, so the folder is damaged
        _log.warning("Job %s: its change is left out. %s", folder.job, error)
    else:
        lineage.write(folder.lineage)
        store_request(changed, pictures, folder, final_folder=folder)
        sync_folder(folder.path)
        update_row(database, folder.job, **request_facts(folder))
    forget_commands(database, folder.job, "change")
