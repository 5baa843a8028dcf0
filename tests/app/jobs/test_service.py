"""Tests of what the service tells of a queue in every order, over states that are written by hand."""

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from app.jobs.downloads.manager import Downloads
from app.jobs.job import Job
from app.jobs.making.worker import _needed_bytes, _timed
from app.jobs.service import JobService, ServiceStopped, _final_event
from app.jobs.storage.commands import ended_by
from app.jobs.storage.folders import size_of
from app.jobs.storage.logs import append_event
from app.jobs.storage.rows import add_transition
from diffusers_helper.errors import InputError
from diffusers_helper.events import Cancelled, Failed, Finished, SectionFinished, StepDone
from diffusers_helper.provenance.job_folder import JobFolder
from tests.support.reported_jobs import job_of
from tests.support.shared import Sharing
from tests.support.staged_engine import StagedEngine

AWAY = "framepack-i2v"


@pytest.fixture
def service(sharing: Sharing, monkeypatch: pytest.MonkeyPatch) -> JobService:
    """Return a service to which one of the models is missing."""
    words = {"message": "Its model is away.", "remedy": ""}
    monkeypatch.setattr(Downloads, "reason_to_wait", lambda _, model: words if model == AWAY else {})
    return sharing.open(start=False)


def begin(service: JobService, job: Job, started: float, state: Any = "running") -> None:
    service.queue.store.enter(job.id, "running", started=started)
    service.queue.store.enter(job.id, state)


