"""Tests of what the command line writes about a running job."""

import errno
import io
import json
import re
from dataclasses import fields

import pytest

from app.commands import terminal
from app.commands.terminal import JsonLines, ProgressBar
from diffusers_helper.events import Event, Finished, SectionFinished, event_name
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


FIRST_LINES = {
    10: "Trying attention kernels · 10 s of about 1 min",
    50: "Trying attention kernels: 3 of 4",
    70: "Reading the model: 4 of 40 GB · first part in about 6 min",
    110: "Reading the model: 32 of 40 GB · first part in about 5 min",
    130: "Encoding the prompt · 10 s of about 1 min · first part in about 5 min",
    190: "Choosing convolutions: 2 of 12 · first part in about 4 min",
    290: "Encoding the picture · 50 s of about 1 min · first part in about 2 min",
    310: "First step: one-time kernel setup · 10 s · first part in about 2 min",
    350: "First step: one-time kernel setup · 50 s · first part in about 2 min",
    400: "Section 1 of 5, step 17 of 25 · first part in about 1 min 30 s",
    430: "Decoding section 1 of 5 · 10 s of about 1 min · first part in about 50 s",
    450: "Decoding section 1 of 5, part 1 of 3 · first part in about 20 s",
}


def test_without_a_terminal_a_slow_first_job_tells_every_ten_seconds_what_it_does(clock: Clock) -> None:
    written = play(slow_start(job_of()), io.StringIO(), clock)
    assert [second for second, lines in written.items() if lines] == [*range(10, 480, 10), 480]
    assert {second: written[second][-1] for second in FIRST_LINES} == FIRST_LINES
    assert "96x64 pixels, 181 frames, 6.0 s, 5 sections" in written[60]
    assert written[480][-1] == "Section 1 of 5: 33 frames in v"


def test_without_a_terminal_a_video_that_grows_is_told_section_by_section(clock: Clock) -> None:
    job = job_of()
    written = play(history(job, load=5, first=9, step=9, latent=1), io.StringIO(), clock)
    first = next(second for second, lines in written.items() if "Section 1 of 5: 33 frames" in str(lines))
    later = [line for second, lines in written.items() if second > first for line in lines]
    assert [line[:16] for line in later] == [
        *(f"Section {n} of 5: "[:16] for n in (2, 3, 4, 5)),
        "Finished: 181 fr",
    ]


def test_a_terminal_shows_each_second_how_far_the_first_job_is(clock: Clock) -> None:
    written = play(slow_start(job_of()), Terminal(), clock)
    assert all(written.values())
    shown = {second: re.sub(r" *\d+ %\|.*", "", written[second][-1]) for second in FIRST_LINES}
    assert shown == FIRST_LINES
    assert written[301][-1].startswith("First step: one-time kernel setup · 1 s · first part in")


def test_work_that_takes_longer_than_foreseen_says_so(clock: Clock) -> None:
    events = [event for event in later(slow_start(job_of()), 60.0, 18) if event.time <= 300]
    written = play(events, io.StringIO(), clock)
    assert written[170][-1] == "Encoding the prompt · 50 s of about 1 min · first part in about 4 min"
    assert written[180][-1].startswith("Encoding the prompt · 1 min · longer than expected · first part")
    assert written[230][-1].startswith("Encoding the prompt · 1 min 50 s · longer than expected")
    assert not [line for lines in written.values() for line in lines if "1 min of about" in line]


def test_a_terminal_shows_one_line_through_all_stages() -> None:
    stdout, told = io.BytesIO(), Terminal()
    bar, job = bar_for(told, stdout), job_of()
    for event in history(job, load=0, first=1, step=1, latent=0.1)[:14]:
        bar.show(event)
    bar.show(Finished(job=job.id, time=2.0, video="/o/j/video.mp4", frames=37, seconds=2.0))
    for words in ("Loading the model", "Section 1 of 5, step 11 of 25", "Finished: 37 frames in 2.0 s."):
        assert words in told.getvalue()
    assert stdout.getvalue() == b"/o/j/video.mp4\n"


def test_a_video_that_goes_on_is_told_from_where_it_is() -> None:
    job, told = job_of("forward", 3.6, steps=2), Terminal()
    earlier = history(job, load=0, first=1, step=1, latent=0.1)
    made = next(at for at, event in enumerate(earlier, 1) if isinstance(event, SectionFinished))
    bar = ProgressBar(io.BytesIO(), told)
    bar.begin(job, earlier_events=earlier[:made])
    bar.tick()
    assert "Section 1 of 3 is finished" in told.getvalue()


def test_programs_get_share_and_estimate_of_each_stage() -> None:
    stdout = io.BytesIO()
    display = JsonLines(stdout, io.StringIO())
    for event in slow_start(job_of()):
        display.tick()
        display.show(event)
    lines = [json.loads(line) for line in stdout.getvalue().splitlines()]
    stages = [line for line in lines if line["event"] == "stage_started"]
    assert [(line["stage"], line["expected_seconds"], line["seconds_to_video"]) for line in stages] == [
        ("attention", 60, 0), ("load", 60, 360), ("text", 60, 300), ("convolutions", 60, 240),
        ("vae_encode", 60, 180), ("sample", 60, 120), ("decode", 60, 60),
    ]  # fmt: skip
    pieces = {line["stage"]: line["pieces"] for line in lines if line["event"] == "piece_done"}
    assert pieces == {"attention": 4, "convolutions": 12, "decode": 3}
    assert max(line["done_bytes"] for line in lines if line["event"] == "reading") == 40 * 2**30


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
