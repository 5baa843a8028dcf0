"""Tests that a disk that is full or cannot be used now loses no job and changes no byte, and can be freed."""

import errno
import json
import os
import random
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from app.cli import main
from app.jobs.job import Job
from app.jobs.service import JobService
from diffusers_helper.errors import InputError
from diffusers_helper.request import GenerationRequest
from tests.support.bad_calls import BadCalls
from tests.support.jobs import states_of, wait_until
from tests.support.outputs import Folder
from tests.support.shared import Sharing, events

# `LONGTAKE_TEST_CALLS=1000` has every call that writes fail with every error.
CALLS = int(os.environ.get("LONGTAKE_TEST_CALLS", "4"))
ERRORS = (errno.ENOSPC, errno.EIO)
LAST_CALLS = 30  # of a job, of which some may be missing in another one
MEGABYTE = 2**20


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Provide a file system of 24 MB in memory."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ("mount", "-t", "tmpfs", "-o", "size=24m", "small", str(folder))
    if os.geteuid() or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("needs the right to mount a file system, as root has")
    yield folder
    subprocess.run(("umount", "--lazy", str(folder)), check=True)


def fill(folder: Path) -> None:
    with (folder / "others").open("ab", buffering=0) as file, suppress(OSError):
        for size in (65536, 4096, 1):
            with suppress(OSError):
                while file.write(bytes(size)):
                    pass
    assert shutil.disk_usage(folder).free == 0


def ended(sharing: Sharing, service: JobService) -> Job:
    """Return a job that was ended and takes a megabyte."""
    job = sharing.add(service)
    service.queue.cancel(job.id)
    (job.folder / "video.mp4").write_bytes(bytes(MEGABYTE))
    return service.job(job.id)


@pytest.fixture
def sharing(small_disk: Path) -> Iterator[Sharing]:
    sharing = Sharing(small_disk)
    yield sharing
    sharing.close()


def test_on_a_full_disk_jobs_are_paused_removed_and_deleted_and_a_new_start_goes_on(sharing: Sharing) -> None:
    disk = sharing.outputs.parent
    service = sharing.open(start=False)
    jobs = [ended(sharing, service) for _ in range(3)]
    queued = sharing.add(service, "queued")
    fill(disk)
    again = sharing.open()  # after a crash
    assert again.queue.pause(queued.id)
    assert {job.id for job in again.jobs()} == {queued.id, *(job.id for job in jobs)}
    for job in jobs[:2]:
        again.queue.remove(job.id)
        fill(disk)
    assert [job.id for job in again.history.search(states=["cancelled"]).jobs] == [jobs[2].id]
    assert again.queue.restore(jobs[1].id) == jobs[1]
    assert again.queue.empty_trash() == [jobs[0].id]
    assert shutil.disk_usage(disk).free >= MEGABYTE
    again.queue.delete(jobs[1].id)
    assert shutil.disk_usage(disk).free >= 2 * MEGABYTE
    again.queue.resume(queued.id)
    sharing.go(again)
    events(again, queued)
    assert {path.name for path in sharing.outputs.glob("[!.]*")} == {queued.id, jobs[2].id}


def test_without_a_reserve_a_full_disk_refuses_a_removal_whole_and_deletes(sharing: Sharing) -> None:
    disk = sharing.outputs.parent
    service = sharing.open(start=False)
    jobs = [ended(sharing, service) for _ in range(2)]
    service.queue.remove(jobs[0].id)
    (sharing.outputs / ".longtake" / "reserve").unlink()
    fill(disk)
    again = sharing.open()
    with pytest.raises(InputError, match="the disk is full"):
        again.queue.remove(jobs[1].id)
    assert again.job(jobs[1].id) == jobs[1]
    assert jobs[1].folder.is_dir()
    again.queue.delete(jobs[1].id)
    assert shutil.disk_usage(disk).free >= MEGABYTE
    fill(disk)
    assert again.queue.empty_trash() == [jobs[0].id]
    assert not again.jobs()


def commands(outputs: Path, *lines: str) -> None:
    for line in lines:
        assert main(["jobs", *line.split(), "--outputs", str(outputs)]) == 0


