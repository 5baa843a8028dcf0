"""The recovery of jobs whose process is gone, and the removal of its unfinished files."""

from __future__ import annotations

import contextlib
import logging
import re
import shutil
import sqlite3
import time
from pathlib import Path
from typing import Any

from app.jobs.event_log import append_event, last_event
from app.jobs.index import put
from app.jobs.job import BEGUN
from app.jobs.owner import is_locked, living_owners
from app.jobs.state_log import StateLog
from diffusers_helper.events import Cancelled, Event, PieceDone, StageStarted, StepDone, Warned
from diffusers_helper.failures import interrupted_event
from diffusers_helper.output.job_folder import JobFolder

_log = logging.getLogger(__name__)
TAKEN_OVER = "Longtake was ended while it made this video. It goes on; nothing that was finished is lost."
INTERRUPTED: dict[str, Any] = {
    "message": "Longtake was ended while it made this video.",
    "remedy": "It goes on when the page is started on this folder, or with: generate --resume",
}
# The allowed deaths of the program at the same point of a job. The job is usually not their cause, but one
# that brings the whole machine down would otherwise be started again and again.
_MOST_DEATHS = 50
_JOB_ID = re.compile(r"\d{8}-\d{6}-[0-9a-f]{4}")
_OLD_SECONDS = 60.0


def recover(database: sqlite3.Connection, outputs: Path, owners: Path, mine: str, *, adopt: bool) -> None:
    """Mark jobs that lost their process as interrupted; with `adopt`, put them into this process's queue.

    Call it with the index locked.
    """
    living = living_owners(owners)
    rows = database.execute(
        "SELECT id, owner FROM jobs WHERE state IN ('queued', 'running', 'waiting', 'interrupted')"
    ).fetchall()
    for row in rows:
        folder = JobFolder(outputs / row["id"])
        if row["owner"] in living or is_locked(folder.states):
            continue
        if not folder.request.exists():
            if outputs.is_dir():
                database.execute("DELETE FROM jobs WHERE id = ?", (row["id"],))
            continue
        _recover(folder, mine, adopt=adopt)
        put(database, folder)


def _recover(folder: JobFolder, mine: str, *, adopt: bool) -> None:
    log = StateLog(folder)
    facts = log.read()
    last = last_event(folder.events)
    if facts["state"] in BEGUN and last is not None and last.is_final:  # its final event reached the log
        facts = log.follow(last)
    if facts["state"] in BEGUN:
        facts = log.enter("interrupted", **INTERRUPTED, **_count_death(folder, facts, last))
        folder.remove_leftovers()
    time_of_last = last.time if last is not None else 0.0
    if facts["state"] == "interrupted" and (facts["ending"] or facts["deaths"] >= _MOST_DEATHS):
        video, frames = salvage(folder)
        end = interrupted_event(folder.job, time_of_last, video, frames, facts["deaths"])
        if facts["ending"]:
            end = Cancelled(job=folder.job, time=time_of_last, video=video, frames=frames)
        log.follow(end)
        _say(folder, end)
    elif adopt and facts["state"] in ("queued", "interrupted"):
        begun = facts["state"] == "interrupted"
        log.enter("queued", owner=mine, message="", remedy="")
        if begun:
            _say(folder, Warned(job=folder.job, time=time_of_last, message=TAKEN_OVER))


def _say(folder: JobFolder, event: Event) -> None:
    """Add an event to a job's log, if that can be: one bad log must not keep all other jobs from theirs."""
    try:
        append_event(folder.events, event)
    except OSError as error:
        _log.warning("%s cannot be written (%s)", folder.events, error.strerror)


def _count_death(folder: JobFolder, facts: dict[str, Any], last: Event | None) -> dict[str, Any]:
    """Return how often a job's process has died at one point of its work, without any progress."""
    if not isinstance(last, StageStarted | StepDone | PieceDone):
        return {}  # the engine had not begun yet
    step = last.step if isinstance(last, StepDone) else 0
    death = f"{folder.checkpoints} checkpoints, {type(last).__name__} {last.section} {step}"
    return {"death": death, "deaths": facts["deaths"] + 1 if death == facts["death"] else 1}


def salvage(folder: JobFolder) -> tuple[str | None, int]:
    """Tidy the folder of a job that does not continue, and return the last video shown and its frames.

    Unfinished files are removed, and the video gets the place of the finished one.
    """
    folder.remove_leftovers()
    facts = StateLog(folder).read()
    if facts["video"] is None:
        return None, 0
    shown = folder.path / facts["video"]
    if shown != folder.video and shown.exists():
        temporary = folder.video.with_name(f".{folder.video.name}.tmp")
        with contextlib.suppress(OSError):  # on a full disk it stays where it is
            shutil.copyfile(shown, temporary)
            temporary.replace(folder.video)
        temporary.unlink(missing_ok=True)
    return str(folder.video if folder.video.exists() else shown), facts["frames"]


def sweep(outputs: Path, owners: Path, mine: str) -> None:
    """Remove folders of jobs that were never submitted, and files that a process was writing when it died.

    Call it with the index locked.
    """
    living = living_owners(owners)
    for path in outputs.glob(".*.tmp"):
        if path.suffixes[-2].removeprefix(".") not in living:
            shutil.rmtree(path, ignore_errors=True)
    if living <= {mine}:
        for path in (outputs / owners.parent.name).glob(".*.tmp"):
            path.unlink(missing_ok=True)
    for path in outputs.iterdir():
        if _JOB_ID.fullmatch(path.name) and _is_orphan(path):
            shutil.rmtree(path, ignore_errors=True)


def _is_orphan(path: Path) -> bool:
    """Return whether a folder of version 0.1 never became a job, as it holds at most a picture."""
    if (path / "request.json").exists() or time.time() - path.stat().st_mtime < _OLD_SECONDS:
        return False
    return all(file.name == "input.png" or file.suffix == ".tmp" for file in path.iterdir())
