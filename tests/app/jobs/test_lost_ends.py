"""Whoever follows a job comes to an end, also where the job's own end cannot be written any more."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.jobs.store import JobStore
from app.ui.live.watch import watch
from diffusers_helper.errors import LongtakeError
from diffusers_helper.events import Event, Failed, Finished, StepDone
from tests.support.jobs import STAND_IN, Studio

WAITS = "steps=2 at=1 fault=wait"


@pytest.fixture
def studio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Studio]:
    monkeypatch.setenv("PYTHONPATH", STAND_IN)
    studio = Studio(tmp_path)
    studio.service.start()
    yield studio
    studio.service.stop()


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> list[Event]:
    """The index takes no final event while this list is empty; it has those that were refused."""
    refused: list[Event] = []
    index = JobStore._index

    def refusing(store: JobStore, event: Event) -> None:
        if event.is_final and len(refused) < 2:
            refused.append(event)
            raise sqlite3.OperationalError("database or disk is full")
        index(store, event)

    monkeypatch.setattr(JobStore, "_index", refusing)
    return refused


@pytest.mark.timeout(60)
def test_an_end_that_the_index_refuses_is_told_all_the_same(studio: Studio, full: list[Event]) -> None:
    job = studio.submit("steps=1")
    end = studio.events(job)[-1]
    assert isinstance(end, Failed)
    assert "disk is full" in end.message
    assert studio.service.job(job.id).state == "failed"
    assert studio.service.open_jobs() == (None, ())
    # The next job runs; then, with room again, what could not be written is.
    assert isinstance(studio.events(studio.submit("steps=1"))[-1], Finished)
    assert len(full) == 2
    studio.service._store.recover(adopt=False)
    assert JobStore(studio.outputs).job(job.id).state == "failed"
    last = [event for _, event in JobStore(studio.outputs).events(job.id).read()][-1]
    assert isinstance(last, Failed)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("lost", ["index", "folder"])
def test_following_ends_after_a_stop_whose_end_cannot_be_written(
    lost: str, studio: Studio, request: pytest.FixtureRequest
) -> None:
    job = studio.submit(WAITS)
    studio.until(job, StepDone)
    items = studio.service.follow(job.id)
    if lost == "index":
        request.getfixturevalue("full")
    else:
        shutil.rmtree(studio.outputs)
    studio.service.stop()
    last = [item for item in items if item is not None][-1][1]
    assert isinstance(last, Failed)
    assert last.message


@pytest.mark.timeout(60)
def test_following_what_nobody_makes_any_more_is_refused(studio: Studio) -> None:
    running, queued = studio.submit(WAITS), studio.submit("steps=1")
    studio.until(running, StepDone)
    items = studio.service.follow(queued.id)
    assert next(items) is None
    pages = watch(studio.service)
    assert next(pages).live is not None
    studio.service.stop()
    with pytest.raises(LongtakeError, match=f"stopped before job {queued.id} came to its end"):
        list(items)
    for _ in pages:  # ends too, without an error that a browser would be shown
        assert studio.service._stopped
