"""Tests that repeated kills of all programs, or power cuts, over one queue lose no job and change no byte.

`LONGTAKE_TEST_CRASHES=30` asks for the full size, with both kinds of disturbance in both orders of sections.
Each kill or cut costs the seconds of another start.
"""

import contextlib
import os
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.jobs.job import NotAllowed
from app.jobs.service import JobService
from diffusers_helper.events import SectionFinished
from diffusers_helper.provenance.job_folder import JobFolder
from diffusers_helper.request import GenerationRequest
from tests.support.jobs import wait_until
from tests.support.outputs import SECTIONS, Folder
from tests.support.power import Disk

CRASHES = int(os.environ.get("LONGTAKE_TEST_CRASHES", "2"))
IS_FULL = CRASHES > 10
CUTS = CRASHES if IS_FULL else 1
# The last one is the command line's own.
JOBS = 5 if IS_FULL else 3
BOTH = ("inverted", "forward")
KILLS = [
    ("engine",), ("server",), ("second",), ("command",), ("server", "second"),
    ("server", "second", "command"),
]  # fmt: skip


@pytest.fixture
def folders() -> Iterator[list[Folder]]:
    made: list[Folder] = []
    yield made
    for folder in made:
        folder.end()


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("mode", BOTH if IS_FULL else BOTH[:1])
def test_all_jobs_finish_in_order_with_the_undisturbed_bytes(
    mode: str, folders: list[Folder], tmp_path: Path, tiny_model: Path
) -> None:
    folder = Folder(tmp_path / "killed", tiny_model, mode)
    folders.append(folder)
    _start_all(folder)
    out_of_turn = _kill_again_and_again(folder, mode)
    folder.wait_until_all_are_over()
    _check_all(folder, Folder(tmp_path / "whole", tiny_model, mode), out_of_turn)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("mode", BOTH if IS_FULL else BOTH[1:])
def test_power_cuts_lose_no_job_and_change_no_byte(
    mode: str, folders: list[Folder], tmp_path: Path, tiny_model: Path
) -> None:
    (tmp_path / "disk").mkdir()
    disk = Disk(tmp_path / "disk", tmp_path / "record")
    folder = Folder(tmp_path / "disk", tiny_model, mode, disk.environment)
    folders.append(folder)
    _start_all(folder)
    submitted = [job.id for job in JobService(folder.outputs).jobs()]
    chance = random.Random(12)
    for number in range(CUTS):
        folder.wait_for_signs(chance.randrange(1, 15), 30)
        folder.end()
        disk.lose()
        assert [job.id for job in JobService(folder.outputs).jobs()] == submitted
        folder.start_server(name="server")
        folder.start_server(name="second")
        command = folder.jobs()[-1]
        if not folder.is_over(command) and chance.random() < 0.5:
            folder.resume_command(command.job)
        sys.stderr.write(f"{mode}: cut {number + 1}, finished {sum(map(folder.is_over, folder.jobs()))}\n")
    folder.wait_until_all_are_over()
    _check_all(folder, Folder(tmp_path / "whole", tiny_model, mode), {folder.jobs()[-1].job})


def _start_all(folder: Folder) -> None:
    """Start two servers, of which one gets jobs, and a command line that brings the last job."""
    folder.start_server(*range(JOBS - 1))
    folder.start_server(name="second")
    folder.start_command(JOBS - 1)
    service = JobService(folder.outputs)
    wait_until(lambda: len(service.jobs()) == JOBS)


def _check_all(folder: Folder, whole: Folder, out_of_turn: set[str]) -> None:
    """Check that all jobs finished in order as jobs that nothing disturbs, and that nothing else is left."""
    service = JobService(folder.outputs)
    expected = _undisturbed(whole)
    for number, job in enumerate(folder.jobs()):
        events = [item[1] for item in service.follow(job.job) if item is not None]
        assert service.job(job.job).state == "finished", service.job(job.job)
        assert job.video.read_bytes() == expected[number].video.read_bytes()
        sections = [event.section for event in events if isinstance(event, SectionFinished)]
        assert sections == list(range(1, SECTIONS + 1))
        for kind in ("sections", "segments", "thumbs"):
            assert _names(job.path / kind) == _names(expected[number].path / kind)
    in_order = sorted((service.job(job.job) for job in folder.jobs()[:-1]), key=lambda job: job.position)
    ended = [job.ended or 0.0 for job in in_order if job.id not in out_of_turn]
    assert ended == sorted(ended)
    folder.end()
    service.start()  # as the next start leaves it
    service.stop()
    assert not list(folder.outputs.rglob("*.tmp"))
    assert _names(folder.outputs) == sorted([".longtake", *(job.job for job in folder.jobs())])


def _kill_again_and_again(folder: Folder, mode: str) -> set[str]:
    """Kill and start programs at random moments; return the jobs that did not wait for their turn."""
    chance = random.Random(11)
    user, paused = JobService(folder.outputs), set[str]()
    with contextlib.suppress(NotAllowed):  # on a busy machine, they may be finished before they can be moved
        user.queue.move(folder.jobs()[JOBS - 2].job, before=folder.jobs()[JOBS - 3].job)
    running, _ = user.open_jobs()
    begun = set[str]() if running is None else {running.id}  # a move does not interrupt a job that has begun
    counts: dict[str, int] = {}
    began = time.monotonic()
    for _ in range(CRASHES):
        if chance.random() < 0.25:  # also while the programs are starting
            time.sleep(chance.uniform(0, 3))
        else:
            folder.wait_for_signs(chance.randrange(1, 15), 30)
        running, _ = user.open_jobs()
        if running is not None and chance.random() < 0.3:
            paused.add(running.id)
            user.queue.pause(running.id)
        names = chance.choice(KILLS)
        counts["+".join(names)] = counts.get("+".join(names), 0) + 1
        if names == ("engine",):
            folder.kill_engines()
        folder.kill(*names)
        for name in ("server", "second"):
            if not folder.runs(name):
                folder.start_server(name=name)
        for job_id in paused:
            user.queue.resume(job_id)
        command = folder.jobs()[-1]
        if not folder.runs("command") and not folder.is_over(command) and chance.random() < 0.5:
            folder.resume_command(command.job)
        finished = sum(map(folder.is_over, folder.jobs()))
        sys.stderr.write(f"{time.monotonic() - began:.0f} s, {mode}: killed {counts}, finished {finished}\n")
    for job_id in paused:
        user.queue.resume(job_id)
    return paused | begun


def _undisturbed(whole: Folder) -> list[JobFolder]:
    service = JobService(whole.outputs)
    for number in range(JOBS):
        service.queue.add(GenerationRequest.from_dict(whole.settings(number)), allow_folder=True)
    service.start()
    for job in whole.jobs():
        assert list(service.follow(job.job))
    service.stop()
    return whole.jobs()


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())
