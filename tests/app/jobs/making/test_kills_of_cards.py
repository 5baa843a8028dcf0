"""Tests that jobs on several cards lose nothing when engines are killed and a card is lost for good."""

import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.jobs.job import Job
from app.jobs.making.engine_client import EngineProcess
from app.jobs.service import JobService
from diffusers_helper.events import Event, Finished, SectionFinished, Warned
from diffusers_helper.planning.profiles import CAP_VARIABLE
from diffusers_helper.provenance.job_folder import JobFolder
from tests.support.jobs import STAND_IN, Studio

# Each kill costs another start of an engine. `LONGTAKE_TEST_KILLS=20` asks for so many kills of each engine.
KILLS = int(os.environ.get("LONGTAKE_TEST_KILLS", "2"))
JOBS = min(40, 6 * KILLS)
CAPS = ("0.2", "4", "8")
BIG = 1280  # the resolution of a video that the first of these cards cannot make
DEAD = (sys.executable, "-c", "raise SystemExit(3)")

pytestmark = pytest.mark.slow


@pytest.fixture
def engines() -> list[EngineProcess]:
    return [EngineProcess(variables={CAP_VARIABLE: cap, "OMP_NUM_THREADS": "1"}) for cap in CAPS]


@pytest.fixture
def service(tmp_path: Path, engines: list[EngineProcess]) -> Iterator[JobService]:
    service = JobService(tmp_path / "outputs", *engines)
    yield service
    service.stop()


def _events(service: JobService, job: Job) -> list[Event]:
    return [item[1] for item in service.follow(job.id) if item is not None]


def test_jobs_on_cards_that_are_killed_and_lost_all_end_whole_and_in_order(
    tmp_path: Path, service: JobService, engines: list[EngineProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", STAND_IN)
    studio, chance = Studio(tmp_path), random.Random(5)
    jobs = list[Job]()
    for number in range(JOBS):
        times = -(-3 * KILLS * (number + 1) // JOBS) - -(-3 * KILLS * number // JOBS)
        script = f"sections=3 steps=4 at={chance.randrange(12)} times={times} fault=SIGKILL"
        resolution = BIG if number % 3 == 2 else None
        jobs.append(studio.submit(script, service, model="demo", resolution=resolution))
    service.start()
    _events(service, jobs[len(jobs) // 3])
    engines[1]._command = DEAD  # from its next start on, as a card that has fallen off the bus
    engines[1].kill()
    found = [_events(service, job) for job in jobs]
    for job, events in zip(jobs, found, strict=True):
        end = events[-1]
        assert isinstance(end, Finished), end
        assert Path(end.video).read_bytes() == b"video of 109 frames"
        assert [e.section for e in events if isinstance(e, SectionFinished)] == [1, 2, 3]
        made = service.job(job.id)
        assert made.request.resolution != BIG or "(0.2 GB)" not in made.card
    told = [event.message for events in found for event in events if isinstance(event, Warned)]
    assert sum("was ended from outside" in one or "killed" in one for one in told) >= KILLS
    for group in (jobs[2::3], [job for job in jobs if job.request.resolution != BIG]):
        first = [
            next(one.time for one in service.history.transitions(job.id) if one.state == "running")
            for job in group
        ]
        assert first == sorted(first)


def test_killed_and_moved_between_cards_a_video_has_the_same_bytes(
    tmp_path: Path, service: JobService, engines: list[EngineProcess], tiny_model: Path
) -> None:
    studio, chance = Studio(tmp_path), random.Random(7)
    sections = max(2, KILLS // 4)
    given = {"model": str(tiny_model), "steps": 2, "seconds": 1.2 * sections, "mode": "forward"}
    undisturbed = [studio.submit("a red ball", service, seed=seed, **given) for seed in range(2)]
    service.start()
    for before in undisturbed:
        *_, whole = _events(service, before)
        assert isinstance(whole, Finished)
        left, wait, end = KILLS, chance.randrange(1, 12), None
        job = service.queue.duplicate(before.id)
        for item in service.follow(job.id):
            end, wait = item and item[1], wait - 1
            (maker,) = [w for w in service.crew.workers if w.job == job.id] or [None]
            if left and wait <= 0 and maker is not None:
                engine = engines[list(service.crew.workers).index(maker)]
                if left % 2:
                    engine.kill()
                else:  # it goes on on another card
                    service.crew.serve(maker.card.key, leaves=True, now=True)
                    for worker in service.crew.workers:
                        if worker is not maker:
                            service.crew.serve(worker.card.key)
                left, wait = left - 1, chance.randrange(1, 12)
        assert isinstance(end, Finished), end
        reasons = [one.reason for one in service.history.transitions(job.id)]
        assert any("was taken out of service" in reason for reason in reasons), reasons
        assert Path(end.video).read_bytes() == Path(whole.video).read_bytes()
        assert len(list(JobFolder(Path(end.video).parent).sections.iterdir())) == sections
