"""Tests that a job waits during passing trouble, such as a full disk, says why, and goes on afterwards."""

import errno
import os
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest

from app.jobs.job import Job
from app.jobs.making.supervisor import Supervisor
from app.jobs.making.worker import Worker
from app.jobs.service import JobService
from app.jobs.storage.database import DATABASE_FOLDER
from app.jobs.storage.logs import append_event, events_in
from diffusers_helper.conditions.pictures import request_content
from diffusers_helper.errors import InputError
from diffusers_helper.events import Event, Finished, SectionFinished, StepDone, Warned
from diffusers_helper.provenance.job_folder import JobFolder
from tests.support.jobs import Studio, sections_of, states_of, wait_until


class Broken:
    """The disk below the jobs' folders: while `error` is set, no event can be written."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.error: Exception | None = None

        def write(path: Path, event: Event) -> None:
            if self.error is not None:
                raise self.error
            append_event(path, event)

        monkeypatch.setattr("app.jobs.storage.store.append_event", write)


FULL = OSError(28, "No space left on device")


def test_a_job_whose_disk_is_full_waits_says_why_and_goes_on(
    studio: Studio, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Broken(monkeypatch)
    studio.service.start()
    job = studio.submit("sections=2 steps=2 at=1 fault=pause")
    studio.until(job, StepDone)
    disk.error = FULL
    (job.folder / "go").touch()
    wait_until(lambda: studio.service.job(job.id).state == "waiting")
    assert "disk is full" in studio.service.job(job.id).message
    running, _ = studio.service.open_jobs()
    assert running.id == job.id
    disk.error = None
    events = studio.events(job)
    assert isinstance(events[-1], Finished)
    assert any("disk is full" in event.message for event in events if isinstance(event, Warned))
    assert studio.service.job(job.id).message == ""


def test_a_database_that_another_program_locks_lets_a_job_wait(
    studio: Studio, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("app.jobs.storage.database._BUSY_SECONDS", 0.1)
    studio.service.start()
    job = studio.submit("sections=2 steps=2 at=1 fault=pause")
    studio.until(job, StepDone)
    other = sqlite3.connect(studio.outputs / ".longtake" / "longtake.sqlite3", isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    (job.folder / "go").touch()
    wait_until(lambda: "index locked" in caplog.text)
    time.sleep(0.5)
    assert caplog.text.count(f"Job {job.id} waits.") == 1
    other.execute("ROLLBACK")
    other.close()
    events = studio.events(job)
    assert isinstance(events[-1], Finished)
    assert any("index locked" in event.message for event in events if isinstance(event, Warned))
    assert JobService(studio.outputs).job(job.id).state == "finished"


def test_an_outputs_folder_that_is_away_for_a_moment_lets_its_job_wait(
    studio: Studio, caplog: pytest.LogCaptureFixture
) -> None:
    studio.service.start()
    job = studio.submit("sections=3 steps=1 at=1 fault=pause")
    studio.until(job, SectionFinished)
    away = studio.outputs.rename(studio.outputs.with_name("away"))
    (away / job.id / "go").touch()
    wait_until(lambda: f"Job {job.id} waits. The outputs folder is missing." in caplog.text)
    assert not studio.outputs.exists()
    away.rename(studio.outputs)
    events = studio.events(job)
    assert isinstance(events[-1], Finished)
    assert sections_of(events) == [1, 2, 3]


def test_a_job_whose_files_cannot_be_read_now_waits_alone_and_keeps_its_log(
    studio: Studio, monkeypatch: pytest.MonkeyPatch
) -> None:
    studio.service.start()
    begun = studio.submit("sections=3 steps=1 at=1 fault=wait times=1")
    studio.until(begun, SectionFinished)
    studio.service.stop()
    studio.service = studio.open()
    queued = studio.submit("steps=1")
    log = (begun.folder / "events.jsonl").read_bytes()

    def read(folder: JobFolder, max_bytes: int = 0) -> bytes:
        if folder.job == queued.id:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(folder.request))
        return request_content(folder)

    def read_log(folder: JobFolder) -> list[Event]:
        if folder.job == begun.id:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return events_in(folder)

    with monkeypatch.context() as patch:
        patch.setattr("app.jobs.storage.rows.request_content", read)
        patch.setattr("app.jobs.storage.commands.events_in", read_log)
        studio.service.start()
        assert isinstance(studio.events(studio.submit("steps=1"))[-1], Finished)
        waiting = studio.service.job(queued.id)
        words = "The folder of this video cannot be read (Input/output error)."
        assert (waiting.state, waiting.message) == ("queued", words)
        assert not studio.service.job(begun.id).is_over
    assert isinstance(studio.events(queued)[-1], Finished)
    assert studio.service.job(queued.id).message == ""
    events = studio.events(begun)
    assert isinstance(events[-1], Finished)
    assert sections_of(events) == [1, 2, 3]
    assert (begun.folder / "events.jsonl").read_bytes().startswith(log)


def test_an_engine_that_cannot_be_started_now_is_tried_again(
    studio: Studio, monkeypatch: pytest.MonkeyPatch
) -> None:
    studio.service.start()
    make = Supervisor.make
    failures = [OSError(errno.EMFILE, os.strerror(errno.EMFILE))]

    def start(*given: Any) -> Any:
        if failures:
            raise failures.pop()
        return make(*given)

    monkeypatch.setattr(Supervisor, "make", start)
    job = studio.submit("steps=1")
    events = studio.events(job)
    assert isinstance(events[-1], Finished)
    assert "Too many files are open." in events[0].message  # pyright: ignore[reportAttributeAccessIssue]
    assert states_of(job.folder) == ["queued", "running", "waiting", "running", "finished"]


def test_the_pauses_between_tries_double_up_to_half_a_minute_and_begin_anew_with_the_next_job(
    studio: Studio, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt, troubles, pauses = Worker._attempt, list[dict[str, str]](), list[float]()

    def fail(worker: Worker, job: Job) -> dict[str, str] | None:
        return troubles.pop() if troubles else attempt(worker, job)

    monkeypatch.setattr("app.jobs.making.worker._RETRY_SECONDS", 2.0)
    monkeypatch.setattr(Worker, "_attempt", fail)
    monkeypatch.setattr(Worker, "_wait_out", lambda *given: pauses.append(given[-1]))
    studio.service.start()
    for number in (6, 2):
        troubles += [{"message": "The disk is full."}] * number
        assert isinstance(studio.events(studio.submit("steps=1"))[-1], Finished)
    assert pauses == [2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 2.0, 4.0]


def test_a_start_on_a_full_disk_is_one_sentence(studio: Studio, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    (studio.outputs / DATABASE_FOLDER).mkdir(parents=True)
    monkeypatch.setattr("app.jobs.storage.database.connect", full)
    with pytest.raises(InputError, match="the disk is full") as refusal:
        JobService(studio.outputs).start()
    assert "Free some space" in refusal.value.remedy
