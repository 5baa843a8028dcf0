"""Tests of the progress and of the time left that a watched job shows."""

from dataclasses import replace
from itertools import pairwise
from statistics import median
from typing import Any

import pytest

from app.jobs.job import Job
from app.jobs.pace import pace_of, usual
from app.ui.live import words
from app.ui.live.progress import LiveJob
from app.ui.live.timing import TimelinePoint
from diffusers_helper.events import Event, PieceDone, SectionFinished, StageStarted, StepDone
from diffusers_helper.families.packing import Mode
from tests.support.reported_jobs import history, job_of, later, recorded

COSTS = [
    {"load": 40.0, "first": 14.0, "step": 12.0, "latent": 2.0},  # a large model, where sampling dominates
    {"load": 1.0, "first": 0.4, "step": 0.2, "latent": 0.8, "write": 0.05},  # decoding dominates
    {"load": 5.0, "first": 4.0, "step": 1.0, "latent": 0.4},  # the weights move before each section
    {"load": 300.0, "first": 3.0, "step": 3.0, "latent": 4.0},
]


def reported_left(live: LiveJob, events: list[Event]) -> list[tuple[float, float, float]]:
    """Apply a job's events; return the share of its time, and the seconds left as shown and as they were."""
    end = events[-1].time
    seen: list[tuple[float, float, float]] = []
    for event, following in pairwise(events):
        live.apply(event)
        for share in (0.0, 0.5, 0.99):  # the estimate advances between two events too
            now = event.time + share * (following.time - event.time)
            left = live.seconds_left(now)
            seen += [] if left is None else [(now / end, left, end - now)]
    return seen


@pytest.mark.parametrize("mode", ["inverted", "forward"])
@pytest.mark.parametrize("costs", COSTS)
def test_the_time_left_is_right_within_a_fifth_after_the_first_section(
    mode: Mode, costs: dict[str, float]
) -> None:
    live = LiveJob(job_of(mode))
    events = history(live.job, **costs)
    first = next(event for event in events if isinstance(event, SectionFinished)).time / events[-1].time
    checked = [(reported, true) for share, reported, true in reported_left(live, events) if share >= first]
    assert len(checked) > 100
    for reported, true in checked:
        assert reported == pytest.approx(true, rel=0.2, abs=0.02 * events[-1].time)


@pytest.mark.parametrize("costs", COSTS)
def test_a_first_section_of_more_steps_counts_as_what_it_is(costs: dict[str, float]) -> None:
    def job(seconds: float) -> Job:
        return job_of("forward", seconds, 6, "helios-distilled")

    known = pace_of(history(job(2.75), **costs), job(2.75).request)
    for pace, exact in ((known, 0.05), (None, 0.2)):
        live = LiveJob(job(6.875), pace)
        events = history(live.job, **costs)
        first = next(event for event in events if isinstance(event, SectionFinished)).time / events[-1].time
        for share, reported, true in reported_left(live, events):
            if pace or share >= first:
                assert reported == pytest.approx(true, rel=exact, abs=0.02 * events[-1].time)


@pytest.mark.parametrize("mode", ["inverted", "forward"])
@pytest.mark.parametrize("costs", COSTS)
def test_on_a_machine_that_has_made_such_a_video_the_time_left_is_right_from_the_start(
    mode: Mode, costs: dict[str, float]
) -> None:
    earlier = job_of(mode, seconds=3.0)
    pace = pace_of(history(earlier, **costs), earlier.request)
    live = LiveJob(job_of(mode), pace)
    assert not live.is_guess
    events = history(live.job, **costs)
    for _, reported, true in reported_left(live, events):
        assert reported == pytest.approx(true, rel=0.05, abs=0.02 * events[-1].time)


@pytest.mark.parametrize("name", ["2 inverted", "2 forward", "10 inverted", "10 forward", "20 inverted"])
def test_progress_and_time_left_are_right_in_recorded_runs(name: str) -> None:
    job, events = recorded(name)
    others = [recorded(other) for other in ("2 inverted", "10 forward") if other != name]
    paces = [pace for other, reported in others if (pace := pace_of(reported, other.request)) is not None]
    live = LiveJob(job, usual(paces))
    for share, reported, true in reported_left(live, events):
        if share >= 0.1:
            assert reported == pytest.approx(true, rel=0.2, abs=0.5)
    live, end = LiveJob(job, usual(paces)), events[-1].time
    for event in events[:-1]:
        live.apply(event)
        assert live.percent == pytest.approx(100 * event.time / end, abs=5), event


def test_a_slow_first_step_does_not_count_for_the_sections_to_come() -> None:
    live = LiveJob(job_of())
    # The very first step takes 90 seconds more, as if kernels were compiled.
    events = later(history(live.job, load=1.0, first=1.0, step=1.0, latent=0.3), 90.0, 3)
    for event in events:
        live.apply(event)
        if live.sections_done == 1:
            break
    assert live.seconds_left(live.last_sign) == pytest.approx(events[-1].time - live.last_sign, rel=0.2)


