"""Tests of what a user does with the queue: order, edit, duplicate, remove and bring back, at any size."""

import json
import time

import pytest
from PIL import Image

from app.jobs.job import NoSuchJob
from app.jobs.storage.rows import insert_row, row_of
from diffusers_helper.errors import InputError
from diffusers_helper.provenance.job_folder import JobFolder
from tests.support.shared import Sharing


def names(sharing: Sharing) -> str:
    """Return the prompts of the queue, each a letter, as another program sees them."""
    return "".join(job.request.prompt for job in sharing.open(start=False).queue.jobs())


def test_a_job_that_has_not_begun_is_edited_and_checked_like_a_new_one(sharing: Sharing) -> None:
    service = sharing.open(start=False)
    job = sharing.add(service, "before", seed=1)
    edited = service.queue.edit(job.id, sharing.request("after", seed=2, image=job.request.image))
    assert (edited.request.prompt, edited.request.seed, edited.position) == ("after", 2, job.position)
    assert Image.open(JobFolder(job.folder).input).getpixel((5, 5)) == (200, 30, 40)
    Image.new("RGB", (48, 32), (0, 0, 255)).save(sharing.picture)
    service.queue.edit(job.id, sharing.request("after"))
    assert Image.open(JobFolder(job.folder).input).getpixel((5, 5)) == (0, 0, 255)
    with pytest.raises(InputError, match="nope"):
        service.queue.edit(job.id, sharing.request("never", model="nope"))
    assert json.loads(JobFolder(job.folder).request.read_text())["prompt"] == "after"
    assert sharing.open(start=False).job(job.id).request.prompt == "after"


def test_a_duplicate_differs_only_as_asked(sharing: Sharing) -> None:
    service = sharing.open(start=False)
    job = sharing.add(service, "a ball", seed=1, steps=3)
    service.queue.cancel(job.id)
    sharing.picture.unlink()  # the job has its own
    copy = service.queue.duplicate(job.id, {"seed": 2})
    assert (copy.state, copy.request.seed, copy.request.steps) == ("queued", 2, 3)
    assert JobFolder(copy.folder).input.read_bytes() == JobFolder(job.folder).input.read_bytes()
    with pytest.raises(InputError, match="steps"):
        service.queue.duplicate(job.id, {"steps": -1})
    assert len(service.jobs()) == 2


def test_a_job_that_is_resumed_has_no_end_until_it_ends_again(sharing: Sharing) -> None:
    service = sharing.open(start=False)
    job = sharing.add(service)
    service.queue.cancel(job.id)
    assert service.job(job.id).ended is not None
    assert service.queue.resume(job.id).ended is None


def test_a_removed_job_comes_back_as_it_was_until_the_trash_is_emptied(sharing: Sharing) -> None:
    service = sharing.open(start=False)
    a, b, c = (sharing.add(service, name) for name in "abc")
    service.queue.remove(b.id)
    assert names(sharing) == "ac"
    assert not b.folder.exists()
    for odd in (f"../{b.id}", f"{b.id}/", f"./{b.id}"):  # a path of a folder in the trash is no id
        with pytest.raises(NoSuchJob):
            service.queue.restore(odd)
    with pytest.raises(NoSuchJob):
        service.job(b.id)
    assert sharing.open(start=False).queue.restore(b.id) == b
    assert names(sharing) == "abc"
    service.queue.remove(b.id)
    assert service.queue.empty_trash() == [b.id]
    assert not list((sharing.outputs / ".longtake" / "trash").iterdir())
    for job_id in (b.id, "../../etc", a.id):
        with pytest.raises(NoSuchJob):
            service.queue.restore(job_id)
    assert names(sharing) == "ac"
    assert c.folder.exists()


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
