"""The recovery of jobs whose process has ended, and the removal of unfinished files."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from app.jobs.job import BEGUN
from app.jobs.storage.commands import commands_of, forget_commands
from app.jobs.storage.event_log import append_event, last_event
from app.jobs.storage.index import put
from app.jobs.storage.locks import is_locked
from app.jobs.storage.state_log import StateLog, change_by
from diffusers_helper.events import Cancelled, Event, PieceDone, StageStarted, StepDone, Warned
from diffusers_helper.failures import interrupted_event
from diffusers_helper.files import replacing, sync_folder
from diffusers_helper.machine.storage import is_storage_trouble
from diffusers_helper.provenance.job_folder import JobFolder

_log = logging.getLogger(__name__)
TAKEN_OVER = "Longtake was ended while it was making this video. It was resumed; no finished work was lost."
INTERRUPTED: dict[str, Any] = {
    "message": "Longtake was ended while it was making this video.",
    "remedy": "It continues when the page is started on this folder, or with: generate --resume",
}
PAUSED: dict[str, Any] = {"message": "Paused by you.", "remedy": "It continues when you resume it."}
# The number of deaths of the program at the same point of a job after which the job fails. The job is usually
# not their cause, but one that crashes the whole machine would otherwise be started again and again.
_MOST_DEATHS = 50
_JOB_ID = re.compile(r"\d{8}-\d{6}-[0-9a-f]{4}")
_OLD_SECONDS = 60.0


def recover(database: sqlite3.Connection, outputs: Path, adopts: Callable[[str], bool]) -> None:
    """Mark the jobs whose process has ended as interrupted, and queue those that `adopts` accepts.

    Call this only while the index is locked.
    """
    states = ", ".join(f"'{state}'" for state in (*BEGUN, "interrupted"))
    for row in database.execute(f"SELECT id FROM jobs WHERE state IN ({states})").fetchall():
        folder = JobFolder(outputs / row["id"])
        if not folder.path.exists():
            if outputs.is_dir():
                database.execute("DELETE FROM jobs WHERE id = ?", (row["id"],))
            continue
        try:
            recover_job(database, folder, adopt=adopts(folder.job))
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


def recover_job(database: sqlite3.Connection, folder: JobFolder, *, adopt: bool) -> None:
    """Mark one job as interrupted, and queue it if `adopt` is true, unless a living process makes it."""
    if not is_locked(folder.states):
        _recover(folder, adopt=adopt)
        put(database, folder)


def _recover(folder: JobFolder, *, adopt: bool) -> None:
    log = StateLog(folder)
    facts = log.read()
    if facts["fault"]:
        return
    last = last_event(folder.events)
    if facts["state"] in BEGUN and last is not None and last.is_final:
        state, end = change_by(last, folder.path) or ("cancelled", {})  # its final event reached the log
        facts = log.enter(state, **end)
    if facts["state"] in BEGUN:
        facts = log.enter("interrupted", **INTERRUPTED, **_count_death(folder, facts, last))
        folder.remove_leftovers()
    if facts["state"] != "interrupted":
        return
    time_of_last = last.time if last is not None else 0.0
    commands = commands_of(folder)
    if "cancel" in commands:
        video, frames = salvage(folder)
        _end(folder, log, Cancelled(job=folder.job, time=time_of_last, video=video, frames=frames))
    elif "pause" in commands:
        log.enter("paused", **PAUSED)
    elif facts["deaths"] >= _MOST_DEATHS:
        video, frames = salvage(folder)
        _end(folder, log, interrupted_event(folder.job, time_of_last, video, frames, facts["deaths"]))
    elif adopt:
        log.enter("queued", reason=TAKEN_OVER, message="", remedy="")
        _say(folder, Warned(job=folder.job, time=time_of_last, message=TAKEN_OVER))
        return
    else:
        return
    forget_commands(folder)


def _end(folder: JobFolder, log: StateLog, end: Event) -> None:
    state, facts = change_by(end, folder.path) or ("cancelled", {})
    log.enter(state, **facts)
    _say(folder, end)


def _say(folder: JobFolder, event: Event) -> None:
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


def sweep(outputs: Path, index: Path) -> None:
    """Remove folders of jobs that were never submitted, and files that a process was writing when it died.

    Call this only while the index is locked, so that no living process is submitting a job, and only in the
    process that makes the jobs, which alone writes files beside the index.
    """
    for path in outputs.glob(".*.tmp"):
        shutil.rmtree(path, ignore_errors=True)
    for path in index.glob(".*.tmp"):
        with contextlib.suppress(OSError):
            path.unlink()
    shutil.rmtree(index / "owners", ignore_errors=True)  # written by version 0.1
    for path in outputs.iterdir():
        with contextlib.suppress(OSError):
            if _JOB_ID.fullmatch(path.name) and _is_orphan(path):
                shutil.rmtree(path, ignore_errors=True)


def _is_orphan(path: Path) -> bool:
    """Return whether a folder of version 0.1 never became a job, because it holds at most a picture."""
    if os.path.lexists(path / "request.json") or time.time() - path.stat().st_mtime < _OLD_SECONDS:
        return False
    return all(file.name == "input.png" or file.suffix == ".tmp" for file in path.iterdir())
