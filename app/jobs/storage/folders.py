"""The folders of jobs: their names, their sizes, and how new ones appear."""

import contextlib
import logging
import os
import shutil
from collections.abc import Callable, Container, Iterator
from pathlib import Path

from app.jobs.storage.owners import remove_dead_locks
from diffusers_helper.files import sync_folder
from diffusers_helper.provenance.job_folder import JobFolder

_log = logging.getLogger(__name__)


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
    """Write the folder of a new job, which appears complete. Call this in a transaction.

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


def sweep(outputs: Path, database_folder: Path) -> None:
    """Remove what dead processes have left. Only the process that makes the jobs may call this."""
    for path in outputs.glob(".*.tmp"):
        shutil.rmtree(path, ignore_errors=True)
    for path in database_folder.glob(".*.tmp"):
        with contextlib.suppress(OSError):
            path.unlink()
    remove_dead_locks(database_folder)


def size_of(folder: Path) -> int:
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):  # the file is being replaced
                total += os.lstat(f"{parent}/{name}").st_size
    return total
