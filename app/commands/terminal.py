"""The displays of a job on the command line: text for users, and JSON for programs."""

from __future__ import annotations

import json
from typing import IO, Any, TextIO

from tqdm import tqdm

from app.commands.arguments import error_line
from app.jobs.job import Job
from app.jobs.stdio import complain, explained
from diffusers_helper.conditions.timeline import steps_of
from diffusers_helper.events import (
    STAGES,
    Cancelled,
    Event,
    Failed,
    Finished,
    JobStarted,
    PieceDone,
    Reading,
    SectionFinished,
    StageStarted,
    StepDone,
    Warned,
    to_dict,
)  # fmt: skip
from diffusers_helper.families.packing import FPS
from diffusers_helper.machine.terminal import one_line
from diffusers_helper.models.registry import info_of
from diffusers_helper.units import count_text, duration, gb_text


class JsonLines:
    """A display for programs: one JSON event per line, and a sentence about each failure on stderr."""

    def __init__(self, stdout: IO[bytes], stderr: TextIO) -> None:
        self._stdout, self._stderr = stdout, stderr

    def begin(self, job: Job) -> None:
        """Write nothing, because the events contain everything."""

    def report(self, text: str) -> None:
        """Write a sentence about the job to standard error."""
        complain(text)

    def show(self, event: Event) -> None:
        _write_line(self._stdout, json.dumps(to_dict(event), allow_nan=False))
        if isinstance(event, Failed):
            complain(error_line(event))


class ProgressBar:
    """A display for users: a bar with the time left on a terminal, otherwise one line per section."""

    def __init__(self, stdout: IO[bytes], stderr: TextIO) -> None:
        self._stdout, self._stderr = stdout, stderr
        self._bar: tqdm[Any] | None = None
        self._steps, self._tenth, self._fps = list[int](), 0, FPS

    def begin(self, job: Job) -> None:
        """Write the id and the folder of the job."""
        info = info_of(job.request.model)
        self._fps, self._steps = info.family.fps, steps_of(job.request, info)
        self._say(f"Job {job.id} in {job.folder}: starting")

    def report(self, text: str) -> None:
        """Write a sentence about the job."""
        self._say(text)

    def show(self, event: Event) -> None:
        """Write a sentence about the event, or move the bar."""
        if isinstance(event, JobStarted):
            if len(self._steps) != event.sections:
                self._steps = [0] * event.sections
            length = f"{event.frames} frames, {event.frames / self._fps:.1f} s"
            self._say(
                f"{event.width}x{event.height} pixels, {length}, {count_text(event.sections, 'section')}"
            )
        elif isinstance(event, StageStarted):
            self._stage(event)
        elif isinstance(event, Reading):
            self._bytes(event)
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
            bar.set_description_str(STAGES[event.stage].running)

    def _bytes(self, event: Reading) -> None:
        done, total = gb_text(event.done_bytes), gb_text(event.total_bytes)
        text = f"Reading the model: {done} of {total} GB"
        tenth = 10 * event.done_bytes // max(1, event.total_bytes)
        if self._bar is not None:
            self._bar.set_description_str(text)
        elif tenth > self._tenth:
            self._tenth = tenth
            self._say(text)

    def _step(self, event: StepDone) -> None:
        if self._bar is not None:
            done, self._bar.total = event.place(self._steps)
            self._bar.update(done - self._bar.n)

    def _piece(self, event: PieceDone) -> None:
        if self._bar is not None:
            self._bar.set_description_str(f"{STAGES[event.stage].running} {event.piece}/{event.pieces}")

    def _end(self, event: Event) -> None:
        if self._bar is not None:
            self._bar.close()
        video = None
        if isinstance(event, Finished):
            video = event.video
            skipped = event.steps_skipped
            steps = f" {count_text(skipped, 'step')} reused what earlier ones computed." if skipped else ""
            self._say(f"Finished: {count_text(event.frames, 'frame')} in {duration(event.seconds)}.{steps}")
            if event.advice:
                self._say(event.advice)
        elif isinstance(event, Cancelled | Failed):
            video = event.video
            if isinstance(event, Failed):
                self._say(error_line(event))
            else:
                self._say("Cancelled.")
            if video is not None:
                self._say(f"The video so far has {event.frames} frames.")
        if video is not None:
            # A program gets the path as it is.
            _write_line(self._stdout, one_line(video) if self._stdout.isatty() else video)

    def _say(self, text: str) -> None:
        tqdm.write(one_line(text), file=self._stderr)
        self._stderr.flush()


def _write_line(stdout: IO[bytes], text: str) -> None:
    line = text.encode(errors="surrogateescape") + b"\n"
    while line:  # the output is unbuffered, so a write may take only a part
        with explained():
            line = line[stdout.write(line) :]
