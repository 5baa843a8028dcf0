"""Tests that what somebody was told survives a power cut, whatever was not synced by then."""

import ast
import inspect
import itertools
import json
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.jobs.downloads.manager import Downloads
from app.jobs.history import History
from app.jobs.job import Job
from app.jobs.making.crew import Crew
from app.jobs.queue import Queue
from app.jobs.service import JobService
from app.jobs.steering import Steering
from app.jobs.storage.trash import removed_jobs
from diffusers_helper.events import Finished
from diffusers_helper.files import sync_folder, write_atomic
from diffusers_helper.provenance.job_folder import JobFolder
from diffusers_helper.provenance.lineage import Lineage
from tests.support.jobs import ROOT
from tests.support.power import Disk
from tests.support.shared import Sharing, events, until_state

# A program that does one thing after the other, and after each tells what a user then sees.
PROGRAM = """
import sys
from pathlib import Path
from diffusers_helper.events import Finished, SectionFinished
from tests.app.jobs.test_power_cut import grow, tell
from tests.support.shared import Sharing, until
sharing = Sharing(Path(sys.argv[1]))
service = sharing.open(start=False)
queue = service.queue
"""
BY_A_USER = """
a = sharing.add(service, "a", seconds=3.6, mode="forward")
b, c = sharing.add(service, "b"), sharing.add(service, "c")
queue.move(c.id, before=a.id)
queue.move_first(b.id)
queue.edit(b.id, sharing.request("another b"))
queue.pause(a.id)
service.history.set_favourite(b.id, True)
queue.cancel(c.id)
queue.pause_queue()
queue.remove(c.id)
queue.restore(c.id)
service.steering.wait(b.id)
service.steering.change(b.id, {"prompt": "a third b"})
queue.resume_queue()
grow(a, 3); d = queue.extend(a.id, 1.2)
e = queue.branch(a.id, 2, prompt="e")
f, = service.steering.takes(a.id, 1, 2)
g = queue.duplicate(a.id)
service.steering.resume(c.id)
queue.delete(g.id)
queue.remove(d.id)
queue.empty_trash()
queue.rebuild()
queue.store.set_out("card-1", True)
queue.store.set_out("card-1", False)
queue.store.adopts = True; taken, _ = queue.store.claim(lambda job: "card")
queue.stop_after_section(taken.id)
service.downloads.get("framepack-f1")
service.downloads.pause("framepack-f1")
service.downloads.cancel("framepack-f1")
"""
BY_A_MAKER = """
service.start()
whole, job = sharing.add(service), sharing.add(service, seconds=3.6)
sharing.go(service, 8 + 7)
until(service, whole, Finished)
until(service, job, SectionFinished)
"""


def writers(*classes: type) -> set[str]:
    """Find the public methods of classes that write: themselves, or by another method of one of them."""
    calls = dict[str, set[str]]()
    for name, method in (item for kind in classes for item in vars(kind).items() if callable(item[1])):
        tree = ast.parse(textwrap.dedent(inspect.getsource(method)))
        calls[name] = {_own_name(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    names = {"change", "transaction", "write_atomic", "unlink", "touch"}
    while more := {name for name, called in calls.items() if called & names} - names:
        names |= more
    return {name for name in names & calls.keys() if not name.startswith("_")}


def _own_name(called: ast.expr) -> str:
    """Name what is called, if it is a function, a method of the same object, or one of a file."""
    owner, _, name = ast.unparse(called).rpartition(".")
    is_own = owner in ("", "self", "self.store", "self._store", "self._queue", "store", "queue")
    return name if is_own or name in ("unlink", "touch") else ""


def test_each_public_method_that_writes_is_cut() -> None:
    cut = {"serve", *re.findall(r"\.(\w+)\(", BY_A_USER)}  # serve calls set_out
    assert writers(Queue, History, Steering, Downloads, Crew) <= cut


def grow(job: Job, count: int) -> None:
    """Give a job finished sections, as an engine leaves them on the disk."""
    folder = JobFolder(job.folder)
    folder.sections.mkdir()
    for number in range(1, count + 1):
        write_atomic(folder.latents(number), b"latents")
    for path in (folder.sections, folder.path):
        sync_folder(path)


def reported(service: JobService) -> list[dict[str, Any]]:
    """Return what a user is told about the jobs, wherever their folders lie."""
    return [
        {
            "id": job.id, "state": job.state, "place": job.position, "prompt": job.request.prompt,
            "favourite": job.favourite, "frames": job.frames, "message": job.message,
            "video": job.video.read_bytes().hex() if job.video else None,
            "picture": (job.folder / "input.png").read_bytes().hex(), "held": service.queue.is_paused,
            "commands": sorted(service.queue.store.commands(job.id)), "parent": [job.parent, job.kept],
            "from parent": sorted(path.name for path in job.folder.glob("sections/0*") if job.parent),
            "lineage": [span.to_dict() for span in Lineage.read(JobFolder(job.folder).lineage).spans],
            "removed": [folder.name for folder in removed_jobs(job.folder.parent)],
            "out": sorted(path.name for path in job.folder.parent.glob(".longtake/out-*")),
            "download": service.downloads.progress("framepack-f1").activity,
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


def test_what_a_user_did_survives_a_power_cut_and_what_was_cut_is_whole_or_undone(
    disk: Disk, tmp_path: Path
) -> None:
    moments, states = [0], list[list[dict[str, Any]]]([[]])
    for told in told_after(BY_A_USER, disk, tmp_path / "disk"):
        moments.append(len(disk.syncs))
        states.append(told)
    steps = BY_A_USER.strip().splitlines()
    for number, (before, after) in enumerate(itertools.pairwise(states)):
        for moment in [*range(moments[number] + 1, moments[number + 1]), moments[number + 1]]:
            service = JobService(disk.cut(tmp_path / f"cut-{moment}", moment) / "outputs")
            if moment == moments[number + 1]:
                assert reported(service) == after, steps[number]
            else:
                check_between(service, before, after, steps[number])
    assert len(steps) == len(states) - 1
    assert len(disk.syncs) > 100


def check_between(
    service: JobService, before: list[dict[str, Any]], after: list[dict[str, Any]], step: str
) -> None:
    """Check that a change that was cut is whole or undone, and has not touched what it is not about."""
    jobs = {job.id: job for job in service.jobs()}
    for told in (job for job in before if job in after):
        job = jobs[told["id"]]
        assert (job.state, job.request.prompt) == (told["state"], told["prompt"]), step
    removed = {folder.name for folder in removed_jobs(service.queue.store.outputs)}
    for told in (job for job in before if job["id"] not in jobs):
        is_deleted = told["id"] not in {job["id"] for job in after} and "delete" in step
        assert told["id"] in removed or is_deleted, step
    for job in jobs.values():
        is_half = job.damage == "folder" and step.startswith("queue.delete")  # its folder goes first
        assert is_half or (job.folder / "input.png").stat().st_size, step


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
