"""The folder of a new job, which appears complete or not at all."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Generator
from pathlib import Path

from app.jobs.storage.state_log import StateLog
from diffusers_helper.conditions.pictures import Contents, keep_request
from diffusers_helper.files import sync_folder
from diffusers_helper.provenance.job_folder import JobFolder
from diffusers_helper.request import GenerationRequest


@contextlib.contextmanager
def new_folder(
    outputs: Path,
    request: GenerationRequest,
    pictures: Contents,
    place: float,
    fill: Callable[[JobFolder], object] = lambda folder: None,
) -> Generator[JobFolder, None, None]:
    """Write the folder of a new job, which is removed again if the block fails.

    Call this only while the index is locked.

    Args:
        outputs: The folder of all jobs.
        request: The settings of the video.
        pictures: The contents of its pictures.
        place: The job's place in the queue.
        fill: Puts further files into the folder, such as those that a branch keeps.

    Raises:
        OSError: If the folder cannot be written.
    """
    with contextlib.ExitStack() as on_failure:
        folder = JobFolder.new(outputs)
        new = JobFolder(outputs / f".{folder.job}.tmp")
        on_failure.callback(shutil.rmtree, new.path, ignore_errors=True)
        new.path.mkdir()
        fill(new)
        keep_request(request, pictures, new, at=folder)
        StateLog(new).start("A user submitted it.", created=time.time(), place=place)
        sync_folder(new.path)
        on_failure.callback(shutil.rmtree, folder.path, ignore_errors=True)
        new.path.rename(folder.path)
        sync_folder(outputs)
        yield folder
        on_failure.pop_all()
