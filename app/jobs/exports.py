"""The videos of jobs in other formats, made by processes of their own: as files, or while they are sent."""

import json
import os
import queue
import subprocess
import threading
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from app.jobs.job import Job, NotAllowed, video_of
from app.jobs.stdio import close_child, opened
from app.machine import module_command
from app.trials import ask_probe, asked
from diffusers_helper.errors import InputError, LongtakeError
from diffusers_helper.provenance.job_folder import JobFolder

_BEAT_SECONDS = 0.5  # until an iterator can hear that nobody wants the export any more
_MOST_SECONDS = 60.0  # for an answer about a format
_CHUNK_BYTES = 1 << 20
_TURN = threading.Lock()

Offer = dict[str, Any]
"""A format for a video: its name as `format`, its `label`, `suffix` and `bytes`, and if that `is_exact`."""


def offers(job: Job) -> list[Offer]:
    """List the formats for a job's video. Each encoder is tried before it is offered."""
    video = _video_of(job)
    return _offers(video, video.stat().st_mtime_ns)


@lru_cache(maxsize=100)
def _offers(video: Path, changed_ns: int) -> list[Offer]:
    offers = list[Offer]()
    end = ask_probe(["formats", str(video)], offers.append, _environ(), _MOST_SECONDS)
    if end.reason:
        raise LongtakeError(f"The formats cannot be tried: {end.reason}.", "Try it again.")
    return offers


def _offer(job: Job, name: str) -> Offer:
    by_name = {offer["format"]: offer for offer in offers(job)}
    if name not in by_name:
        problem = f"format is {name[:40]!r}; expected one of {', '.join(by_name)}."
        raise InputError(problem, "Choose another format.")
    return by_name[name]


def frames_zip(job: Job) -> tuple[int, Iterator[bytes]]:
    """Return the size of a ZIP file of a video's frames, and its parts, with which their process ends."""

    def parts() -> Iterator[bytes]:
        command, environ = module_command("app.probe", _environ())
        pipe = subprocess.PIPE
        process = subprocess.Popen([*command, question], stdin=pipe, stdout=pipe, env=environ)
        try:
            while part := opened(process.stdout).read(_CHUNK_BYTES):
                yield part
        finally:
            close_child(process, 0.0)

    question = json.dumps(["frames", str(_video_of(job))])
    return _offer(job, "png")["bytes"], parts()


def export_file(job: Job, name: str) -> Path:
    """Name the file of an export, which need not exist."""
    return JobFolder(job.folder).exports / f"{job.frames}-{name}{_offer(job, name)['suffix']}"


def make_export(job: Job, name: str) -> Iterator[float]:
    """Make an export unless it is there, and remove the job's other ones; yield the share that is done.

    Exports wait for each other. An iterator that is closed ends its process.
    """
    video, target = _video_of(job), export_file(job, name)
    if target.exists() and target.stat().st_mtime >= video.stat().st_mtime:
        return
    with _TURN, asked(["export", str(video), str(target), name], _environ()) as (child, answers):
        target.parent.mkdir(exist_ok=True)
        share = 0.0
        while True:
            yield share
            with suppress(queue.Empty):
                if (answer := answers.get(timeout=_BEAT_SECONDS)) is None:
                    break
                if isinstance(answer, str):
                    raise LongtakeError(answer, "")
                share = answer[0] / answer[1]
        if code := child.process.wait():
            raise LongtakeError(f"The export has ended with {code}.", "Try another format.")
        for other in target.parent.iterdir():
            if other != target:
                other.unlink(missing_ok=True)


def _environ() -> dict[str, str]:
    return {**os.environ, "SVT_LOG": "1"}  # SVT-AV1 would tell its settings


def _video_of(job: Job) -> Path:
    if job.request.one_frame:
        raise NotAllowed(job, "one with a video", "Wait for its first section.")
    return video_of(job)
