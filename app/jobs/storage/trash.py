"""The trash of an outputs folder, in which removed jobs lie for a week, and the deletion of jobs for good."""

import os
import shutil
import time
from pathlib import Path

from app.jobs.job import NoSuchJob
from app.jobs.storage.database import DATABASE_FOLDER
from app.jobs.storage.rows import update_row
from app.jobs.storage.store import JobStore
from diffusers_helper.files import sync_folder

TRASH_SECONDS = 7 * 24 * 3600.0


def removed_jobs(outputs: Path) -> list[Path]:
    trash = outputs / DATABASE_FOLDER / "trash"
    folders = [path for path in trash.iterdir() if path.is_dir()] if trash.is_dir() else []
    return sorted(folders, key=lambda folder: folder.lstat().st_mtime)


def remove_job(store: JobStore, job_id: str) -> None:
    folder, trash = store.outputs / job_id, store.outputs / DATABASE_FOLDER / "trash"
    with store.transaction() as database:
        if not folder.exists():
            database.execute("DELETE FROM jobs WHERE id = ?", (job_id,))
            return
        if not trash.is_dir():
            trash.mkdir()
            sync_folder(trash.parent)
        os.utime(folder)  # the time of the removal
        _move(store, folder, trash / job_id)
        update_row(database, job_id, removed=time.time())


def restore_job(store: JobStore, job_id: str) -> None:
    """Move a job's folder back, from which `import_jobs` then restores its row."""
    # A name such as "../x" would lead out of the folder, so the given name has to be in the list of names.
    folder = next((folder for folder in removed_jobs(store.outputs) if folder.name == job_id), None)
    if folder is None:
        raise NoSuchJob(job_id)
    with store.transaction():
        _move(store, folder, store.outputs / job_id)


def _move(store: JobStore, source: Path, target: Path) -> None:
    source.rename(target)
    store.on_failure.callback(target.rename, source)
    sync_folder(target.parent)
    sync_folder(source.parent)


def delete_job(store: JobStore, folder: Path) -> None:
    """Delete a job and its folder, which may be in the trash. It frees space before it needs any."""
    with store.transaction() as database:
        if folder.exists():
            doomed = folder.rename(store.outputs / f".{folder.name}.tmp")  # `sweep` goes on after a crash
            sync_folder(folder.parent)
            shutil.rmtree(doomed)
        database.execute("DELETE FROM jobs WHERE id = ?", (folder.name,))
