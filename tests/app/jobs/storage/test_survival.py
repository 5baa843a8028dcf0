"""Tests that no job is lost, whatever dies and however often, in cases that once lost jobs."""

import json
import subprocess
import sys

import pytest

from app.jobs.job import Job, JobState
from app.jobs.service import JobService
from app.jobs.storage.commands import TAKEN_OVER
from diffusers_helper.errors import InputError
from diffusers_helper.events import Failed, Finished, SectionFinished, StepDone, Warned
from diffusers_helper.provenance.job_folder import JobFolder
from tests.support.jobs import Studio, kill, sections_of, states_of, wait_until

pytestmark = pytest.mark.slow  # each test waits for the deaths of programs
HANGS = "sections=3 steps=1 at=1 fault=hang times=1"


@pytest.fixture
def interrupted(studio: Studio) -> str:
    """Return the job of a server that has ended after the first section."""
    studio.service.start()
    job = studio.submit("sections=3 steps=1 at=1 fault=wait times=1")
    studio.until(job, SectionFinished)
    studio.service.stop()
    assert not list(job.folder.rglob("*.tmp"))
    studio.service = studio.open()
    return job.id


def test_what_is_said_twice_is_written_once(studio: Studio) -> None:
    job = studio.submit()
    for _ in range(3):
        studio.service._store.enter(job.id, "running", message="The disk is full.")
    assert states_of(job.folder) == ["queued", "running"]


def test_a_database_that_vanishes_is_waited_for(studio: Studio, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.jobs.making.crew._LOOK_SECONDS", 0.1)
    studio.service.start()
    first, second = studio.submit("steps=2 at=1 fault=pause"), studio.submit("steps=1")
    studio.until(first, StepDone)
    folder = studio.outputs / ".longtake"
    away = folder.rename(studio.outputs.with_name("away"))
    (first.folder / "go").touch()
    with pytest.raises(InputError, match="cannot be written"):
        studio.submit("steps=1")
    assert not folder.exists()
    away.rename(folder)
    for job in (first, second):
        assert isinstance(studio.events(job)[-1], Finished)


def test_a_program_with_a_job_of_its_own_leaves_interrupted_ones_to_a_server(
    studio: Studio, interrupted: str
) -> None:
    other = JobService(studio.outputs)
    other.start(adopt=False)
    mine = studio.submit("steps=1", service=other)
    assert isinstance(studio.events(mine)[-1], Finished)
    other.stop()
    assert studio.service.job(interrupted).state == "interrupted"
    studio.service.start()
    events = studio.events(studio.service.job(interrupted))
    assert isinstance(events[-1], Finished)
    assert sections_of(events) == [1, 2, 3]
    assert states_of(studio.outputs / interrupted)[-1] == "finished"
    assert TAKEN_OVER in [event.message for event in events if isinstance(event, Warned)]


def test_what_is_in_the_folder_decides_where_logs_are_lost(studio: Studio, interrupted: str) -> None:
    JobFolder(studio.outputs / interrupted).events.write_bytes(b'{"event": "job_st')
    studio.service.start()
    events = studio.events(studio.service.job(interrupted))
    assert isinstance(events[-1], Finished)
    assert sections_of(events)[-2:] == [2, 3]
    assert 1 not in [event.section for event in events if isinstance(event, StepDone)]


def test_a_job_whose_program_died_before_it_began_is_resumed(studio: Studio) -> None:
    job = studio.submit("steps=1", service=studio.open())
    studio.service.start(adopt=False)
    assert isinstance(studio.events(studio.submit("steps=1"))[-1], Finished)
    assert studio.service.job(job.id).state == "queued"
    studio.service.queue.resume(job.id)
    assert isinstance(studio.events(job)[-1], Finished)


@pytest.mark.parametrize("state", ["interrupted", "failed", "cancelled"])
def test_a_user_lets_a_job_go_on(studio: Studio, state: JobState) -> None:
    fault = {"interrupted": "wait", "failed": "error", "cancelled": "wait"}[state]
    studio.service.start()
    job = studio.submit(f"sections=3 steps=1 at=1 fault={fault} times=1")
    studio.until(job, SectionFinished)
    if state == "interrupted":
        studio.service.stop()
        studio.service = studio.open()
        studio.service.start(adopt=False)
    elif state == "cancelled":
        studio.service.queue.cancel(job.id)
    wait_until(lambda: studio.service.job(job.id).state == state)
    wait_until(lambda: not studio.service.open_jobs()[0])
    known = len(studio.service.events(job.id))
    assert studio.service.queue.resume(job.id).state == "queued"
    events = studio.events(job, after=known)
    assert isinstance(events[-1], Finished)
    assert sections_of(events) == [2, 3]
    assert studio.service.queue.resume(job.id).state == "finished"
    done: Job = studio.service.job(job.id)
    assert (done.message, done.frames) == ("", 109)
    # The whole log, with the old end in between, is followed to the new end.
    assert studio.events(job)[-1] == events[-1]


def test_a_job_that_fails_again_keeps_the_longer_video(studio: Studio) -> None:
    studio.service.start()
    job = studio.submit("sections=3 steps=1 at=1 fault=SIGABRT times=3")
    assert isinstance(studio.events(job)[-1], Failed)
    assert (job.folder / "video.mp4").read_bytes() == b"video of 37 frames"
    (job.folder / "troubles").unlink()
    request = json.loads((job.folder / "request.json").read_text())
    request["prompt"] = "sections=3 steps=1 at=2 fault=SIGABRT"
    (job.folder / "request.json").write_text(json.dumps(request))
    studio.service.queue.resume(job.id)
    assert isinstance(studio.events(job)[-1], Failed)
    assert (job.folder / "video.mp4").read_bytes() == b"video of 73 frames"


SUBMITTING = """
import sys, time
from pathlib import Path
from app.jobs import queue
from app.jobs.storage import folders
from app.jobs.service import JobService
from diffusers_helper.request import GenerationRequest
outputs, picture, model, place = sys.argv[1:]
module = folders if place == "sync_folder" else queue
whole = getattr(module, place)
def die(*given, **named):
    if place == "sync_folder" and given != (Path(outputs),):
        return whole(*given, **named)
    print("there", flush=True)
    time.sleep(600)
setattr(module, place, die)
JobService(Path(outputs)).queue.add(
    GenerationRequest(image=picture, prompt="steps=1", model=model), allow_folder=True, press="a" * 16)
"""


@pytest.mark.parametrize("place", ["store_request", "mark_for_old_versions", "sync_folder", "insert_row"])
def test_a_kill_while_a_job_is_handed_in_leaves_a_whole_job_or_none(studio: Studio, place: str) -> None:
    arguments = [str(studio.outputs), str(studio.picture), str(studio.model), place]
    process = subprocess.Popen(
        [sys.executable, "-c", SUBMITTING, *arguments], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "there\n"
    kill(process)
    studio.service.start()
    left = {path.name for path in studio.outputs.iterdir()} - {".longtake"}
    assert left == {job.id for job in studio.service.jobs()}
    assert len(left) == (1 if place in ("sync_folder", "insert_row") else 0)
    for job in studio.service.jobs():
        assert job.state == "paused"  # nobody was told of it
        assert studio.service.history.made_by("a" * 16) == [job]
        studio.service.queue.resume(job.id)
        assert isinstance(studio.events(job)[-1], Finished)
    assert not list(studio.outputs.rglob("*.tmp"))
