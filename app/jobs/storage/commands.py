"""The commands of users, which are files in the jobs' folders, and the taking over of jobs without a maker.

Any process may leave a command for a job that is being made. The process that makes the job looks for them at
each sign of life of its engine, and at least twice a second; they outlast its death. Their files are empty,
since such files can be created even on a full disk; only a "change" has content. `settle` carries out those
for jobs that no process makes.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import sqlite3
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, cast

from app.jobs.job import BEGUN, COMMANDS, OVER, Command
from app.jobs.storage.logs import StateLog, append_event, change_by, events_in
from app.jobs.storage.rows import put
from diffusers_helper.conditions.pictures import (
    picture_paths,
    request_content,
    store_request,
    stored_pictures,
    stored_request,
)
from diffusers_helper.errors import InputError
from diffusers_helper.events import (
    Cancelled,
    Event,
    Failed,
    PieceDone,
    SectionFinished,
    StageStarted,
    StepDone,
    Warned,
)
from diffusers_helper.files import read_file, replacing, sync_folder, write_atomic
from diffusers_helper.library_errors import is_storage_trouble
from diffusers_helper.machine.file_locks import is_locked
from diffusers_helper.provenance.branch import change_remaining
from diffusers_helper.provenance.job_folder import JobFolder
from diffusers_helper.untrusted.limited_json import plain_json

_log = logging.getLogger(__name__)
_COMMAND = "wish-"
TAKEN_OVER = "Longtake was ended while it was making this video. It was resumed; no finished work was lost."
INTERRUPTED: dict[str, Any] = {
    "message": "Longtake was ended while it was making this video.",
    "remedy": "It continues when the page is started on this folder, or with: generate --resume",
}
PAUSED: dict[str, Any] = {"message": "Paused by you.", "remedy": "It continues when you resume it."}
WAITS: dict[str, Any] = PAUSED | {"message": "Waits for you after each section."}
# The deaths of the program at one point of a job after which the job fails. The job is usually not their
# cause, but one that takes the whole machine down would otherwise be started again for ever.
_MOST_DEATHS = 50


def leave_command(folder: JobFolder, command: Command, content: bytes = b"") -> None:
    """Leave a command, and return when it is on the disk."""
    file = folder.path / f"{_COMMAND}{command}"
    if content:
        write_atomic(file, content)
    else:
        file.touch()
    sync_folder(folder.path)


def commands_of(folder: JobFolder, cancelled: Collection[str] = ()) -> set[Command]:
    """Return the commands that have not been carried out yet.

    Args:
        cancelled: The jobs that are to end although no file says so (`JobStore.cancelled`).
    """
    found: set[Command] = {one for one in COMMANDS if (folder.path / f"{_COMMAND}{one}").is_file()}
    if folder.job in cancelled:
        found.add("cancel")
    return found


def ended_by(commands: Collection[Command], event: Event | None, kept: int) -> Command | None:
    """Return "cancel" or "pause" if commands want a job to end so after its newest event, else None.

    Args:
        kept: The number of sections that were finished before, the last of which is reported again.
    """
    if not isinstance(event, SectionFinished) or event.section >= event.sections:
        return None
    if "stop_after_section" in commands:
        return "cancel"
    return "pause" if event.section > kept and {"wait", "change"} & set(commands) else None


def pending_change(folder: JobFolder) -> dict[str, Any]:
    """Return the settings of a "change" command that was not carried out yet; none if there is none."""
    try:
        found: Any = plain_json(read_file(folder.path / f"{_COMMAND}change"))
    except FileNotFoundError:
        return {}
    except ValueError as error:  # it was checked when it was left, so it is damaged
        _log.warning("Job %s: its change is left out. %s", folder.job, error)
        return {}
    return cast(dict[str, Any], found) if isinstance(found, dict) else {}


def carry_out_change(folder: JobFolder) -> None:
    """Give the sections that a job has not made yet the settings of a "change" command, if there is one.

    The lineage is written before the request, and the command is removed last: whenever this is interrupted,
    the job is consistent, and the same call afterwards has the same result.
    """
    if "change" not in commands_of(folder):
        return
    try:
        request = stored_request(request_content(folder), folder)
        changed, lineage = change_remaining(folder, request, pending_change(folder))
        pictures = stored_pictures(folder, picture_paths(changed))
    except (InputError, ValueError) as error:  # it was checked when it was left, so it is damaged
        _log.warning("Job %s: its change is left out. %s", folder.job, error)
    else:
        lineage.write(folder.lineage)
        store_request(changed, pictures, folder, final_folder=folder)
        sync_folder(folder.path)
    forget_commands(folder, "change")


def forget_commands(folder: JobFolder, *commands: Command) -> None:
    """Remove commands that are carried out or withdrawn; all but "wait" if none is named."""
    for command in commands or (one for one in COMMANDS if one != "wait"):
        with contextlib.suppress(FileNotFoundError, IsADirectoryError):
            (folder.path / f"{_COMMAND}{command}").unlink()


def recover(database: sqlite3.Connection, outputs: Path, makes: Callable[[str], bool]) -> None:
    """Settle the jobs that were begun, and queue those of them that this process makes; see `settle`."""
    states = ", ".join(f"'{state}'" for state in (*BEGUN, "interrupted"))
    for row in database.execute(f"SELECT id FROM jobs WHERE state IN ({states})").fetchall():
        folder = JobFolder(outputs / row["id"])
        if not folder.path.exists():
            if outputs.is_dir():
                database.execute("DELETE FROM jobs WHERE id = ?", (row["id"],))
            continue
        try:
            settle(database, folder, adopt=makes(folder.job))
        except OSError as error:  # one unreadable job must not hold up the others
            if is_storage_trouble(error):
                raise
            _log.warning("Job %s cannot be taken over: %s", folder.job, error)


def settle(database: sqlite3.Connection, folder: JobFolder, *, adopt: bool = False) -> None:
    """Carry out the commands for a job, unless a living process makes it, which then does so.

    A job whose process has ended becomes interrupted first, and is queued at last if `adopt` is true. Call
    this only while the index is locked.
    """
    if not is_locked(folder.states):
        _settle(folder, adopt=adopt)
        put(database, folder)


def _settle(folder: JobFolder, *, adopt: bool) -> None:
    log = StateLog(folder)
    facts = log.read()
    if facts["fault"]:
        return
    events = events_in(folder)
    last = events[-1] if events else None
    if facts["state"] in BEGUN and last is not None and last.is_final:
        state, end = change_by(last, folder.path) or ("cancelled", {})  # its final event reached the log
        facts = log.enter(state, **end)
    if facts["state"] in BEGUN:
        facts = log.enter("interrupted", **INTERRUPTED, **_counted(folder, facts, last))
        folder.remove_leftovers()
    carry_out_change(folder)
    if facts["state"] in OVER:
        return
    seconds = last.time if last is not None else 0.0
    commands = commands_of(folder)
    if "cancel" in commands:
        video, frames = salvage(folder)
        end = Cancelled(job=folder.job, time=seconds, video=video, frames=frames)
        _end(folder, log, end, "A user cancelled it.")
    elif "pause" in commands:
        log.enter("paused", **PAUSED)
    elif facts["state"] == "interrupted" and facts["deaths"] >= _MOST_DEATHS:
        video, frames = salvage(folder)
        end = Failed(
            job=folder.job, time=seconds, code="engine_died", video=video, frames=frames,
            message=f"Longtake was ended {facts['deaths']} times at the same point of this video.",
            remedy="Resume it to try again; the finished sections are kept.",
        )  # fmt: skip
        _end(folder, log, end)
    elif facts["state"] == "interrupted" and adopt:
        log.enter("queued", reason=TAKEN_OVER, message="", remedy="")
        _report(folder, Warned(job=folder.job, time=seconds, message=TAKEN_OVER))
        return
    else:
        return
    forget_commands(folder)


def _counted(folder: JobFolder, facts: dict[str, Any], last: Event | None) -> dict[str, Any]:
    """Return the facts that count how often the program has died at the same point of a job's work."""
    if not isinstance(last, StageStarted | StepDone | PieceDone):
        return {}  # the engine had not begun
    step = last.step if isinstance(last, StepDone) else 0
    death = f"{folder.checkpoints} checkpoints, {type(last).__name__} {last.section} {step}"
    return {"death": death, "deaths": facts["deaths"] + 1 if death == facts["death"] else 1}


