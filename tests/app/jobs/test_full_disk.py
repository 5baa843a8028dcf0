"""Tests that a disk that is full at one kind of write loses no job of the real engine and changes no byte."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from app.jobs.job import Job
from app.jobs.service import JobService
from diffusers_helper.request import GenerationRequest
from tests.support import bad_disk
from tests.support.outputs import Folder

# Parts of the paths that a job writes after it was handed in.
KINDS = (
    "events.jsonl", "encodings.safetensors", "/sections/", "/segments/", "/thumbs/",
    "/preview", "/video-", "/video.mp4", "memory.json", "vae.json", "job.log",
)  # fmt: skip


class FullDisk:
    """A folder of jobs on a disk that is full for some kinds of writes."""

    def __init__(self, folder: Path, model: Path) -> None:
        self._control = folder / "full"
        self.relent()
        paths = {"BAD_DISK_FULL": str(self._control), "PYTHONPATH": str(Path(*bad_disk.__path__))}
        self.programs = Folder(folder / "jobs", model, "forward", paths)
        self.programs.start_server()
        self._service = JobService(self.programs.outputs)

    def relent(self) -> None:
        self._control.write_text("\n0")

    def fill(self, kind: str, times: int = 1) -> None:
        self.failed.unlink(missing_ok=True)
        self._control.write_text(f"{kind}\n{times}")

    @property
    def failed(self) -> Path:
        return self._control.with_name("full.failed")

    def make(self) -> Job:
        """Hand in a job, and return it once it is over."""
        request = GenerationRequest.from_dict(self.programs.settings(1) | {"seconds": 1.2})
        job = self._service.queue.add(request, allow_folder=True)
        assert list(self._service.follow(job.id))
        return self._service.job(job.id)


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[FullDisk]:
    disk = FullDisk(tmp_path_factory.mktemp("full"), tiny_model)
    yield disk
    disk.programs.end()


@pytest.fixture(scope="module")
def undisturbed(disk: FullDisk) -> bytes:
    job = disk.make()
    assert job.video
    return job.video.read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_disk_that_is_full_at_one_kind_of_write_delays_a_job_only(
    disk: FullDisk, undisturbed: bytes, kind: str
) -> None:
    disk.fill(kind)
    try:
        job = disk.make()
    finally:
        disk.relent()
    assert disk.failed.stat().st_size
    assert (job.state, job.message) == ("finished", "")
    assert job.video
    assert job.video.read_bytes() == undisturbed
    assert not list(job.folder.rglob("*.tmp"))
