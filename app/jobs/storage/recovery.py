"""The taking over of jobs whose process has ended, and the commands for jobs that no process makes."""

from __future__ import annotations

import contextlib
import logging
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

from app.jobs.job import BEGUN, OVER
from app.jobs.storage.folders import carry_out_change, commands_of, forget_commands
from app.jobs.storage.logs import StateLog, append_event, change_by, events_in
from app.jobs.storage.rows import put
from diffusers_helper.events import Cancelled, Event, PieceDone, StageStarted, StepDone, Warned
from diffusers_helper.failures import interrupted_event
from diffusers_helper.files import replacing, sync_folder
from diffusers_helper.machine.file_locks import is_locked
from diffusers_helper.machine.storage import is_storage_trouble
from diffusers_helper.provenance.job_folder import JobFolder

_log = logging.getLogger(__name__)
TAKEN_OVER = "Longtake was ended while it was making this video. It was resumed; no finished work was lost."
INTERRUPTED: dict[str, Any] = {
    "message": "Longtake was ended while it was making this video.",
    "remedy": "It continues when the page is started on this folder, or with: generate --resume",
}
PAUSED: dict[str, Any] = {"message": "Paused by you.", "remedy": "It continues when you resume it."}
WAITS: dict[str, Any] = PAUSED | {"message": "Waits for you after each section."}
# The number of deaths of the program at the same point of a job after which the job fails. The job is usually
# not their cause, but one that crashes the whole machine would otherwise be started again and again.
_MOST_DEATHS = 50


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


def is_left_behind(folder: JobFolder) -> bool:
    """Return whether a job's log says that it is being made, although no living process makes it.

    The index may say otherwise: while a folder is away, its job has failed.
    """
    facts = StateLog(folder).read()
    return facts["state"] in BEGUN and not facts["fault"] and not is_locked(folder.states)


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
        facts = log.enter("interrupted", **INTERRUPTED, **_count_death(folder, facts, last))
        folder.remove_leftovers()
    carry_out_change(folder)
    if facts["state"] in OVER:
        return
    seconds = last.time if last is not None else 0.0
    is_interrupted, commands = facts["state"] == "interrupted", commands_of(folder)
    if "cancel" in commands:
        video, frames = salvage(folder)
        end = Cancelled(job=folder.job, time=seconds, video=video, frames=frames)
        _end(folder, log, end, "A user cancelled it.")
    elif "pause" in commands:
        log.enter("paused", **PAUSED)
    elif is_interrupted and facts["deaths"] >= _MOST_DEATHS:
        video, frames = salvage(folder)
        _end(folder, log, interrupted_event(folder.job, seconds, video, frames, facts["deaths"]))
    elif is_interrupted and adopt:
        log.enter("queued", reason=TAKEN_OVER, message="", remedy="")
        _report(folder, Warned(job=folder.job, time=seconds, message=TAKEN_OVER))
        return
    else:
        return
    forget_commands(folder)


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


def _count_death(folder: JobFolder, facts: dict[str, Any], last: Event | None) -> dict[str, Any]:
    """Return the facts that count how often a job's process has died at the same point of its work."""
    if not isinstance(last, StageStarted | StepDone | PieceDone):
        return {}  # the engine had not begun
    step = last.step if isinstance(last, StepDone) else 0
    death = f"{folder.checkpoints} checkpoints, {type(last).__name__} {last.section} {step}"
    return {"death": death, "deaths": facts["deaths"] + 1 if death == facts["death"] else 1}


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
