"""Tests of what a user does with the queue: order, edit, duplicate, remove and bring back, at any size."""

import time

import pytest

from app.jobs.storage.rows import insert_row, row_of
from tests.support.shared import Sharing


def names(sharing: Sharing) -> str:
    """Return the prompts of the queue, each a letter, as another program sees them."""
    return "".join(job.request.prompt for job in sharing.open(start=False).queue.jobs())


def test_a_long_queue_and_a_long_history_are_listed_without_their_folders(
    sharing: Sharing, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = sharing.open(start=False)
    first = sharing.add(service, "a ball")
    with service._store.transaction() as database:
        row = dict(row_of(database, first.id))
        for number in range(5000):
            state = "queued" if number < 1000 else "finished"
            place = row["place"] + number
            insert_row(database, row | {"id": f"job-{number}", "state": state, "place": place})
    monkeypatch.setattr("app.jobs.storage.rows.request_content", lambda folder: 1 / 0)
    began = time.process_time()
    assert len(service.queue.jobs()) == 1000
    page = service.history.search("ball", limit=100)
    assert (len(page.jobs), page.total) == (100, 5001)
    service.queue.move_first("job-990")
    assert [job.id for job in service.queue.jobs(limit=1)] == ["job-990"]
    assert time.process_time() - began < 2.0  # as little on a busy machine; see docs/log/jobs.md
