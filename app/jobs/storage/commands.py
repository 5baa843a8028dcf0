"""The commands of users for jobs, and what becomes of jobs that no program makes any more.

Any program may leave a command. The worker of whoever makes the job reads it at its beat and carries it out;
`apply_commands` does so for jobs that no program makes, since a command outlasts the death of the maker.
"""

import logging
import shutil
import sqlite3
from collections.abc import Collection
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, cast

from app.jobs.job import BEGUN, COMMANDS, OVER, Command
from app.jobs.storage.database import DATABASE_FILE, DATABASE_FOLDER, connect
from app.jobs.storage.logs import append_event, change_by, events_in
from app.jobs.storage.rows import enter_state, request_facts, row_of, update_row
from app.jobs.storage.trouble import TROUBLE
from diffusers_helper import events
from diffusers_helper.conditions.pictures import (
    picture_paths,
    request_content,
    store_request,
    stored_pictures,
    stored_request,
)
from diffusers_helper.errors import InputError
from diffusers_helper.events import Event
from diffusers_helper.files import replacing, sync_folder
from diffusers_helper.provenance.branch import change_remaining
from diffusers_helper.provenance.job_folder import JobFolder
from diffusers_helper.untrusted.limited_json import plain_json

_log = logging.getLogger(__name__)
COMMANDS_QUERY = "SELECT command FROM commands WHERE job = ?"
LEAVE = "INSERT OR REPLACE INTO commands (job, command, content) VALUES (?, ?, ?)"
TAKEN_OVER = "Longtake was ended while it was making this video. It was resumed; no finished work was lost."
INTERRUPTED: dict[str, Any] = {
    "message": "Longtake was ended while it was making this video.",
    "remedy": "It continues when the page is started on this folder, or with: generate --resume",
}
PAUSED: dict[str, Any] = {"message": "Paused.", "remedy": ""}
# The deaths of the program at one point of a job after which the job fails. The job is usually not their
# cause, but one that takes the whole machine down would otherwise be started again for ever.
_MOST_DEATHS = 50
WAITS: dict[str, Any] = PAUSED | {"message": "Your turn: go on, change the words, or try takes."}


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
    if not isinstance(event, events.SectionFinished) or event.section >= event.sections:
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


def apply_commands(database: sqlite3.Connection, folder: JobFolder, *, adopt: bool = False) -> None:
    """Carry out the commands for a job that no living program makes.

    A job whose program has ended becomes interrupted first, and is queued at last if `adopt` is true.
    """
    row = row_of(database, folder.job)
    last = None
    try:
        last = next(reversed(events_in(folder)), None)
    except OSError:
        if row["state"] in BEGUN or adopt:
            raise
    if row["state"] in BEGUN:
        counted = _count_death(folder, row, last)
        enter_state(database, folder.job, "interrupted", **INTERRUPTED, **counted)
        folder.remove_leftovers()
    carry_out_change(database, folder)
    row = row_of(database, folder.job)
    if row["state"] in OVER:
        return
    facts: dict[str, Any] = {"job": folder.job, "time": last.time if last is not None else 0.0}
    commands = read_commands(database, folder.job)
    is_interrupted = row["state"] == "interrupted"
    if "cancel" in commands or (is_interrupted and row["deaths"] >= _MOST_DEATHS and "pause" not in commands):
        facts["video"], facts["frames"] = salvage(folder, row["video"], row["frames"])
        end = events.Cancelled(**facts) if "cancel" in commands else events.Failed(
            **facts, code="engine_died",
            message=f"Longtake was ended {row['deaths']} times at the same point of this video.",
            remedy="Resume it to try again; the finished sections are kept.",
        )  # fmt: skip
        state, changes = change_by(end, folder.path) or ("cancelled", {})
        reason = "You ended it." if "cancel" in commands else ""
        enter_state(database, folder.job, state, reason=reason, **changes)
        _report(folder, end)
    elif "pause" in commands:
        enter_state(database, folder.job, "paused", **PAUSED)
    elif is_interrupted and adopt:
        enter_state(database, folder.job, "queued", reason=TAKEN_OVER, message="", remedy="")
        _report(folder, events.Warned(**facts, message=TAKEN_OVER))
        return
    else:
        return
    forget_commands(database, folder.job)


def _count_death(folder: JobFolder, row: sqlite3.Row, last: Event | None) -> dict[str, Any]:
    if not isinstance(last, events.StageStarted | events.StepDone | events.PieceDone):
        return {}  # the engine had not begun
    step = last.step if isinstance(last, events.StepDone) else 0
    death = f"{folder.checkpoints} checkpoints, {type(last).__name__} {last.section} {step}"
    return {"death": death, "deaths": row["deaths"] + 1 if death == row["death"] else 1}


def _report(folder: JobFolder, event: Event) -> None:
    """Add an event to a job's log. A log that cannot be written is skipped, for the sake of other jobs."""
    try:
        append_event(folder.events, event)
    except OSError as error:
        _log.warning("%s cannot be written (%s)", folder.events, error.strerror)


def salvage(folder: JobFolder, video: str | Path | None, frames: int) -> tuple[str | None, int]:
    """Tidy the folder of a job that does not continue, as if it had ended normally.

    This removes unfinished files and copies the last video shown to the path of the finished one, which is
    returned with its number of frames.
    """
    with suppress(OSError):
        folder.remove_leftovers()
    if video is None or not (source := folder.path / video).exists():
        return None, 0
    with suppress(OSError):  # on a full disk, the video stays where it is
        if source != folder.video:
            with replacing(folder.video) as temporary:
                shutil.copyfile(source, temporary)
            sync_folder(folder.path)
    return str(folder.video if folder.video.exists() else source), frames
