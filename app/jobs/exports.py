"""The videos of jobs in other formats, made one at a time by a process of their own, in the jobs' folders."""

import os
import queue
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from app.jobs.job import Job, NotAllowed, video_of
from app.trials import ask_probe, asked
from diffusers_helper.errors import InputError, LongtakeError
from diffusers_helper.provenance.job_folder import JobFolder

_BEAT_SECONDS = 0.5  # until an iterator can hear that nobody wants the export any more
_MOST_SECONDS = 60.0  # for an answer about formats
_VARIABLES = {"SVT_LOG": "1"}  # SVT-AV1 would tell its settings


Offer = dict[str, Any]
"""A format for a video: its name as `format`, its `label`, `suffix` and `bytes`, and if that `is_exact`."""


class Exports:
    """The exports of a program, which makes one at a time."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._offers = dict[tuple[Path, int], list[Offer]]()

    def offers(self, job: Job) -> list[Offer]:
        """List the formats for a job's video. A card's encoder is tried before it is offered."""
        video = _video_of(job)
        key = video, video.stat().st_mtime_ns
        if not self._offers.get(key):
            offers = list[Offer]()
            ask_probe(["formats", str(video)], offers.append, os.environ | _VARIABLES, _MOST_SECONDS)
            self._offers = {key: offers} if len(self._offers) > 100 else {**self._offers, key: offers}
        return self._offers[key]

    def file(self, job: Job, name: str) -> Path:
        """Name the file of an export, which need not exist."""
        suffix = next((offer["suffix"] for offer in self.offers(job) if offer["format"] == name), None)
        if suffix is None:
            names = ", ".join(offer["format"] for offer in self.offers(job))
            raise InputError(f"format is {name[:40]!r}; expected one of {names}.", "Choose another format.")
        return JobFolder(job.folder).exports / f"{job.frames}-{name}{suffix}"

    def make(self, job: Job, name: str) -> Iterator[float | None]:
        """Make an export unless it is there, and remove the job's other ones.

        This yields the share that is done, at least twice a second, and None until its turn comes. An
        iterator that is closed ends its process.
        """
        video, target = _video_of(job), self.file(job, name)
        if target.exists() and target.stat().st_mtime >= video.stat().st_mtime:
            return
        while not self._turn.acquire(timeout=_BEAT_SECONDS):
            yield None
        try:
            target.parent.mkdir(exist_ok=True)
            yield from _shares(["export", str(video), str(target), name])
            for other in target.parent.iterdir():
                if other != target:
                    other.unlink(missing_ok=True)
        finally:
            self._turn.release()


def _shares(question: list[str]) -> Iterator[float]:
    share = 0.0
    with asked(question, os.environ | _VARIABLES) as (child, answers):
        while True:
            yield share
            try:
                answer = answers.get(timeout=_BEAT_SECONDS)
            except queue.Empty:
                continue
            if answer is None:
                break
            if isinstance(answer, str):
                raise LongtakeError(answer, "")
            share = answer[0] / answer[1]
        if code := child.process.wait():
            raise LongtakeError(f"The export has ended with {code}.", "Try another format.")


def _video_of(job: Job) -> Path:
    if job.request.one_frame:
        raise NotAllowed(job, "one with a video", "Wait for its first section.")
    return video_of(job)
