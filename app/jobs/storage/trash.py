"""The trash of an outputs folder, in which removed jobs lie for a week, and the deletion of jobs for good.

Functions that change something are called in a transaction, and `on_failure` gets what undoes them.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import time
from contextlib import ExitStack
from pathlib import Path

from app.jobs.job import NoSuchJob
from app.jobs.storage.database import DATABASE_FOLDER
from app.jobs.storage.rows import update_row
from diffusers_helper.files import sync_folder

TRASH_SECONDS = 7 * 24 * 3600.0


def trash_of(outputs: Path) -> Path:
    return outputs / DATABASE_FOLDER / "trash"


def removed_jobs(outputs: Path) -> list[Path]:
    trash = trash_of(outputs)
    folders = [path for path in trash.iterdir() if path.is_dir()] if trash.is_dir() else []
    return sorted(folders, key=lambda folder: folder.lstat().st_mtime)


def remove_job(database: sqlite3.Connection, outputs: Path, job_id: str, on_failure: ExitStack) -> None:
    folder, trash = outputs / job_id, trash_of(outputs)
    if not folder.exists():
        database.execute("DELETE FROM jobs WHERE id = ?", (job_id,))
        return
    if not trash.is_dir():
        trash.mkdir()
        sync_folder(trash.parent)
    os.utime(folder)  # the time of the removal
    _move(folder, trash / job_id, on_failure)
    update_row(database, job_id, removed=time.time())


def restore_job(database: sqlite3.Connection, outputs: Path, job_id: str, on_failure: ExitStack) -> None:
    # A name such as "../x" would lead out of the folder, so the given name has to be in the list of names.
    folder = next((folder for folder in removed_jobs(outputs) if folder.name == job_id), None)
    if folder is None:
        raise NoSuchJob(job_id)
    _move(folder, outputs / job_id, on_failure)
    update_row(database, job_id, removed=None)


def _move(source: Path, target: Path, on_failure: ExitStack) -> None:
    source.rename(target)
    on_failure.callback(target.rename, source)
    sync_folder(target.parent)
    sync_folder(source.parent)


def delete_job(database: sqlite3.Connection, outputs: Path, folder: Path) -> None:
    """Delete a job and its folder, which may be in the trash. It frees space before it needs any."""
    if folder.exists():
        doomed = folder.rename(outputs / f".{folder.name}.tmp")  # `sweep` goes on if this is interrupted
        sync_folder(folder.parent)
        shutil.rmtree(doomed)
    database.execute("DELETE FROM jobs WHERE id = ?", (folder.name,))