def _end(folder: JobFolder, log: StateLog, end: Event, reason: str = "") -> None:
    state, facts = change_by(end, folder.path) or ("cancelled", {})
    log.enter(state, reason=reason, **facts)
    _report(folder, end)


def _report(folder: JobFolder, event: Event) -> None:
    """Add an event to a job's log. A log that cannot be written is skipped, for the sake of other jobs."""
    try:
        append_event(folder.events, event)
    except OSError as error:
        _log.warning("%s cannot be written (%s)", folder.events, error.strerror)


def salvage(folder: JobFolder) -> tuple[str | None, int]:
    """Tidy the folder of a job that does not continue, as if it had ended normally.

    This removes unfinished files and copies the last video shown to the path of the finished one.

    Returns:
        The path of that video, None if there is none, and its number of frames.
    """
    folder.remove_leftovers()
    facts = StateLog(folder).read()
    if facts["video"] is None:
        return None, 0
    shown = folder.path / facts["video"]
    if shown != folder.video and shown.exists():
        with contextlib.suppress(OSError):  # on a full disk, the video stays where it is
            with replacing(folder.video) as temporary:
                shutil.copyfile(shown, temporary)
            sync_folder(folder.path)
    return str(folder.video if folder.video.exists() else shown), facts["frames"]


def salvage_if_there(folder: JobFolder) -> tuple[str | None, int]:
    """Salvage what a job has made; nothing if its folder is out of reach."""
    try:
        return salvage(folder)
    except OSError:
        return None, 0
