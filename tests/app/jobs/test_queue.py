"""Tests of what a user does with the queue: order, edit, duplicate, remove and bring back, at any size."""

import time
from dataclasses import replace
from pathlib import Path

import pytest

from app.jobs.job import size_of
from app.jobs.storage.rows import insert_row, row_of
from app.jobs.storage.trash import removed_jobs
from diffusers_helper.errors import InputError
from diffusers_helper.provenance.job_folder import JobFolder
from diffusers_helper.request import GenerationRequest
from tests.support.jobs import Studio
from tests.support.shared import Sharing


def test_a_model_in_a_folder_stays_with_its_job_and_comes_to_no_other(studio: Studio) -> None:
    queue, job = studio.service.queue, studio.submit()
    folder, picture = job.request.model, str(studio.picture)
    assert queue.duplicate(job.id, {"seed": 9}).request.model == folder
    assert queue.edit(job.id, replace(job.request, prompt="b")).request.model == folder
    demo = queue.add(replace(job.request, image=picture, model="demo"))
    for act in (
        lambda: queue.add(replace(job.request, image=picture)),
        lambda: queue.duplicate(demo.id, {"model": folder}),
        lambda: queue.edit(demo.id, replace(demo.request, model=folder)),
    ):
        with pytest.raises(InputError, match="expected one of demo"):
            act()
    edited = queue.edit(demo.id, replace(demo.request, model=folder), allow_folder=True)
    assert edited.request.model == folder


def test_a_picture_that_is_lost_is_asked_for_or_given_anew(studio: Studio) -> None:
    queue, job = studio.service.queue, studio.submit()
    (job.folder / "input.png").unlink()
    request = replace(job.request, prompt="b")
    with pytest.raises(InputError, match=r"cannot be read .* Give the pictures anew"):
        queue.edit(job.id, request)
    queue.edit(job.id, request, pictures={"image": studio.picture.read_bytes()})
    assert queue.job_with_request(job.id).request.prompt == "b"
    assert (job.folder / "input.png").is_file()


def test_a_video_has_the_shape_of_its_picture_or_of_its_words(sharing: Sharing) -> None:
    job = sharing.add(sharing.open(start=False), resolution=128)  # of a picture of 48 x 32 pixels
    finishing = GenerationRequest(video="/o/a.mp4", finish="source:96x64*90@30,speed:2")
    words = replace(job.request, image="", shape="9:16")
    sizes = [size_of(replace(job, request=request)) for request in (job.request, words, finishing)]
    assert sizes == [(160, 96), (96, 176), (96, 64)]
    (job.folder / "input.png").unlink()
    assert size_of(job) == (0, 0)


def test_a_longer_video_waits_as_it_is_asked_to(sharing: Sharing) -> None:
    service = sharing.open(start=False)
    queue, store = service.queue, service.queue.store
    job = sharing.add(service, mode="forward")
    folder = JobFolder(job.folder)
    folder.sections.mkdir()
    folder.latents(1).write_bytes(b"latents")
    store.enter(job.id, "running")
    store.enter(job.id, "finished", frames=37)
    longer = [queue.extend(job.id, 1.2, waits=waits) for waits in (True, False)]
    assert [store.commands(branch.id) for branch in longer] == [{"wait"}, set()]


def test_what_a_dead_program_was_making_is_removed_and_what_another_deletes_is_gone(
    sharing: Sharing, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = sharing.open(start=False)
    queue, jobs = service.queue, [sharing.add(service) for _ in range(4)]
    host = queue.store._owner.enter().partition(":")[0]
    for job in jobs[:2]:
        queue.store.enter(job.id, "running", started=1.0, owner=f"{host}:1:1")
    queue.remove(jobs[0].id)
    queue.delete(jobs[1].id)
    queue.remove(jobs[2].id)
    assert [job.id for job in service.jobs()] == [jobs[3].id]
    assert queue.store.claim(lambda job: "a card")
    for act in (queue.remove, queue.delete):
        with pytest.raises(InputError, match="is being made; expected one that is not"):
            act(jobs[3].id)
    gone = iter([[Path("gone"), *removed_jobs(queue.store.outputs)]])  # deleted after it was listed
    monkeypatch.setattr("app.jobs.queue.removed_jobs", lambda outputs: next(gone, removed_jobs(outputs)))
    assert queue.empty_trash()[0] == "gone"
    assert removed_jobs(queue.store.outputs) == []


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
