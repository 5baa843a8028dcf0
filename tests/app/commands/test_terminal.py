"""Tests of what the command line writes about a running job."""

import errno
import io
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from app.commands import terminal
from app.commands.generate import _exit_code
from app.commands.terminal import JsonLines, ProgressBar
from diffusers_helper.events import Cancelled, Event, Failed, Finished, SectionFinished, event_name
from tests.support.jobs import ROOT
from tests.support.reported_jobs import history, job_of, later, slow_start
from tests.support.scripted_engine import Clock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(terminal, "time", clock)
    return clock


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def bar_for(stderr: io.StringIO, stdout: io.BytesIO | None = None) -> ProgressBar:
    bar = ProgressBar(stdout or io.BytesIO(), stderr)
    bar.begin(job_of())
    return bar


def play(events: list[Event], told: io.StringIO, clock: Clock) -> dict[int, list[str]]:
    """Show events at their times, and what passes between them; return what was written at each second."""
    bar, begin, coming, written = bar_for(told), clock.now, list(events), dict[int, list[str]]()
    for second in range(round(events[-1].time) + 1):
        clock.now, before = begin + second, len(told.getvalue())
        while coming and coming[0].time <= second:
            bar.show(coming.pop(0))
        bar.tick()
        lines = re.split("[\r\n]+", told.getvalue()[before:])
        written[second] = [line for line in lines if line.strip()]
    return written


def test_what_is_written_of_a_job_where_no_terminal_is(clock: Clock, snapshot: SnapshotAssertion) -> None:
    job = job_of()
    stories = {
        "a slow first job": slow_start(job),
        "one that takes longer than foreseen": later(slow_start(job), 60.0, 18)[:20],
        "the next job": history(job, load=5, first=9, step=9, latent=1),
    }
    texts = list[str]()
    for name, events in stories.items():
        written = play(events, io.StringIO(), clock)
        texts.append(f"> {name}")
        for second, lines in written.items():
            texts += [f"{second:3} s: {' | '.join(lines)}"] if lines and second % 60 in (0, 10) else []
    assert "\n".join(texts) == snapshot


def test_what_a_terminal_shows(clock: Clock, snapshot: SnapshotAssertion) -> None:
    written = play(slow_start(job_of()), Terminal(), clock)
    assert all(written.values())
    seconds = (0, 10, 50, 70, 110, 190, 290, 301, 400, 430, 450, 480)
    lines = [f"{second} s: {written[second][-1]}" for second in seconds]
    job, told = job_of("forward", 3.6, steps=2), Terminal()
    earlier = history(job, load=0, first=1, step=1, latent=0.1)
    made = next(at for at, event in enumerate(earlier, 1) if isinstance(event, SectionFinished))
    bar = ProgressBar(io.BytesIO(), told)
    bar.begin(job, earlier_events=earlier[:made])
    bar.tick()
    assert [*lines, "> resumed", *re.split("[\r\n]+", told.getvalue())] == snapshot


ABOUT: dict[str, Any] = {"job": "j", "time": 1.0}
ENDS: list[Event | None] = [
    Finished(**ABOUT, video="/v.mp4", frames=73, seconds=65.0, steps_skipped=3, advice="Update it."),
    Finished(**ABOUT, video="/v.mp4", frames=1, seconds=2.0, steps_skipped=1),
    Cancelled(**ABOUT, video=None, frames=0),
    Cancelled(**ABOUT, video="/v.mp4", frames=37),
    Failed(**ABOUT, message="It broke.", remedy="Set `steps`.", video="/v.mp4", frames=37),
    Failed(**ABOUT, message="It is odd.", remedy="", code="bad_input"),
    Failed(**ABOUT, message="It died.", remedy="", code="engine_died"),
    None,
]


def test_ends_are_told_and_become_exit_codes(snapshot: SnapshotAssertion) -> None:
    lines = list[str]()
    for end in ENDS:
        for kind in (ProgressBar, JsonLines):
            out, err = io.BytesIO(), io.StringIO()
            display = kind(out, err)
            display.begin(job_of(id="j", folder=Path("/o/j")), None, [])
            if end:
                display.show(end)
            lines.append(f"{_exit_code(end)}: {out.getvalue().decode()!r} {err.getvalue()!r}")
    assert lines == snapshot


def test_programs_get_share_and_estimate_of_each_stage(snapshot: SnapshotAssertion) -> None:
    stdout = io.BytesIO()
    display = JsonLines(stdout, io.StringIO())
    for event in slow_start(job_of())[::7]:
        display.tick()
        display.show(event)
    assert stdout.getvalue().decode() == snapshot


class Full(io.StringIO):
    """A file on a full disk."""

    def write(self, text: str) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_video_is_told_even_if_its_progress_cannot_be_written() -> None:
    stdout = io.BytesIO()
    bar = bar_for(Full(), stdout)
    bar.show(Finished(job="j", time=2.0, video="/o/j/video.mp4", frames=37, seconds=2.0))
    assert stdout.getvalue() == b"/o/j/video.mp4\n"


def test_the_document_names_every_field_of_each_event() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.*) \|$", (ROOT / "docs/usage.md").read_text("utf-8"), re.MULTILINE)
    told = {name: set(re.findall(r"`(\w+)`", words)) for name, words in rows}
    for kind in Event.__subclasses__():
        assert {field.name for field in fields(kind)} - {"job", "time"} == told[event_name(kind)]
