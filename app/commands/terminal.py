"""How the command line shows a job: for people, or as JSON for programs."""

from __future__ import annotations

import json
from typing import IO, Any, TextIO

from tqdm import tqdm

from app.jobs.job import Job
from diffusers_helper.events import (
    Cancelled,
    Event,
    Failed,
    Finished,
    JobStarted,
    PieceDone,
    SectionFinished,
    StageStarted,
    StepDone,
    Warned,
    to_dict,
)  # fmt: skip
from diffusers_helper.packing import FPS

_STAGES = {
    "load": "loading the model", "text": "reading the prompt", "image": "preparing the picture",
    "vae_encode": "encoding the picture", "vision": "looking at the picture", "sample": "denoising",
    "decode": "decoding", "write": "writing the video",
}  # fmt: skip


class JsonLines:
    """One event a line, each out at once; what ends a job is on stderr in words too."""

    def __init__(self, stdout: IO[bytes], stderr: TextIO) -> None:
        self._stdout, self._stderr = stdout, stderr

    def begin(self, job: Job) -> None:
        """The events say it all."""

    def show(self, event: Event) -> None:
        _write_line(self._stdout, json.dumps(to_dict(event), allow_nan=False))
        if isinstance(event, Failed):
            self._stderr.write(f"{event.message} {event.remedy}\n")


class ProgressBar:
    """A bar with the time left on a terminal, a line per section elsewhere; the video's path on stdout."""

    def __init__(self, stdout: IO[bytes], stderr: TextIO) -> None:
        self._stdout, self._stderr = stdout, stderr
        self._bar: tqdm[Any] | None = None
        self._sections = 0

    def begin(self, job: Job) -> None:
        self._say(f"Job {job.id} in {job.folder}: starting")

    def show(self, event: Event) -> None:
        if isinstance(event, JobStarted):
            self._sections = event.sections
            length = f"{event.frames} frames, {event.frames / FPS:.1f} s"
            self._say(f"{event.width}x{event.height} pixels, {length}, {event.sections} sections")
        elif isinstance(event, StageStarted):
            self._stage(event)
        elif isinstance(event, StepDone):
            self._step(event)
        elif isinstance(event, PieceDone):
            self._piece(event)
        elif isinstance(event, SectionFinished):
            self._say(f"Section {event.section} of {event.sections}: {event.frames} frames in {event.video}")
        elif isinstance(event, Warned):
            self._say(event.message)
        else:
            self._end(event)

    def _stage(self, event: StageStarted) -> None:
        if self._stderr.isatty():
            bar = self._bar or tqdm(file=self._stderr, dynamic_ncols=True, unit="step")
            self._bar = bar
            bar.set_description_str(_STAGES[event.stage])

    def _step(self, event: StepDone) -> None:
        if self._bar is not None:
            self._bar.total = self._sections * event.steps
            self._bar.update((event.section - 1) * event.steps + event.step - self._bar.n)

    def _piece(self, event: PieceDone) -> None:
        if self._bar is not None:
            self._bar.set_description_str(f"{_STAGES[event.stage]} {event.piece}/{event.pieces}")

    def _end(self, event: Event) -> None:
        if self._bar is not None:
            self._bar.close()
        video = None
        if isinstance(event, Finished):
            video = event.video
            self._say(f"Finished: {event.frames} frames in {event.seconds:.1f} s.")
        elif isinstance(event, Cancelled | Failed):
            video = event.video
            if isinstance(event, Failed):
                self._say(f"{event.message} {event.remedy}")
            else:
                self._say("Cancelled.")
            if video is not None:
                self._say(f"The video so far has {event.frames} frames.")
        if video is not None:
            _write_line(self._stdout, video)

    def _say(self, text: str) -> None:
        tqdm.write(text, file=self._stderr)
        self._stderr.flush()


def _write_line(stdout: IO[bytes], text: str) -> None:
    line = text.encode(errors="surrogateescape") + b"\n"
    while line:  # unbuffered: a write may take only a part
        line = line[stdout.write(line) :]
