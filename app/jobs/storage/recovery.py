"""The taking over of jobs that no program makes any more, and the ends of jobs that do not go on."""

import contextlib
import logging
import shutil
import sqlite3
from pathlib import Path
from typing import Any

from app.jobs.job import BEGUN, OVER
from app.jobs.storage.commands import (
    INTERRUPTED,
    PAUSED,
    TAKEN_OVER,
    carry_out_change,
    forget_commands,
    read_commands,
)
from app.jobs.storage.logs import append_event, change_by, events_in
from app.jobs.storage.rows import enter_state, row_of
from diffusers_helper.events import Cancelled, Event, Failed, PieceDone, StageStarted, StepDone, Warned
from diffusers_helper.files import replacing, sync_folder
from diffusers_helper.provenance.job_folder import JobFolder

_log = logging.getLogger(__name__)
# The deaths of the program at one point of a job after which the job fails. The job is usually not their
# cause, but one that takes the whole machine down would otherwise be started again for ever.
_MOST_DEATHS = 50


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
    seconds = last.time if last is not None else 0.0
    commands = read_commands(database, folder.job)
    if "cancel" in commands:
        video, frames = salvage(folder, row["video"], row["frames"])
        end = Cancelled(job=folder.job, time=seconds, video=video, frames=frames)
        _end(database, folder, end, "You ended it.")
    elif "pause" in commands:
        enter_state(database, folder.job, "paused", **PAUSED)
    elif row["state"] == "interrupted" and row["deaths"] >= _MOST_DEATHS:
        video, frames = salvage(folder, row["video"], row["frames"])
        end = Failed(
            job=folder.job, time=seconds, code="engine_died", video=video, frames=frames,
            message=f"Longtake was ended {row['deaths']} times at the same point of this video.",
            remedy="Resume it to try again; the finished sections are kept.",
        )  # fmt: skip
        _end(database, folder, end)
    elif row["state"] == "interrupted" and adopt:
        enter_state(database, folder.job, "queued", reason=TAKEN_OVER, message="", remedy="")
        _report(folder, Warned(job=folder.job, time=seconds, message=TAKEN_OVER))
        return
    else:
        return
    forget_commands(database, folder.job)


def _count_death(folder: JobFolder, row: sqlite3.Row, last: Event | None) -> dict[str, Any]:
    if not isinstance(last, StageStarted | StepDone | PieceDone):
        return {}  # the engine had not begun
    step = last.step if isinstance(last, StepDone) else 0
    death = f"{folder.checkpoints} checkpoints, {type(last).__name__} {last.section} {step}"
    return {"death": death, "deaths": row["deaths"] + 1 if death == row["death"] else 1}


def _end(database: sqlite3.Connection, folder: JobFolder, end: Event, reason: str = "") -> None:
    state, facts = change_by(end, folder.path) or ("cancelled", {})
    enter_state(database, folder.job, state, reason=reason, **facts)
    _report(folder, end)


def _report(folder: JobFolder, event: Event) -> None:
    """Add an event to a job's log. A log that cannot be written is skipped, for the sake of other jobs."""
    try:
        append_event(folder.events, event)
    except OSError as error:
        _log.warning("%s cannot be written (%s)", folder.events, error.strerror)


def salvage(folder: JobFolder, video: str | Path | None, frames: int) -> tuple[str | None, int]:
    """Tidy the folder of a job that does not continue, as if it had ended normally.

    This removes unfinished files and copies the last video shown to the path of the finished one.

    Args:
        video: The last video shown, absolute or relative to the folder; None if there is none.
        frames: Its number of frames, which is returned with the video's path.
    """
    with contextlib.suppress(OSError):
        folder.remove_leftovers()
    if video is None or not (source := folder.path / video).exists():
        return None, 0
    with contextlib.suppress(OSError):  # on a full disk, the video stays where it is
        if source != folder.video:
            with replacing(folder.video) as temporary:
                shutil.copyfile(source, temporary)
            sync_folder(folder.path)
    return str(folder.video if folder.video.exists() else source), frames