def test_the_queue_is_told_in_the_order_in_which_it_is_made(
    sharing: Sharing, service: JobService, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = itertools.count(1)
    monkeypatch.setattr("time.time", lambda: float(next(seconds)))  # no two changes are in one millisecond
    late, early, away, last, paused, over, interrupted = (
        sharing.add(service, name, model=AWAY if name == "away" else "demo")
        for name in ("late", "early", "away", "last", "paused", "over", "interrupted")
    )
    begin(service, late, 20.0)
    begin(service, early, 10.0, "waiting")
    begin(service, interrupted, 5.0, "interrupted")
    service.queue.pause(paused.id)
    service.queue.cancel(over.id)
    first, others = service.open_jobs()
    assert first == service.job(early.id)
    assert [job.id for job in others] == [late.id, last.id, away.id]
    assert service.open_jobs() is service.open_jobs()
    positions = {job.request.prompt: service.queue_position(job.id) for job in service.jobs()}
    assert positions == {
        "late": 0, "early": 0, "away": 2, "last": 2, "paused": 0, "over": 0, "interrupted": 0,
    }  # fmt: skip
    service.queue.move(last.id, before=late.id)
    assert [job.id for job in service.open_jobs()[1]] == [late.id, last.id, away.id]
    assert (service.queue_position(last.id), service.queue_position(away.id)) == (2, 3)
    assert [job.id for job in service.recent_jobs(2)] == [over.id, paused.id]
    service.queue.resume(paused.id)
    assert [job.id for job in service.recent_jobs(1)] == [paused.id]
    with service.queue.store.transaction() as database:
        database.execute("DELETE FROM transitions")  # as if an old version had made them all
    for job, facts in ((over, {"ended": 900.0}), (late, {"started": 800.0}), (last, {"created": 700.0})):
        service.queue.store.add_facts(job.id, **facts)
    assert [job.id for job in service.recent_jobs(3)] == [over.id, late.id, last.id]


def test_what_a_service_is_told_is_announced_and_it_starts_again_after_a_stop(
    sharing: Sharing, service: JobService, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, changes = sharing.add(service), service.changes
    service.expect_cards("The cluster is away.")
    assert (service.crew.missing, service.changes) == ("The cluster is away.", changes + 1)
    for is_taken in (True, False):
        monkeypatch.setattr(service.crew, "add", lambda engine, is_taken=is_taken: is_taken)
        service.add_engine(StagedEngine())  # pyright: ignore[reportArgumentType]
        assert (service.engines, service.changes) == (2, changes + 2)
    service._engines = service._engines[:1]
    service.expect_cards("")
    service.queue.pause_queue()
    for adopts in (False, True, False):
        service.start(adopt=adopts)
        assert (service.downloads._thread is not None) is adopts
        items = service.follow(job.id)
        assert [next(items), next(items)] == [None, None]
        service.stop()
        assert service.downloads._thread is None
        with pytest.raises(ServiceStopped):
            list(items)


def test_a_state_of_an_old_version_has_no_time(sharing: Sharing, service: JobService) -> None:
    job, store = sharing.add(service), service.queue.store
    with store.transaction() as database:
        add_transition(database, job.id, "running", "Long ago.", 0.0)
        add_transition(database, job.id, "paused", "Then.", 12.34567)
    assert [(line.reason, line.time) for line in service.history.transitions(job.id)[1:]] == [
        ("Long ago.", 0.0), ("Then.", 12.346),
    ]  # fmt: skip


def test_of_jobs_that_are_added_together_all_are_queued_or_none(
    sharing: Sharing, service: JobService
) -> None:
    assert len(service.all_or_none(sharing.add(service, name) for name in "ab")) == 2
    with pytest.raises(InputError, match="nope"):
        service.all_or_none(sharing.add(service, name, model=name) for name in ("demo", "demo", "nope"))
    assert [job.state for job in service.jobs()] == ["cancelled", "cancelled", "queued", "queued"]


def test_a_job_whose_log_has_no_end_ends_for_who_follows_it() -> None:
    video = Path("/o/j/video.mp4")
    job = job_of(id="j", started=30.0, created=10.0, ended=40.0, frames=7, message="Why.", remedy="Do.")
    facts: dict[str, Any] = {"job": "j", "time": 10.0, "video": str(video), "frames": 7}
    failed = Failed(**facts | {"video": None}, message="Why.", remedy="Do.")
    for state, shown, end in (
        ("finished", video, Finished(**facts, seconds=10.0)), ("finished", None, failed),
        ("cancelled", video, Cancelled(**facts)), ("failed", None, failed),
    ):  # fmt: skip
        assert _final_event(replace(job, state=state, video=shown)) == end
    unbegun = replace(job, started=None, ended=None, state="cancelled", video=None)
    assert _final_event(unbegun) == Cancelled(job="j", time=0.0, video=None, frames=7)


def section(number: int, sections: int) -> SectionFinished:
    return SectionFinished(job="j", time=1.0, section=number, sections=sections, video="v", frames=9)


COMMANDS = ("", "wait", "change", "stop_after_section", "stop_after_section wait", "pause cancel")


def test_a_command_ends_a_job_after_a_section_that_is_new(snapshot: SnapshotAssertion) -> None:
    step = StepDone(job="j", time=1.0, section=1, step=2, steps=2)
    events = {f"{number} of 3": section(number, 3) for number in (1, 2, 3)}
    events |= {"a step": step, "nothing": None}
    lines = list[str]()
    for commands in COMMANDS:
        calls: Any = commands.split()
        for name, event in events.items():
            ends = [ended_by(calls, event, finished) for finished in (0, 1, 2)]
            lines.append(f"{commands or 'none'} after {name}: {ends}")
    assert lines == snapshot


def test_a_job_needs_room_for_the_sections_that_are_left_and_counts_from_its_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_of(folder=tmp_path, started=1000.0, created=900.0)
    (tmp_path / "video.mp4").write_bytes(bytes(100_000))
    assert _needed_bytes(job) == 0
    for number, sections_left in ((1, 4), (2, 3), (5, 1)):
        append_event(JobFolder(tmp_path).events, section(number, 5))
        assert _needed_bytes(job) == size_of(tmp_path) * sections_left // number
    monkeypatch.setattr("time.time", lambda: 1012.34567)
    assert _timed(job, section(1, 5)).time == 12.346
    assert _timed(job_of(started=None, created=1000.0), section(1, 5)).time == 12.346
    assert _timed(job_of(started=2000.0), section(1, 5)).time == 0.0
