"""Several engines, which make the jobs of one queue at the same time."""

from collections.abc import Iterator
from typing import Any

import pytest

from app.jobs.job import Job
from app.jobs.making.engine_client import EngineDied
from app.jobs.making.watchdog import WatchdogTimeouts
from app.jobs.service import JobService
from app.ui.catalogue import Catalogue
from app.ui.queue.endpoints import JobCalls
from diffusers_helper.events import Event, Finished, SectionFinished
from diffusers_helper.planning.profiles import CAP_VARIABLE
from tests.support.jobs import states_of, wait_until
from tests.support.shared import Sharing, events, until, until_state
from tests.support.staged_engine import StagedEngine


def open_with(
    sharing: Sharing, engines: int, jobs: int, **settings: object
) -> tuple[JobService, list[StagedEngine], list[Job]]:
    """Return a service that has not started, its engines, and the jobs that wait in its queue."""
    staged = [StagedEngine() for _ in range(engines)]
    service = JobService(sharing.outputs, *staged)
    sharing.services.append(service)
    return service, staged, [sharing.add(service, str(number), **settings) for number in range(jobs)]


def running(service: JobService, jobs: list[Job]) -> list[int]:
    """Return the numbers of the jobs that are being made."""
    return [number for number, job in enumerate(jobs) if service.job(job.id).state == "running"]


def test_each_engine_takes_the_next_job_of_the_queue(sharing: Sharing) -> None:
    service, engines, jobs = open_with(sharing, 3, 5)
    service.start()
    wait_until(lambda: running(service, jobs) == [0, 1, 2])
    first, others = service.open_jobs()
    assert {first.id, *(job.id for job in others[:2])} == {job.id for job in jobs[:3]}
    assert [job.id for job in others[2:]] == [job.id for job in jobs[3:]]
    engines[1].go(1000)  # it makes all that is left, one after the other
    wait_until(lambda: len(running(service, jobs)) == 2 and service.job(jobs[4].id).is_over)
    for engine in engines:
        engine.go(1000)
    assert all(isinstance(events(service, job)[-1], Finished) for job in jobs)
    assert [states_of(job.folder).count("queued") for job in jobs] == [1] * 5


def test_the_queue_counts_all_engines(sharing: Sharing, monkeypatch: pytest.MonkeyPatch) -> None:
    service, _, _ = open_with(sharing, 2, 4)
    monkeypatch.setattr("app.ui.queue.endpoints.seconds_left", lambda jobs, paces: [10.0, 30.0, 5.0, 40.0])
    found = JobCalls(service, Catalogue()).jobs_queue()
    assert [job["begins_in"] for job in found["jobs"]] == [0, 0, 10, 15]
    assert found["left"] == 55


BIG = 1280  # the resolution of a video that needs more than a small card
SMALL_CARD, LARGE_CARD = {CAP_VARIABLE: "0.2"}, {CAP_VARIABLE: "4"}


def on_cards(sharing: Sharing, *cards: dict[str, str]) -> tuple[JobService, list[StagedEngine]]:
    engines = [StagedEngine(**variables) for variables in cards]
    service = JobService(sharing.outputs, *engines, timeouts=WatchdogTimeouts())
    sharing.services.append(service)
    return service, engines


def test_a_job_waits_for_a_card_that_it_fits_and_leaves_no_card_idle(sharing: Sharing) -> None:
    service, (large, small) = on_cards(sharing, LARGE_CARD, SMALL_CARD)
    sizes = [None, BIG, BIG, None]
    jobs = [sharing.add(service, str(number), resolution=size) for number, size in enumerate(sizes)]
    service.start()
    wait_until(lambda: running(service, jobs) == [0, 1])  # the small one goes to the small card
    assert [service.job(job.id).card for job in jobs[:2]] == ["processor 2 (0.2 GB)", "processor 1 (4 GB)"]
    queue = JobCalls(service, Catalogue()).jobs_queue()["jobs"]
    words = "Waits for processor 1 (4 GB): processor 2 has 0.2 GB"
    assert [words in job["now"] for job in queue] == [False, False, True, False]
    small.go(1000)
    assert [isinstance(events(service, jobs[n])[-1], Finished) for n in (0, 3)] == [True, True]
    assert running(service, jobs) == [1]
    large.go(1000)
    assert all(isinstance(events(service, job)[-1], Finished) for job in jobs)
    assert service.job(jobs[2].id).card == "processor 1 (4 GB)"
    began = [service.job(job.id).started or 0.0 for job in jobs]
    assert sorted(range(4), key=lambda n: began[n]) == [0, 1, 3, 2]


def test_a_job_says_from_which_section_on_another_card_made_it(sharing: Sharing) -> None:
    service, (first,) = on_cards(sharing, SMALL_CARD)
    job = sharing.add(service, seconds=3.6)
    service.start()
    first.go(7)
    until(service, job, SectionFinished)
    service.stop()
    again, (other,) = on_cards(sharing, LARGE_CARD)
    again.start()
    until_state(again, job, "running")
    other.go(1000)
    assert isinstance(events(again, job)[-1], Finished)
    assert again.job(job.id).card == "processor (0.2 GB), from section 2 on processor (4 GB)"


def test_two_programs_use_different_cards_and_never_the_same(sharing: Sharing) -> None:
    one, _ = on_cards(sharing, SMALL_CARD)
    two, (same, other) = on_cards(sharing, SMALL_CARD, LARGE_CARD)
    jobs = [sharing.add(one, str(number)) for number in range(3)]
    one.start()
    wait_until(lambda: running(one, jobs) == [0])
    two.start()
    wait_until(lambda: running(one, jobs) == [0, 1])
    assert not two.crew.is_follower
    same.go(1000)  # its card is in use
    other.go(1000)
    assert all(isinstance(events(two, job)[-1], Finished) for job in jobs[1:])
    assert running(one, jobs) == [0]
    one.stop()
    assert isinstance(events(two, jobs[0])[-1], Finished)


def test_a_card_whose_engine_works_between_two_deaths_stays_in_service(
    sharing: Sharing, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, (small, large) = on_cards(sharing, SMALL_CARD, LARGE_CARD)
    make = small.run

    def dies(job: Job, **settings: Any) -> Iterator[Event | None]:
        if job.request.prompt == "deadly":
            raise EngineDied(-6)
        yield from make(job, **settings)

    monkeypatch.setattr(small, "run", dies)
    service.start()
    small.go(1000)
    large.go(1000)
    made = []
    for prompt in ("deadly", "a ball", "deadly", "a ball"):
        job = sharing.add(service, prompt)
        assert isinstance(events(service, job)[-1], Finished)
        made.append(service.job(job.id).card)
        wait_until(lambda: not any(worker.is_busy for worker in service.crew.workers))
    assert made == ["processor 2 (4 GB)", "processor 1 (0.2 GB)"] * 2
