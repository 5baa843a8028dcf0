"""The folders of jobs: how they come and go.

Functions that make or move folders are called only in a transaction, which keeps other programs from it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import time
from collections.abc import Callable, Container, Iterator
from pathlib import Path

from app.jobs.job import NoSuchJob
from app.jobs.storage.owners import remove_dead_locks
from diffusers_helper.files import sync_folder
from diffusers_helper.provenance.job_folder import JobFolder

_log = logging.getLogger(__name__)
TRASH_SECONDS = 7 * 24 * 3600.0  # the time that a removed job stays in the trash


def folder_names(outputs: Path, jobs: Container[str]) -> Iterator[str]:
    """Yield the names of all jobs' folders, which are those of `jobs` and those with a request or a log."""
    for name in os.listdir(outputs):
        # Links count even if they lead nowhere; os.path is faster than Path, for thousands of jobs.
        files = (f"{outputs}/{name}/{file}" for file in ("request.json", "states.jsonl"))
        if name in jobs or (name[0] != "." and any(map(os.path.lexists, files))):
            if name.encode(errors="ignore").decode() == name:
                yield name
            else:
                _log.warning("The folder %r is left out, because its name is not UTF-8.", name)


def new_folder(
    outputs: Path, fill: Callable[[JobFolder, JobFolder], object], on_failure: contextlib.ExitStack
) -> JobFolder:
    """Write the folder of a new job, which appears complete.

    Args:
        fill: Writes the job's files into the first folder, which then is renamed to the second.
        on_failure: Gets what removes the folder again.
    """
    folder = JobFolder.new(outputs)
    temporary = JobFolder(outputs / f".{folder.job}.tmp")
    on_failure.callback(shutil.rmtree, temporary.path, ignore_errors=True)
    temporary.path.mkdir()
    fill(temporary, folder)
    sync_folder(temporary.path)
    on_failure.callback(shutil.rmtree, folder.path, ignore_errors=True)
    temporary.path.rename(folder.path)
    sync_folder(outputs)
    return folder


def move_to_trash(folder: JobFolder, trash: Path) -> None:
    if not trash.is_dir():
        trash.mkdir()
        sync_folder(trash.parent)
    os.utime(folder.path)  # the time of the removal
    folder.path.rename(trash / folder.job)
    sync_folder(trash)
    sync_folder(folder.path.parent)


def restore_folder(outputs: Path, job_id: str, trash: Path) -> JobFolder:
    """Move a job's folder back from the trash.

    Raises:
        NoSuchJob: If the folder is not in the trash.
        OSError: If the folder cannot be moved.
    """
    # A name such as "../x" would lead out of the folder, so the given name has to be in the list of names.
    if not trash.is_dir() or job_id not in os.listdir(trash) or not (trash / job_id).is_dir():
        raise NoSuchJob(job_id)
    folder = JobFolder(outputs / job_id)
    (trash / job_id).rename(folder.path)
    sync_folder(outputs)
    return folder


def empty_trash(trash: Path, max_age_seconds: float = TRASH_SECONDS) -> None:
    for path in trash.iterdir() if trash.is_dir() else ():
        if time.time() - path.lstat().st_mtime > max_age_seconds:
            shutil.rmtree(path, ignore_errors=True)


def sweep(outputs: Path, database_folder: Path) -> None:
    """Remove folders of jobs that were never submitted, and files that a process was writing when it died.

    Call this only in the process that makes the jobs, which alone writes files beside the database.
    """
    for path in outputs.glob(".*.tmp"):
        shutil.rmtree(path, ignore_errors=True)
    for path in database_folder.glob(".*.tmp"):
        with contextlib.suppress(OSError):
            path.unlink()
    remove_dead_locks(database_folder)


def size_of(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):  # the file is being replaced
            total += path.lstat().st_size
    return total
