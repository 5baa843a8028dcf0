"""The trash, from which removed jobs can be brought back for a while."""

from __future__ import annotations

import os
import shutil
import sqlite3
import time
from pathlib import Path

from app.jobs.job import NoSuchJob
from app.jobs.storage.index import put
from app.jobs.storage.locks import is_locked
from diffusers_helper.errors import InputError
from diffusers_helper.files import make_way, sync_folder
from diffusers_helper.provenance.job_folder import JobFolder

TRASH = "trash"
KEPT_SECONDS = 7 * 24 * 3600.0


def discard(database: sqlite3.Connection, folder: JobFolder, trash: Path) -> None:
    """Move a job's folder to the trash. Call this only while the index is locked.

    Raises:
        InputError: If a process is making the job.
        OSError: If the folder cannot be moved.
    """
    if folder.path.exists():
        if is_locked(folder.states):
            raise InputError(
                f"Job {folder.job} is being made; expected one that is not.", "Cancel it first, or pause it."
            )
        make_way(trash, folder=True)
        trash.mkdir(exist_ok=True)
        os.utime(folder.path)  # the time of the removal
        folder.path.rename(trash / folder.job)
        sync_folder(trash)
        sync_folder(folder.path.parent)
    database.execute("DELETE FROM jobs WHERE id = ?", (folder.job,))


def bring_back(database: sqlite3.Connection, outputs: Path, job_id: str, trash: Path) -> None:
    """Move a job's folder back from the trash. Call this only while the index is locked.

    Raises:
        NoSuchJob: If the folder is not in the trash.
        OSError: If the folder cannot be moved.
    """
    # A name such as "../x" would lead out of the folder.
    if not trash.is_dir() or job_id not in os.listdir(trash) or not (trash / job_id).is_dir():
        raise NoSuchJob(job_id)
    folder = JobFolder(outputs / job_id)
    (trash / folder.job).rename(folder.path)
    sync_folder(folder.path.parent)
    put(database, folder)


def empty(trash: Path, kept_seconds: float = KEPT_SECONDS) -> None:
    """Delete the jobs that were removed more than `kept_seconds` ago."""
    for path in trash.iterdir() if trash.is_dir() else ():
        if time.time() - path.lstat().st_mtime > kept_seconds:
            shutil.rmtree(path, ignore_errors=True)
