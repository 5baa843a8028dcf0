"""Tests of several programs over one folder: one makes the jobs, the others hand in, follow and take over."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.jobs.service import JobService
from app.jobs.storage.commands import commands_of
from diffusers_helper.events import Cancelled, Finished, SectionFinished, StepDone
from diffusers_helper.provenance.job_folder import JobFolder
from tests.support.jobs import STAND_IN, Studio, kill, run_program, sections_of, wait_until
from tests.support.shared import Sharing, events, until, until_state

pytestmark = pytest.mark.slow  # programs wait for each other


@pytest.fixture
def sharing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sharing]:
    monkeypatch.setattr("app.jobs.making.crew._LOOK_SECONDS", 0.05)
    sharing = Sharing(tmp_path)
    yield sharing
    sharing.close()


def _closings(service: JobService) -> list[bool]:
    """Return a list that grows each time the service closes its engine."""
    closed: list[bool] = []
    service._engines[0].close = lambda: closed.append(True)
    return closed


def test_the_first_program_makes_the_jobs_of_all_in_their_order(sharing: Sharing) -> None:
    maker, server, command = sharing.open(), sharing.open(), sharing.open(start=False)
    jobs = [sharing.add(maker, "1"), sharing.add(server, "2"), sharing.add(command, "3")]
    command.start(adopt=False)
    assert [service.crew.is_follower for service in (maker, server, command)] == [False, True, True]
    assert [command.queue_position(job.id) for job in jobs[1:]] == [1, 2]
    sharing.go(server)  # an engine that nobody gives a job
    sharing.go(maker)
    seen = [[events(service, job) for job in jobs] for service in (maker, server, command)]
    assert seen[0] == seen[1] == seen[2]
    assert all(isinstance(of_job[-1], Finished) for of_job in seen[0])
    ended = [maker.job(job.id).ended or 0.0 for job in jobs]
    assert ended == sorted(ended)


def test_when_the_maker_ends_another_goes_on_with_its_job(sharing: Sharing) -> None:
    maker, server = sharing.open(), sharing.open()
    first, second = sharing.add(maker, seconds=3.6), sharing.add(server)
    sharing.go(maker, 7)
    until(server, first, SectionFinished)
    maker.stop()
    sharing.go(server)
    reported = events(server, first)
    assert isinstance(reported[-1], Finished)
    assert sections_of(reported) == [1, 2, 3]
    assert isinstance(events(server, second)[-1], Finished)
    assert not server.crew.is_follower


def test_a_command_takes_over_its_own_job_alone_and_then_lets_others_lead(sharing: Sharing) -> None:
    maker, command = sharing.open(), sharing.open(start=False)
    left, mine = sharing.add(maker), sharing.add(command)
    command.start(adopt=False)
    sharing.go(maker, 4)
    until(maker, left, StepDone)
    assert command.crew.is_follower
    maker.stop()
    sharing.go(command)
    assert isinstance(events(command, mine)[-1], Finished)
    assert command.job(left.id).state == "interrupted"
    server = sharing.open()
    wait_until(lambda: not server.crew.is_follower)
    sharing.go(server)
    assert isinstance(events(server, left)[-1], Finished)


def test_a_paused_job_gives_the_engine_back_and_goes_on_when_a_user_says_so(sharing: Sharing) -> None:
    maker, other = sharing.open(), sharing.open(start=False)
    first = sharing.add(maker, seconds=3.6)
    closed = _closings(maker)
    sharing.go(maker, 7)
    until(maker, first, SectionFinished)
    assert other.queue.pause(first.id)
    sharing.go(maker, 1)
    paused = until_state(maker, first, "paused")
    assert paused.message == "Paused."
    wait_until(lambda: bool(closed))
    second = sharing.add(maker)
    assert not commands_of(JobFolder(first.folder))
    sharing.go(maker)
    assert isinstance(events(maker, second)[-1], Finished)
    assert maker.job(first.id).state == "paused"
    assert other.queue.resume(first.id).position == first.position
    reported = events(maker, first)
    assert isinstance(reported[-1], Finished)
    assert sections_of(reported) == [1, 2, 3]
    states = maker.history.transitions(first.id)
    assert [one.state for one in states] == ["queued", "running", "paused", "queued", "running", "finished"]
    assert all(one.time for one in states)
    assert [one.reason for one in states][:4] == [
        "You started it.", "It is its turn.", "Paused.", "You resumed it.",
    ]  # fmt: skip


def test_a_command_outlasts_the_death_of_the_maker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", STAND_IN)
    studio = Studio(tmp_path)
    process, (job_id,) = run_program(studio, "sections=3 steps=1 at=1 fault=hang")
    job = studio.service.job(job_id)
    studio.until(job, SectionFinished)
    kill(process)
    studio.service.queue.store.leave_command(job_id, "cancel")
    studio.service.recover()
    job = studio.service.job(job_id)
    assert (job.state, job.frames) == ("cancelled", 37)
    assert job.video is not None
    assert job.video.read_bytes() == b"video of 37 frames"


def test_a_job_that_is_removed_ends_for_whoever_follows_it(sharing: Sharing) -> None:
    maker = sharing.open(start=False)
    job = sharing.add(maker)
    items = maker.follow(job.id)
    assert next(items) is None
    maker.queue.remove(job.id)
    rest = [item for item in items if item is not None]
    assert len(rest) == 1
    assert isinstance(rest[0][1], Cancelled)


def test_a_job_that_another_program_has_taken_over_is_left_to_it(sharing: Sharing) -> None:
    maker = sharing.open()
    job = sharing.add(maker, seconds=3.6)
    sharing.go(maker, 4)
    until(maker, job, StepDone)
    shutil.rmtree(sharing.outputs / ".longtake")  # with all that shows who makes it
    other = sharing.open()
    assert (other.queue.is_paused, other.job(job.id).state) == (True, "paused")
    wait_until(lambda: not any(worker.is_busy for worker in maker.crew.workers))
    assert other.job(job.id).state == "paused"
    for service in (maker, other):
        sharing.go(service)
    other.queue.resume_queue()
    reported = events(other, job)
    assert isinstance(reported[-1], Finished)
    assert sections_of(reported)[-2:] == [2, 3]  # the first may have been made before it was lost


@pytest.mark.parametrize(("host", "state"), [("elsewhere/boot", "running"), ("", "interrupted")])
def test_a_job_of_another_computer_is_taken_over_by_a_person_alone(
    sharing: Sharing, host: str, state: str
) -> None:
    service = sharing.open(start=False)
    job = sharing.add(service)
    store = service.queue.store
    host = host or store._owner.enter().partition(":")[0]
    store.enter(job.id, "running", started=1.0, owner=f"{host}:1:1")
    sharing.open(start=False).recover()
    assert service.job(job.id).state == state
    assert service.queue.pause(job.id)
    assert service.job(job.id).state == ("running" if state == "running" else "paused")
    service.queue.pause(job.id)
    assert service.job(job.id).state == "paused"
    assert service.queue.resume(job.id).state == "queued"