@pytest.mark.slow
def test_a_crash_on_a_full_disk_loses_no_job_and_the_command_line_frees_it(
    small_disk: Path, tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    programs = Folder(small_disk / "jobs", tiny_model, "forward")
    try:
        programs.start_server(1, 2, 3)
        service = JobService(programs.outputs)
        first, second, third = reversed(service.jobs())
        wait_until(lambda: service.job(first.id).state == "finished")
        (first.folder / "large").write_bytes(bytes(MEGABYTE))
        fill(small_disk)
        waiting: list[Job] = []  # the second job, unless it was over before the disk was full
        wait_until(lambda: waiting.extend(job for job in service.jobs() if job.state == "waiting") or waiting)
        assert waiting[0].message.startswith("The disk is full")
        commands(programs.outputs, "list")
        assert f"{waiting[0].id}   waiting" in capsys.readouterr().out
        programs.end()
        fill(small_disk)
        commands(programs.outputs, "list")
        assert f"{waiting[0].id}   interrupted" in capsys.readouterr().out
        programs.start_server()
        capsys.readouterr()
        commands(programs.outputs, f"remove {first.id} --json", "usage --json")
        *_, usage = map(json.loads, capsys.readouterr().out.splitlines())
        assert usage["removed_bytes"] > MEGABYTE
        assert usage["free_bytes"] == 0
        commands(programs.outputs, "empty-trash")
        (small_disk / "others").unlink()
        for job in (second, third):
            wait_until(lambda job=job: service.job(job.id).state == "finished")
    finally:
        programs.end()
    other = Folder(tmp_path / "whole", tiny_model, "forward")
    try:
        other.start_server(2, 3)
        other.wait_until_all_are_over()
    finally:
        other.end()
    whole = [job.video.read_bytes() for job in other.jobs()]
    assert [job.video.read_bytes() for job in programs.jobs()] == whole


class BadDisk:
    """A server over a folder, whose calls that write fail when a test says so."""

    def __init__(self, folder: Path, model: Path) -> None:
        self.root = folder / "jobs"
        self.calls = BadCalls(self.root, folder / "calls")
        self.programs = Folder(self.root, model, "forward", self.calls.environment)
        self.programs.start_server()
        self._service = JobService(self.programs.outputs)
        self.make()  # loads the model
        self.whole, _ = self.make()
        self.num_calls = self.calls.count

    def make(self, first: int = 2**30, number: int = 0, *, lasts: bool = False) -> tuple[bytes, Job]:
        """Make a job, and have one call of its program fail, or all of them for a while."""
        request = GenerationRequest.from_dict(self.programs.settings(1) | {"seconds": 1.2})
        self.calls.fail(first, number, 2**20 if lasts else 1)
        job = self._service.queue.add(request, allow_folder=True)
        if lasts:
            wait_until(lambda: self.calls.failed > 20)
            self.calls.relent()
        wait_until(lambda: self._service.job(job.id).is_over)
        job = self._service.job(job.id)
        return job.video.read_bytes() if job.video else b"", job


@pytest.fixture(scope="module")
def bad_disk(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[BadDisk]:
    disk = BadDisk(tmp_path_factory.mktemp("bad"), tiny_model)
    yield disk
    disk.programs.end()


@pytest.mark.slow
@pytest.mark.parametrize("number", ERRORS, ids=errno.errorcode.get)
def test_a_job_that_cannot_write_once_or_for_a_while_gives_the_same_bytes_and_nothing_counts_as_damaged(
    bad_disk: BadDisk, number: int
) -> None:
    calls = range(1, bad_disk.num_calls)
    sample = random.Random(number).sample(calls, min(CALLS, len(calls)))
    for index, call in enumerate(sample):
        lasts = index % 4 == 3
        # Some of the last calls come when the job is over, and may be fewer than they were.
        first = min(call, bad_disk.num_calls - LAST_CALLS) if lasts else call
        video, job = bad_disk.make(first, number, lasts=lasts)
        num_calls = bad_disk.calls.count
        case = f"call {first}, {bad_disk.calls.last}"
        assert bad_disk.calls.failed == (0 if lasts else 1) or num_calls < first, case
        assert (job.state, job.message) == ("finished", ""), case
        assert video == bad_disk.whole, case
        assert b"damaged" not in (job.folder / "events.jsonl").read_bytes(), case
        odd = [*bad_disk.root.rglob("*.damaged-*"), *job.folder.rglob("*.tmp")]
        assert not odd, case
        assert states_of(job.folder)[-1] == "finished", case
