"""The copy of a job's video in another place."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

from app.jobs.job import Job, NotAllowed
from diffusers_helper.errors import InputError
from diffusers_helper.files import replacing


def export_video(job: Job, target: Path) -> Path:
    if job.video is None or not job.video.exists():
        raise NotAllowed(job, "one with a video", "Wait for its first section.")
    target = target / f"{job.id}{job.video.suffix}" if target.is_dir() else target
    try:
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, "it is there already")
        with replacing(target) as temporary:
            shutil.copyfile(job.video, temporary)
    except OSError as error:
        raise InputError(
            f"{target} cannot be written ({error.strerror}); expected a new file or a folder.",
            "Choose another --to.",
        ) from error
    return target