def test_a_choice_of_convolutions_before_the_first_decode_does_not_count_for_later_ones() -> None:
    live = LiveJob(job_of())
    events = history(live.job, load=1.0, first=1.0, step=1.0, latent=0.3)
    at = next(index for index, event in enumerate(events) if isinstance(event, PieceDone)) - 1
    tried: dict[str, Any] = {"stage": "convolutions", "expected_seconds": 90.0}
    events = later(events, 90.0, at)
    events.insert(at, StageStarted(job=live.job.id, time=events[at].time - 90.0, **tried))
    left = dict[int, float]()
    for event in events:
        live.apply(event)
        left[live.sections_done] = live.seconds_left(event.time) or 0.0
        if event is events[at]:
            assert words.headline(live) == "Choosing convolutions"
            assert live.seconds_left(event.time + 30.0) == pytest.approx(left[0] - 30.0)
        if live.sections_done == 1:
            break
    assert left[1] == pytest.approx(events[-1].time - live.last_sign, rel=0.1)


@pytest.mark.parametrize("mode", ["inverted", "forward"])
def test_progress_never_falls_and_ends_at_the_end(mode: Mode) -> None:
    live = LiveJob(job_of(mode))
    seen = [0.0]
    for event in history(live.job, load=1.0, first=9.0, step=0.1, latent=1.0):
        live.apply(event)
        assert seen[-1] <= live.percent <= 99.0
        seen.append(live.percent)
    assert seen[-1] == 99.0
    live.job = replace(live.job, state="finished")
    assert live.percent == 100.0


def test_each_piece_of_a_decode_moves_the_bar_and_the_cell() -> None:
    live = LiveJob(job_of())
    before, pieces = (0.0, 0.0), 0
    for event in history(live.job, load=1.0, first=0.2, step=0.2, latent=1.0):
        live.apply(event)
        if isinstance(event, SectionFinished):
            before = (live.percent, 0.0)
        elif isinstance(event, StepDone | PieceDone):
            now = (live.percent, live.section_percent)
            assert live.section == 1 or all(new > old for new, old in zip(now, before, strict=True)), event
            before, pieces = now, pieces + isinstance(event, PieceDone)
    assert pieces > 15


def test_a_short_last_window_counts_by_its_work() -> None:
    job = job_of(seconds=1.2)
    job = replace(job, request=replace(job.request, vae_chunk=8))
    live, events = LiveJob(job), history(job, load=1.0, first=0.1, step=0.1, latent=1.0)
    pieces = [event for event in events if isinstance(event, PieceDone)]
    assert len(pieces) == 2
    for event in events[: events.index(pieces[0]) + 1]:
        live.apply(event)
    left = events[-1].time - pieces[0].time
    assert left < 4
    assert live.seconds_left(pieces[0].time) == pytest.approx(left, rel=0.05)


@pytest.mark.parametrize("step", [0.0, -1.0])
def test_a_clock_that_stands_or_goes_back_breaks_nothing(step: float) -> None:
    earlier = history(job_of(), load=step, first=step, step=step, latent=step)
    for pace in (None, pace_of(earlier, job_of().request)):
        live = LiveJob(job_of(), pace)
        for event in earlier:
            live.apply(event)
            assert 0.0 <= live.percent <= 99.0
            assert live.seconds_left(live.last_sign) != float("inf")


def test_while_nothing_comes_the_time_left_waits() -> None:
    live = LiveJob(job_of())
    for event in history(live.job, load=1.0, first=2.0, step=2.0, latent=0.3)[:20]:
        live.apply(event)
    stalled = live.seconds_left(live.last_sign + 100)
    assert stalled == live.seconds_left(live.last_sign + 1000)
    assert stalled == pytest.approx(live.seconds_left(live.last_sign), abs=2.1)


def test_an_event_of_a_long_video_costs_as_much_as_one_of_a_short_video(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = list[int]()

    def counted(values: list[float]) -> float:
        calls.append(len(values))
        return median(values)

    monkeypatch.setattr("app.ui.live.timing.median", counted)

    def cost(seconds: float) -> float:
        live = LiveJob(job_of("forward", seconds))
        events = history(live.job, **COSTS[0])
        calls.clear()
        for event in events:
            live.apply(event)
        return sum(calls) / len(events)

    assert cost(120.0) == pytest.approx(cost(24.0), rel=0.1)


@pytest.mark.parametrize("model", ["demo", "helios-distilled"])
@pytest.mark.parametrize("known", [False, True])
def test_the_whole_rest_is_the_sum_of_the_sections(model: str, known: bool) -> None:
    live = LiveJob(job_of("forward", 6.875, 6, model))
    pace = pace_of(history(live.job, **COSTS[2]), live.job.request)
    live = LiveJob(live.job, pace if known else None)
    for event in history(live.job, **COSTS[1]):
        if isinstance(event, StepDone):  # another number than expected, as from an engine of another version
            event = replace(event, steps=event.steps + 2)
        live.apply(event)
        each = [live.timing.section_remaining(TimelinePoint(n)) for n in range(1, live.sections + 1)]
        for first in range(1, live.sections + 2):
            assert live.timing.total(first) == pytest.approx(sum(each[first - 1 :])), event
