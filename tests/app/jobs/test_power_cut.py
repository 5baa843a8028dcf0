"""Tests that what somebody was told survives a power cut, whatever was not synced by then."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from app.jobs.job import Job
from app.jobs.service import JobService
from diffusers_helper.events import Finished, SectionFinished
from tests.support.power import Disk
from tests.support.shared import Sharing, events, until, until_state


@pytest.fixture
def sharing(tmp_path: Path) -> Iterator[Sharing]:
    (tmp_path / "disk").mkdir()
    sharing = Sharing(tmp_path / "disk")
    yield sharing
    sharing.close()


@pytest.fixture
def disk(sharing: Sharing, monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(sharing.outputs.parent, sharing.outputs.parent.parent / "record", monkeypatch)


def reported(job: Job) -> dict[str, object]:
    """Return what a user was told about a job, wherever its folder lies."""
    video = job.video.read_bytes() if job.video else None
    return {
        "id": job.id, "state": job.state, "place": job.place, "prompt": job.request.prompt,
        "favourite": job.favourite, "frames": job.frames, "video": video, "message": job.message,
        "picture": (job.folder / "input.png").read_bytes(),
    }  # fmt: skip


def test_what_a_user_did_survives_a_power_cut(sharing: Sharing, disk: Disk, tmp_path: Path) -> None:
    service = sharing.open(start=False)
    cuts = 0

    def check() -> None:
        nonlocal cuts
        cuts += 1
        after = JobService(disk.cut(tmp_path / f"cut-{cuts}") / "outputs")
        assert [reported(job) for job in after.jobs()] == [reported(job) for job in service.jobs()]
        assert after.queue.is_held == service.queue.is_held

    a = sharing.add(service, "a")
    check()
    b, c = sharing.add(service, "b"), sharing.add(service, "c")
    service.queue.move(c.id, before=a.id)
    check()
    service.queue.edit(b.id, sharing.request("another b"))
    check()
    service.queue.pause(a.id)
    check()
    service.history.set_favourite(b.id, True)
    check()
    service.queue.cancel(c.id)
    check()
    service.queue.hold()
    check()
    service.queue.remove(c.id)
    check()
    service.queue.restore(c.id)
    check()


def test_a_video_that_was_told_survives_a_power_cut_and_the_job_goes_on(
    sharing: Sharing, disk: Disk, tmp_path: Path
) -> None:
    service = sharing.open()
    whole, job = sharing.add(service), sharing.add(service, seconds=3.6)
    sharing.go(service, 8 + 7)
    end = until(service, whole, Finished)
    assert isinstance(end, Finished)
    until(service, job, SectionFinished)
    frames = service.job(job.id).frames
    outputs = disk.cut(tmp_path / "cut") / "outputs"
    service.queue.cancel(job.id)

    later = Sharing(tmp_path)
    later.outputs = outputs
    try:
        again = later.open()
        assert reported(again.job(whole.id)) == reported(service.job(whole.id))
        found = again.job(job.id)
        assert (found.state, found.frames) in (("queued", frames), ("running", frames))
        assert found.video is not None
        assert found.video.stat().st_size
        later.go(again)
        assert isinstance(events(again, found)[-1], Finished)
    finally:
        later.close()
    assert until_state(again, whole, "finished").video
