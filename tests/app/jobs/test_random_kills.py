"""Tests that random kills of a server, its engine and a user's program lose no job and change no byte.

The user's program edits, moves, pauses and removes jobs, and makes branches and takes of them.
`LONGTAKE_TEST_RANDOM_KILLS=100` asks for more kills, each of which costs the seconds of another start.
"""

import json
import os
import random
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from app.jobs.job import Job
from app.jobs.service import JobService
from diffusers_helper.errors import InputError
from tests.support.jobs import wait_until
from tests.support.outputs import Folder

KILLS = int(os.environ.get("LONGTAKE_TEST_RANDOM_KILLS", "2"))
TARGETS = (["server"], ["engines"], ["user"], ["server", "user"])
USER = """
import json, random, sys, time
from pathlib import Path
from app.jobs.service import JobService
from diffusers_helper.errors import InputError
from diffusers_helper.request import GenerationRequest
service, chance = JobService(Path(sys.argv[1])), random.Random(int(sys.argv[2]))
settings = json.loads(sys.argv[3])
queue, steering = service.queue, service.steering
def request():
    return GenerationRequest.from_dict(settings | {"seed": chance.randrange(1000)})
def again(job):
    queue.remove(job.id)
    queue.restore(job.id)
GROWING = [
    lambda job: queue.add(request(), allow_folder=True),
    lambda job: queue.branch(job.id, 1, seed=chance.randrange(1000)),
    lambda job: steering.takes(job.id, 2, 1),
]
OTHERS = [
    lambda job: queue.edit(job.id, request(), allow_folder=True), lambda job: queue.pause(job.id),
    lambda job: queue.resume(job.id), lambda job: queue.move_first(job.id), lambda job: again(job),
    lambda job: steering.wait(job.id, chance.random() < 0.5), lambda job: queue.pause_queue(),
    lambda job: queue.resume_queue(), lambda job: steering.change(job.id, {"prompt": chance.choice("abc")}),
]
queue.add(request(), allow_folder=True)
while True:
    jobs = service.jobs(100)
    try:
        chance.choice(OTHERS + GROWING * (len(jobs) < 8))(chance.choice(jobs))
    except InputError:
        pass
    time.sleep(chance.random() / 5)
"""


@pytest.fixture
def folder(tmp_path: Path, tiny_model: Path) -> Iterator[Folder]:
    folder = Folder(tmp_path / "killed", tiny_model, "forward")
    yield folder
    folder.end()


def go_on(service: JobService) -> list[Job]:
    """Have all jobs go on that a user or the kills have stopped, and return them once they are finished."""

    def are_finished() -> bool:
        service.queue.resume_queue()
        for job in service.jobs(100):
            with suppress(InputError):  # it has just finished
                service.steering.wait(job.id, False)
                if job.state not in ("running", "queued"):
                    service.queue.resume(job.id)
        return all(job.state == "finished" for job in service.jobs(100))

    while not are_finished():
        time.sleep(0.2)
    return service.jobs(100)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_random_kills_over_changes_of_the_queue_change_no_byte(folder: Folder) -> None:
    chance = random.Random(KILLS)
    settings = json.dumps(folder.settings(1) | {"steps": 1})

    def start(name: str) -> None:
        if name == "server":
            folder.start_server()
        elif name == "user":
            folder.start_program(
                "user", "-c", USER, str(folder.outputs), str(chance.randrange(999)), settings
            )

    start("server")
    start("user")
    service = JobService(folder.outputs)
    wait_until(service.jobs)
    for number in range(KILLS):
        time.sleep(3 * chance.random())
        for name in (targets := chance.choice(TARGETS)):
            if name == "engines":
                folder.kill_engines()
            else:
                folder.kill(name)
        sys.stderr.write(f"kill {number + 1}: {targets}, {[job.state for job in service.jobs(100)]}\n")
        for name in targets:
            start(name)
    folder.kill("user")
    jobs = go_on(service)
    assert {job.id for job in jobs} == {path.name for path in folder.outputs.glob("[!.]*")}
    for job in jobs:
        copy = service.queue.duplicate(job.id)  # which makes all of its sections anew, undisturbed
        wait_until(lambda copy=copy: service.job(copy.id).state == "finished")
        videos = [(path / "video.mp4").read_bytes() for path in (job.folder, copy.folder)]
        assert videos[0] == videos[1], job.id
    assert not list(folder.outputs.rglob("*.tmp"))
    assert not list(folder.outputs.rglob("*.damaged-*"))
