"""Tests of the estimate of a request's time from earlier jobs."""

from dataclasses import astuple, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.jobs.finishing import finishing_pace
from app.jobs.job import Job
from app.jobs.pace import Effort, Pace, PaceBook, effort_of, pace_of, seconds_left, usual
from app.jobs.service import JobService
from app.jobs.storage.logs import EventReader
from diffusers_helper.events import Event, PieceDone, SectionFinished, StageStarted, StepDone
from diffusers_helper.families.packing import (
    DEFAULT_CHUNK,
    MODES,
    SectionPlan,
    decode_work,
    plan_sections,
    window_sizes,
)
from diffusers_helper.models.registry import info_of
from diffusers_helper.request import GenerationRequest
from tests.support.jobs import write_picture
from tests.support.reported_jobs import history, job_of
from tests.support.staged_engine import StagedEngine

FINISHING = GenerationRequest(video="/o/a.mp4", finish="source:96x64*90@30,speed:2")
MEGAPIXELS = 96 * 64 / 1e6  # of the jobs in this history
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


def made_at(true: Pace, job: Job) -> list[Event]:
    """Return the events of a job that ran at exactly this pace."""
    step = true.step * MEGAPIXELS
    latent = true.tail * MEGAPIXELS
    return history(job, load=true.start_up, first=true.lead + step, step=step, latent=latent)


def test_what_a_card_tries_once_is_no_part_of_its_pace() -> None:
    job = job_of("forward", 3.6)
    plain = history(job, load=40, first=14, step=12, latent=2)
    made, spent = list[Event](), 0.0
    for event in plain:
        # They are tried before the first section, and for another shape before it is decoded.
        if isinstance(event, StageStarted) and event.section == 1 and event.stage in ("sample", "decode"):
            now, spent = event.time + spent, spent + 90
            trial = StageStarted(job=job.id, time=now, stage="convolutions")
            piece = PieceDone(
                job=job.id, time=now + 50, stage="convolutions", section=None, piece=1, pieces=2
            )
            made += [trial, piece]
        made.append(replace(event, time=event.time + spent))
    assert made[-1].time == plain[-1].time + 180
    assert pace_of(made, job.request) == pace_of(plain, job.request)


@pytest.mark.parametrize(("cfg", "passes"), [(1.0, 1), (1.01, 2), (6.0, 2)])
def test_the_effort_is_that_of_the_request(cfg: float, passes: int) -> None:
    job = job_of("forward", 3.6)
    info = info_of("demo")
    for resolution, side in ((None, info.side), (320, 320)):
        request = replace(job.request, resolution=resolution, cfg=cfg, vae_chunk=5, steps=7)
        effort = effort_of(request, info)
        assert (effort.steps, effort.pixels) == ([7] * len(effort.plan), side**2)
        assert effort.step == pytest.approx(passes * side**2 / 1e6)
        windows = [side**2 / 1e6 * latents for latents in decode_work(effort.plan, 5)]
        assert effort.tails == pytest.approx(windows)


def test_the_time_left_is_that_of_the_share_that_is_not_done() -> None:
    pace = Pace(10, 1, 2, 3)
    asked = SimpleNamespace(pace={"demo": pace, "helios-base": None}.get, finishing=5.0)
    half, whole = job_of("forward", 3.6), job_of("forward", 3.6, frames=10**6)
    frames = plan_sections(3.6, mode="forward").total_frames
    half = replace(half, frames=frames // 2)
    away = [job_of("forward", model=model) for model in ("helios-base", "/gone")]
    left = seconds_left([half, *away, whole], asked)
    seconds = pace.seconds(effort_of(half.request, info_of("demo")))
    assert left == [pytest.approx(seconds * (1 - (frames // 2) / frames)), None, None, 0.0]
    finishing = replace(half, request=FINISHING, frames=9)  # of 45 frames
    nominal = FINISHING.finishing.nominal_seconds
    assert seconds_left([half, finishing], asked)[1] == pytest.approx(nominal * 0.8 * 5.0)


@settings(max_examples=20)
@given(seconds=st.floats(1, 4), steps=st.integers(2, 5), true=paces, asked=works)
def test_a_machine_of_even_pace_is_foretold_exactly(
    seconds: float, steps: int, true: Pace, asked: Effort
) -> None:
    job = job_of(asked.plan.mode, seconds, steps)
    seen = pace_of(made_at(true, job), job.request)
    wanted = true.start_up + len(asked.plan) * true.lead + sum(asked.steps) * true.step * asked.step
    wanted += true.tail * sum(asked.tails)
    assert seen.seconds(asked) == pytest.approx(wanted, rel=1e-6)


@settings(max_examples=20)
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


@settings(max_examples=20)
@given(true=paces, spoiled=st.floats(5, 1000))
def test_one_slow_job_of_three_does_not_count(true: Pace, spoiled: float) -> None:
    slow = Pace(true.start_up * spoiled, true.lead * spoiled, true.step * spoiled, true.tail * spoiled)
    assert usual([true, slow, true]) == replace(true, jobs=3)
    assert usual([]) is None


def test_the_last_six_finishings_count() -> None:
    request = SimpleNamespace(finishing=SimpleNamespace(nominal_seconds=2.0))
    jobs = [SimpleNamespace(started=1.0, ended=1.0 + taken, request=request) for taken in range(2, 14)]
    assert finishing_pace(jobs) == 4.5 / 2


def test_the_newest_six_videos_of_a_model_whose_logs_say_something_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    paces = {f"{number}": Pace(float(number), 1, 1, 1) if number % 2 else None for number in range(20)}
    monkeypatch.setattr("app.jobs.pace._pace_in", lambda folder, request: paces[folder.path.name])
    jobs = [job_of(id=name, folder=Path("/o", name), ended=1010.0) for name in paces]
    finishings = [replace(job, request=replace(FINISHING, model="demo")) for job in jobs[1:4]]
    others = [replace(job, request=replace(job.request, model="wan-5b")) for job in jobs[1:4]]
    for made, start_up, pace_of_finishing in (
        ([*finishings, *others, *jobs], 6.0, 10.0 / FINISHING.finishing.nominal_seconds),
        (jobs[:6], 3.0, 1.0),
    ):
        book = PaceBook(SimpleNamespace(finished_jobs=lambda limit, made=made: made[:limit]))
        pace = book.pace("demo")
        assert (pace.start_up, pace.jobs, book.finishing) == (
            start_up,
            len(made[:12]) // 2,
            pace_of_finishing,
        )


def test_a_log_without_an_end_or_a_step_says_nothing() -> None:
    job = job_of(seconds=2.4, steps=2)
    whole = made_at(Pace(1, 1, 1, 1), job)
    for events in ([], whole[:-1], [event for event in whole if not isinstance(event, StepDone)]):
        assert pace_of(events, job.request) is None
    assert pace_of(whole, replace(job.request, step_cache="teacache")) is None


def test_the_time_between_two_runs_of_one_job_does_not_count() -> None:
    job, true = job_of(seconds=3.6, steps=2), Pace(5, 1, 1, 1)
    whole = made_at(true, job)
    # The first run stops after its first section; the next begins a day later and says that it has begun.
    first = next(at for at, event in enumerate(whole) if isinstance(event, SectionFinished)) + 1
    again = [whole[0], *whole[first:]]
    resumed = [*whole[:first], *(replace(event, time=event.time + 86400) for event in again)]
    assert astuple(pace_of(resumed, job.request)) == pytest.approx(astuple(true))


@settings(max_examples=20)
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
