"""Tests that what somebody was told survives a power cut, whatever was not synced by then."""

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.jobs.service import JobService
from diffusers_helper.events import Finished
from tests.support.jobs import ROOT
from tests.support.power import Disk
from tests.support.shared import Sharing, events, until_state

# A program that does one thing after the other, and after each tells what a user then sees.
PROGRAM = """
import sys
from pathlib import Path
from diffusers_helper.events import Finished, SectionFinished
from tests.app.jobs.test_power_cut import tell
from tests.support.shared import Sharing, until
sharing = Sharing(Path(sys.argv[1]))
service = sharing.open(start=False)
queue = service.queue
"""
BY_A_USER = """
a = sharing.add(service, "a")
b, c = sharing.add(service, "b"), sharing.add(service, "c")
queue.move(c.id, before=a.id)
queue.edit(b.id, sharing.request("another b"))
queue.pause(a.id)
service.history.set_favourite(b.id, True)
queue.cancel(c.id)
queue.pause_queue()
queue.remove(c.id)
queue.restore(c.id)
service.steering.wait(b.id)
queue.resume_queue()
"""
BY_A_MAKER = """
service.start()
whole, job = sharing.add(service), sharing.add(service, seconds=3.6)
sharing.go(service, 8 + 7)
until(service, whole, Finished)
until(service, job, SectionFinished)
"""


def reported(service: JobService) -> list[dict[str, Any]]:
    """Return what a user is told about the jobs, wherever their folders lie."""
    return [
        {
            "id": job.id, "state": job.state, "place": job.position, "prompt": job.request.prompt,
            "favourite": job.favourite, "frames": job.frames, "message": job.message,
            "video": job.video.read_bytes().hex() if job.video else None,
            "picture": (job.folder / "input.png").read_bytes().hex(), "held": service.queue.is_paused,
            "waits": "wait" in service.queue.store.commands(job.id),
        }
        for job in service.jobs()
    ]  # fmt: skip


def tell(service: JobService) -> None:
    """Tell what a user sees now, and wait until the test has looked at the disk."""
    sys.stdout.write(json.dumps(reported(service)) + "\n")
    sys.stdout.flush()
    sys.stdin.readline()


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    (tmp_path / "disk").mkdir()
    return Disk(tmp_path / "disk", tmp_path / "record")


def told_after(steps: str, disk: Disk, folder: Path) -> Iterator[list[dict[str, Any]]]:
    """Yield what a program tells after each of these steps; it goes on when the next one is asked for."""
    lines = (f"{step}\ntell(service)" for step in steps.strip().splitlines())
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM + "\n".join(lines), str(folder)], env=os.environ | disk.environment,
        cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as program:  # fmt: skip
        assert program.stdin is not None
        assert program.stdout is not None
        for line in program.stdout:
            yield json.loads(line)
            program.stdin.write("\n")
            program.stdin.flush()
        assert program.wait() == 0


def test_what_a_user_did_survives_a_power_cut(disk: Disk, tmp_path: Path) -> None:
    for number, told in enumerate(told_after(BY_A_USER, disk, tmp_path / "disk"), 1):
        after = JobService(disk.cut(tmp_path / f"cut-{number}") / "outputs")
        assert reported(after) == told, BY_A_USER.strip().splitlines()[number - 1]
    assert number == len(BY_A_USER.strip().splitlines())


def test_a_power_cut_at_any_moment_leaves_a_change_whole_or_undone(disk: Disk, tmp_path: Path) -> None:
    moments, states = [0], list[list[dict[str, Any]]]([[]])
    for told in told_after(BY_A_USER, disk, tmp_path / "disk"):
        moments.append(len(disk.syncs))
        states.append(told)
    everything = {job["id"] for told in states for job in told}
    for number, (before, after) in enumerate(itertools.pairwise(states)):
        step = BY_A_USER.strip().splitlines()[number]
        for moment in range(moments[number] + 1, moments[number + 1]):
            service = JobService(disk.cut(tmp_path / f"cut-{moment}", moment) / "outputs")
            jobs = {job.id: job for job in service.jobs()}
            for told in (job for job in before if job in after):  # what the change is not about
                job = jobs[told["id"]]
                assert (job.state, job.request.prompt) == (told["state"], told["prompt"]), step
            for job_id in {job["id"] for job in before} - jobs.keys():
                assert service.queue.restore(job_id).state == "cancelled", step
            for job in jobs.values():
                assert (job.folder / "input.png").stat().st_size, step
    assert len(everything) == 3
    assert len(disk.syncs) > 60


def test_a_video_that_was_told_survives_a_power_cut_and_the_job_goes_on(disk: Disk, tmp_path: Path) -> None:
    *_, told = told_after(BY_A_MAKER, disk, tmp_path / "disk")
    unfinished, whole = told
    later = Sharing(tmp_path)
    later.outputs = disk.cut(tmp_path / "cut") / "outputs"
    try:
        again = later.open()
        assert reported(again)[1] == whole
        job = again.job(unfinished["id"])
        assert (job.state, job.frames) in (
            ("queued", unfinished["frames"]),
            ("running", unfinished["frames"]),
        )
        assert job.video.stat().st_size
        later.go(again)
        assert isinstance(events(again, job)[-1], Finished)
        assert until_state(again, again.job(whole["id"]), "finished").video
    finally:
        later.close()
