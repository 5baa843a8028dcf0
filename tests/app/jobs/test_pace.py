"""Tests of the estimate of a request's time from earlier jobs."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.jobs import pace
from app.jobs.pace import Pace, PaceBook, Work, estimate, pace_of, passes
from app.jobs.service import JobService
from app.jobs.storage.event_log import EventReader
from diffusers_helper.events import Event, Finished, JobStarted, SectionFinished, StageStarted, StepDone
from diffusers_helper.request import GenerationRequest
from tests.support.jobs import write_picture
from tests.support.staged_engine import StagedEngine

works = st.builds(
    Work,
    sections=st.integers(1, 100),
    steps=st.integers(1, 100),
    pixels=st.integers(64 * 64, 1280 * 1280),
    passes=st.sampled_from([1, 2]),
)
rates = st.floats(0.001, 1000)
paces = st.builds(Pace, rates, rates, rates)


def told(work: Work, true: Pace) -> list[Event]:
    """Return the events of a job that ran at exactly this pace."""
    now = true.start_up
    events: list[Event] = [
        JobStarted(job="j", time=0.0, sections=work.sections, frames=1, width=work.pixels, height=1)
    ]
    per_section = work.sections or 1
    for section in range(1, work.sections + 1):
        events.append(StageStarted(job="j", time=now, stage="sample", section=section))
        for step in range(1, work.steps + 1):
            now += true.denoising * work.denoising / per_section / work.steps
            events.append(StepDone(job="j", time=now, section=section, step=step, steps=work.steps))
        events.append(StageStarted(job="j", time=now, stage="decode", section=section))
        now += true.decoding * work.decoding / per_section
        events.append(
            SectionFinished(job="j", time=now, section=section, sections=work.sections, video="v", frames=1)
        )
    return [*events, Finished(job="j", time=now, video="v", frames=1, seconds=now)]


@given(small=works, true=paces, asked=works)
def test_a_machine_of_even_pace_is_foretold_exactly(small: Work, true: Pace, asked: Work) -> None:
    small = Work(min(small.sections, 3), min(small.steps, 5), small.pixels, small.passes)
    seen = pace_of(told(small, true), cfg=float(small.passes))
    assert seen is not None
    result = estimate([seen], asked)
    assert result is not None
    wanted = true.start_up + true.denoising * asked.denoising + true.decoding * asked.decoding
    assert result.seconds == pytest.approx(wanted, rel=1e-6)
    assert result.jobs == 1


@given(known=st.lists(paces, min_size=1, max_size=6), work=works)
def test_more_work_never_takes_less(known: list[Pace], work: Work) -> None:
    base = estimate(known, work)
    assert base is not None
    for more in (
        Work(work.sections + 1, work.steps, work.pixels, work.passes),
        Work(work.sections, work.steps + 1, work.pixels, work.passes),
        Work(work.sections, work.steps, work.pixels + 64, work.passes),
        Work(work.sections, work.steps, work.pixels, 2),
    ):
        larger = estimate(known, more)
        assert larger is not None
        assert larger.seconds >= base.seconds


@given(true=paces, work=works, spoiled=st.floats(5, 1000))
def test_one_slow_job_of_three_does_not_count(true: Pace, work: Work, spoiled: float) -> None:
    slow = Pace(true.start_up * spoiled, true.denoising * spoiled, true.decoding * spoiled)
    assert estimate([true, slow, true], work) == pace.Estimate(estimate([true], work).seconds, 3)  # pyright: ignore[reportOptionalMemberAccess]


def test_without_history_there_is_no_estimate() -> None:
    assert estimate([], Work(1, 25, 640 * 640)) is None
    assert (passes(1.0), passes(1.01)) == (1, 2)


def test_a_log_without_an_end_or_a_step_says_nothing() -> None:
    whole = told(Work(2, 2, 1000), Pace(1, 1, 1))
    assert pace_of(whole[:-1], 1.0) is None
    assert pace_of([event for event in whole if not isinstance(event, StepDone)], 1.0) is None
    assert pace_of([], 1.0) is None


def test_the_last_finished_jobs_of_the_model_count_and_each_log_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = StagedEngine()
    service = JobService(tmp_path / "outputs", engine)
    book, work = PaceBook(service), Work(2, 4, 1000)
    picture = str(write_picture(tmp_path / "picture.png"))
    assert book.estimate("demo", work) is None
    service.start()
    try:
        engine.go(1000)
        for seconds in (1.0, 2.4):
            job = service.submit(GenerationRequest(image=picture, seconds=seconds))
            assert [item for item in service.follow(job.id) if item][-1][1].is_final
        reads: list[str] = []
        read = EventReader.read
        monkeypatch.setattr(EventReader, "read", lambda self: (reads.append(str(self.path)), read(self))[1])
        first = book.estimate("demo", work)
        assert first is not None
        assert (first.jobs, len(set(reads))) == (2, 2)
        assert book.estimate("framepack-i2v", work) is None
        before = len(reads)
        assert book.estimate("demo", Work(2, 8, 1000)) is not None
        assert len(reads) == before
    finally:
        service.stop()
