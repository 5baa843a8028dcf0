"""Tests of the estimate of a request's time from earlier jobs."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.jobs.pace import Effort, Pace, PaceBook, pace_of, usual
from app.jobs.service import JobService
from app.jobs.storage.logs import EventReader
from diffusers_helper.events import (
    Event,
    Finished,
    JobStarted,
    PieceDone,
    SectionFinished,
    StageStarted,
    StepDone,
)
from diffusers_helper.families.packing import (
    DEFAULT_CHUNK,
    MODES,
    SectionPlan,
    decode_work,
    plan_sections,
    window_sizes,
)
from diffusers_helper.request import GenerationRequest
from tests.support.jobs import write_picture
from tests.support.reported_jobs import history, job_of
from tests.support.staged_engine import StagedEngine

plans = st.builds(plan_sections, st.floats(1, 120), mode=st.sampled_from(MODES))
works = st.builds(
    lambda plan, steps, **sizes: Effort(plan, [steps] * len(plan), **sizes),
    plan=plans,
    steps=st.integers(1, 100),
    pixels=st.integers(64 * 64, 1280 * 1280),
    cfg=st.sampled_from([1.0, 1.01]),
)
rates = st.floats(0.001, 1000)
paces = st.builds(Pace, rates, rates, rates, rates)


def reported(work: Effort, true: Pace) -> list[Event]:
    """Return the events of a job that ran at exactly this pace."""
    now, sections = true.start_up, len(work.plan)
    events: list[Event] = [
        JobStarted(job="j", time=0.0, sections=sections, frames=1, width=work.pixels, height=1)
    ]
    for section, tail in enumerate(work.tails, 1):
        events.append(StageStarted(job="j", time=now, stage="sample", section=section))
        for step in range(1, (steps := work.steps[section - 1]) + 1):
            now += true.step * work.step + true.lead * (step == 1)
            events.append(StepDone(job="j", time=now, section=section, step=step, steps=steps))
        events.append(StageStarted(job="j", time=now, stage="decode", section=section))
        now += true.tail * tail
        events.append(
            SectionFinished(job="j", time=now, section=section, sections=sections, video="v", frames=1)
        )
    return [*events, Finished(job="j", time=now, video="v", frames=1, seconds=now)]


def test_what_a_card_tries_once_is_no_part_of_its_pace() -> None:
    job = job_of("forward", 3.6)
    about: dict[str, Any] = {"job": job.id}
    plain = history(job, load=40, first=14, step=12, latent=2)
    made, spent = list[Event](), 0.0
    for event in plain:
        # They are tried before the first section, and for another shape before it is decoded.
        if isinstance(event, StageStarted) and event.section == 1 and event.stage in ("sample", "decode"):
            now, spent = event.time + spent, spent + 90
            made.append(StageStarted(**about, time=now, stage="convolutions"))
            made.append(
                PieceDone(**about, time=now + 50, stage="convolutions", section=None, piece=1, pieces=2)
            )
        made.append(replace(event, time=event.time + spent))
    assert made[-1].time == plain[-1].time + 180
    assert pace_of(made, job.request) == pace_of(plain, job.request)


def request_of(work: Effort) -> GenerationRequest:
    return GenerationRequest(
        image="any", seconds=work.plan.seconds, mode=work.plan.mode, steps=work.steps[0],
        cfg=work.cfg,
    )  # fmt: skip


@settings(max_examples=30)
@given(seconds=st.floats(1, 4), steps=st.integers(2, 5), true=paces, asked=works)
def test_a_machine_of_even_pace_is_foretold_exactly(
    seconds: float, steps: int, true: Pace, asked: Effort
) -> None:
    plan = plan_sections(seconds, mode=asked.plan.mode)
    small = Effort(plan, [steps] * len(plan), 512 * 512)
    seen = pace_of(reported(small, true), request_of(small))
    wanted = true.start_up + len(asked.plan) * true.lead + sum(asked.steps) * true.step * asked.step
    wanted += true.tail * sum(asked.tails)
    assert seen.seconds(asked) == pytest.approx(wanted, rel=1e-6)


@settings(max_examples=30)
@given(known=st.lists(paces, min_size=1, max_size=6), work=works)
def test_more_work_never_takes_less(known: list[Pace], work: Effort) -> None:
    pace = usual(known)
    assert pace is not None
    longer = plan_sections(work.plan.seconds + 1.2, mode=work.plan.mode)
    for more in (
        replace(work, plan=longer, steps=[*work.steps, 1]),
        replace(work, steps=[work.steps[0] + 1, *work.steps[1:]]),
        replace(work, pixels=work.pixels + 64),
        replace(work, cfg=2.0),
    ):
        assert pace.seconds(more) >= pace.seconds(work)


@given(true=paces, spoiled=st.floats(5, 1000))
def test_one_slow_job_of_three_does_not_count(true: Pace, spoiled: float) -> None:
    slow = Pace(true.start_up * spoiled, true.lead * spoiled, true.step * spoiled, true.tail * spoiled)
    assert usual([true, slow, true]) == replace(true, jobs=3)


def test_without_history_there_is_no_pace() -> None:
    assert usual([]) is None
    once, twice = (Effort(plan_sections(2.4), [2, 2], 1000, cfg) for cfg in (1.0, 1.01))
    assert twice.step == 2 * once.step


def test_a_log_without_an_end_or_a_step_says_nothing() -> None:
    work = Effort(plan_sections(2.4), [2, 2], 1000)
    whole, request = reported(work, Pace(1, 1, 1, 1)), request_of(work)
    assert pace_of(whole[:-1], request) is None
    assert pace_of([event for event in whole if not isinstance(event, StepDone)], request) is None
    assert pace_of([], request) is None


def test_the_time_between_two_runs_of_one_job_does_not_count() -> None:
    work, true = Effort(plan_sections(3.6), [2] * 3, 1000), Pace(5, 1, 1, 1)
    whole = reported(work, true)
    # The first run stops after its first section; the next begins a day later and says that it has begun.
    first = next(at for at, event in enumerate(whole) if isinstance(event, SectionFinished)) + 1
    again = [whole[0], *whole[first:]]
    resumed = [*whole[:first], *(replace(event, time=event.time + 86400) for event in again)]
    seen = pace_of(resumed, request_of(work))
    assert seen.seconds(work) == pytest.approx(true.seconds(work))


@given(plan=plans)
def test_decoding_counts_the_windows_that_are_not_reused(plan: SectionPlan) -> None:
    for latents, section in zip(decode_work(plan), plan, strict=True):
        whole = sum(window_sizes(section.decode_latents, DEFAULT_CHUNK).values())
        assert plan.latent_window_size <= latents <= whole


def test_the_last_finished_jobs_of_the_model_count_and_each_log_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = StagedEngine()
    service = JobService(tmp_path / "outputs", engine)
    book = PaceBook(service)
    picture = str(write_picture(tmp_path / "picture.png"))
    assert book.pace("demo") is None
    service.start()
    try:
        engine.go(1000)
        for seconds in (1.0, 2.4):
            job = service.queue.add(GenerationRequest(image=picture, seconds=seconds))
            assert [item for item in service.follow(job.id) if item][-1][1].is_final
        reads: list[str] = []
        read = EventReader.read
        monkeypatch.setattr(EventReader, "read", lambda self: (reads.append(str(self.path)), read(self))[1])
        first = book.pace("demo")
        assert (first.jobs, len(set(reads))) == (2, 2)
        assert book.pace("framepack-i2v") is None
        before = len(reads)
        assert book.pace("demo") == first
        assert len(reads) == before
    finally:
        service.stop()
