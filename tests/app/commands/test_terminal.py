"""Tests of what the command line writes about a running job."""

from __future__ import annotations

import errno
import io
import re
from dataclasses import fields

from app.commands.terminal import ProgressBar
from diffusers_helper.events import Event, Finished, JobStarted, Reading, StageStarted, StepDone, event_name
from tests.support.jobs import ROOT


def test_each_reading_of_weights_is_told_from_its_beginning() -> None:
    told = io.StringIO()
    bar = ProgressBar(io.BytesIO(), told)
    for total in (20, 40):
        bar.show(StageStarted(job="j", time=0.0, stage="load"))
        for tenth in (1, 1, 10):
            done = tenth * total * 2**30 // 10
            bar.show(Reading(job="j", time=1.0, done_bytes=done, total_bytes=total * 2**30))
    assert told.getvalue().splitlines() == [
        "Reading the model: 2 of 20 GB", "Reading the model: 20 of 20 GB",
        "Reading the model: 4 of 40 GB", "Reading the model: 40 of 40 GB",
    ]  # fmt: skip


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_one_bar_through_all_stages() -> None:
    stdout, told = io.BytesIO(), Terminal()
    bar = ProgressBar(stdout, told)
    bar.show(JobStarted(job="j", time=0.0, sections=1, frames=37, width=128, height=128))
    for stage in ("load", "text", "sample"):
        bar.show(StageStarted(job="j", time=0.0, stage=stage))
    bar.show(StepDone(job="j", time=1.0, section=1, step=1, steps=2))
    bar.show(Finished(job="j", time=2.0, video="/o/j/video.mp4", frames=37, seconds=2.0))
    for words in ("loading the model", "denoising:  50%", "Finished: 37 frames in 2.0 s."):
        assert words in told.getvalue()
    assert stdout.getvalue() == b"/o/j/video.mp4\n"


class Full(io.StringIO):
    """A file on a full disk."""

    def write(self, text: str) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_video_is_told_even_if_its_progress_cannot_be_written() -> None:
    stdout = io.BytesIO()
    ProgressBar(stdout, Full()).show(
        Finished(job="j", time=2.0, video="/o/j/video.mp4", frames=37, seconds=2.0)
    )
    assert stdout.getvalue() == b"/o/j/video.mp4\n"


def test_the_document_names_every_field_of_each_event() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.*) \|$", (ROOT / "docs/usage.md").read_text("utf-8"), re.MULTILINE)
    told = {name: set(re.findall(r"`(\w+)`", words)) for name, words in rows}
    for kind in Event.__subclasses__():
        assert {field.name for field in fields(kind)} - {"job", "time"} == told[event_name(kind)]
