"""Tests that a page hears of everything that it shows, and that a card that left goes on as before."""

from pathlib import Path

import pytest

from app.jobs.downloads import manager
from diffusers_helper.models.registry import find_model
from tests.support.hub import Hub
from tests.support.jobs import Studio
from tests.support.shared import Sharing, until_state


def test_the_revision_changes_with_each_change_and_with_nothing_else(tmp_path: Path) -> None:
    sharing = Sharing(tmp_path)
    service, other = sharing.open(), sharing.open(start=False)
    key = service.crew.workers[0].card.key
    first, second = sharing.add(service, seconds=3.6), sharing.add(other)
    until_state(service, first, "running")
    changes = {
        "a job of another program": lambda: sharing.add(other),
        "a place": lambda: other.queue.move_first(second.id),
        "a mark": lambda: other.history.set_favourite(second.id, True),
        "an edit": lambda: other.queue.edit(second.id, sharing.request("another")),
        "a wish": lambda: other.steering.wait(second.id),
        "no wish": lambda: other.steering.wait(second.id, False),
        "a stop": lambda: other.queue.stop_after_section(first.id),
        "a card that leaves": lambda: service.crew.serve(key, leaves=True),
        "a card that is back": lambda: service.crew.serve(key),
        "a pause": lambda: other.queue.pause(second.id),
        "a removal": lambda: other.queue.remove(second.id),
        "a return": lambda: other.queue.restore(second.id),
        "a deletion": lambda: other.queue.delete(second.id),
    }
    try:
        for name, change in changes.items():
            before = service.revision
            assert service.revision == before, name
            change()
            assert service.revision != before, name
    finally:
        sharing.close()


def test_a_job_says_at_once_why_it_waits_however_often_that_changes(
    studio: Studio, lit_hub: tuple[Hub, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manager, "_CACHE_SECONDS", 1e9)
    (studio.outputs / "other").mkdir(parents=True)
    name, downloads = find_model("framepack-f1").name, studio.service.downloads
    job = studio.submit("", model=name, mode="forward")
    changes = {downloads.get: "being downloaded", downloads.pause: "paused", downloads.cancel: "not on this"}
    for change, words in [*changes.items()] * 2:
        change(name)
        assert words in studio.service.job(job.id).message


def test_the_revision_changes_with_what_a_model_is_waited_for(
    studio: Studio, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [("framepack-i2v", "Its model is being downloaded.")]
    monkeypatch.setattr(manager.Downloads, "revision", property(lambda _: tuple(lines)))
    before = studio.service.revision
    assert studio.service.revision == before
    lines[0] = ("framepack-i2v", "The disk is full.")
    assert studio.service.revision != before


def test_a_card_that_another_program_puts_back_makes_its_video_to_the_end(tmp_path: Path) -> None:
    sharing = Sharing(tmp_path)
    service, other = sharing.open(), sharing.open(start=False)
    key = service.crew.workers[0].card.key
    try:
        job = sharing.add(service)
        for _ in range(2):
            until_state(service, job, "running")
            service.crew.serve(key, leaves=True, now=True)
            until_state(service, job, "queued")
            other.queue.store.set_out(key, False)
        sharing.go(service)
        assert until_state(service, job, "finished").video
    finally:
        sharing.close()
