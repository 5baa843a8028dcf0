"""Tests that whoever follows a job reaches an end, even if the job's own end cannot be written any more."""

import shutil
import sqlite3
from typing import Any

import pytest

from app.jobs.job import Job, JobState
from app.jobs.storage.store import JobStore
from app.ui.live.subscribe import watch
from diffusers_helper.errors import LongtakeError
from diffusers_helper.events import Cancelled, Failed, Finished, StepDone
from tests.support.jobs import Studio, wait_until

WAITS = "steps=2 at=1 fault=wait"


@pytest.fixture
def studio(studio: Studio) -> Studio:
    studio.service.start()
    return studio


def test_an_end_that_cannot_be_written_is_written_later(
    studio: Studio, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = studio.submit(WAITS)
    studio.until(job, StepDone)
    refused: list[str] = []
    enter = JobStore.enter

    def refusing(store: JobStore, job_id: str, state: JobState, **facts: Any) -> Job:
        if len(refused) < 3:
            refused.append(state)
            raise sqlite3.OperationalError("database or disk is full")
        return enter(store, job_id, state, **facts)

    monkeypatch.setattr(JobStore, "enter", refusing)
    studio.service.queue.cancel(job.id)
    assert isinstance(studio.events(job)[-1], Cancelled)
    assert len(refused) == 3
    assert studio.service.open_jobs() == (None, ())
    assert isinstance(studio.events(studio.submit("steps=1"))[-1], Finished)
    assert JobStore(studio.outputs).job(job.id).state == "cancelled"


def test_following_a_job_whose_folder_was_removed_ends(studio: Studio) -> None:
    job, other = studio.submit(WAITS), studio.submit("steps=1")
    studio.until(job, StepDone)
    items = studio.service.follow(job.id)
    # The stand-in writes this file last before it waits; any later file would make the removal fail.
    wait_until((job.folder / "troubles").exists)
    shutil.rmtree(job.folder)
    studio.service.queue.cancel(job.id)
    last = [item for item in items if item is not None][-1][1]
    assert isinstance(last, Failed)
    assert "removed" in last.message
    assert isinstance(studio.events(other)[-1], Finished)


def test_following_what_nobody_makes_any_more_is_refused(studio: Studio) -> None:
    running, queued = studio.submit(WAITS), studio.submit("steps=1")
    studio.until(running, StepDone)
    items = studio.service.follow(queued.id)
    assert next(items) is None
    pages = watch(studio.service)
    assert next(pages) is not None
    studio.service.stop()
    with pytest.raises(LongtakeError, match=f"stopped before job {queued.id} ended"):
        list(items)
    for _ in pages:  # It ends too, without an error that a browser would show.
        assert studio.service._stopped
