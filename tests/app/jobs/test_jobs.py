"""Tests of jobs from submission to their end, over an engine process whose pipeline is a stand-in."""

import json
import os
import re
import signal
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from app.jobs.job import NotAllowed, video_of
from app.jobs.service import JobService
from diffusers_helper.errors import InputError, LongtakeError
from diffusers_helper.events import (
    Cancelled,
    Event,
    Finished,
    SectionFinished,
    StageStarted,
    StepDone,
    Warned,
    from_dict,
    to_dict,
)  # fmt: skip
from tests.support.jobs import Studio, engine_facts, is_running, wait_until
from tests.support.reported_jobs import job_of


@pytest.fixture
def open_studio(studio: Studio) -> Studio:
    studio.service.start()
    return studio


LIVES = (
    "sections=2 steps=2", "sections=3 steps=1 at=2 fault=wait",
    "sections=2 steps=1 at=1 fault=obeyed times=1", "sections=2 steps=1 at=1 fault=memory",
    "sections=2 steps=1 at=1 fault=error", "sections=2 steps=1 at=1 fault=input",
    "sections=2 steps=1 at=1 fault=SIGKILL times=2", "sections=2 steps=1 at=1 fault=exit",
    "sections=2 steps=1 at=1 fault=full times=2",
)  # fmt: skip


@pytest.mark.parametrize("script", LIVES)
def test_the_life_of_a_job(open_studio: Studio, script: str, snapshot: SnapshotAssertion) -> None:
    """Compare all that a job says, the states that it has, its record and its files with those of before."""
    service = open_studio.service
    job = open_studio.submit(script, seed=7)
    if "wait" in script:
        open_studio.until(job, SectionFinished, 2)
        queued = open_studio.submit("steps=1")
        assert service.queue.cancel(queued.id)
        assert open_studio.events(queued) == [Cancelled(job=queued.id, time=0.0, video=None, frames=0)]
        assert service.queue.cancel(job.id)
    events = open_studio.events(job)
    wait_until(lambda: not service.open_jobs()[0])
    lines = (job.folder / "events.jsonl").read_text(encoding="utf-8").splitlines()
    assert [from_dict(json.loads(line)) for line in lines] == events
    assert [event.time for event in events] == sorted(event.time for event in events)
    texts = [f"{type(event).__name__} {facts_of(event)}" for event in events]
    texts += [f"{line.state}: {line.reason}" for line in service.history.transitions(job.id)]
    done = service.job(job.id)
    assert job.created <= (done.started or 0) <= (done.ended or 0)
    record = {"video": done.video, "frames": done.frames, "message": done.message, "remedy": done.remedy}
    files = sorted(file.name for file in job.folder.rglob("*") if file.is_file())
    texts += [f"{record}", " ".join(files)]
    text = "\n".join(texts).replace(job.id, "JOB").replace(str(open_studio.outputs), "OUT")
    assert re.sub(r"pid=\d+ loaded=\d+|0\.\d+ GB", "...", text) == snapshot
    assert isinstance(open_studio.events(open_studio.submit("steps=1"))[-1], Finished)


def facts_of(event: Event) -> dict[str, object]:
    """Return what an event says that depends on no clock and no line of a traceback."""
    facts = {name: value for name, value in to_dict(event).items() if value}
    if "Traceback" in str(facts.get("detail")):
        facts["detail"] = "Traceback " + str(facts["detail"]).splitlines()[-1]
    return {name: value for name, value in facts.items() if name not in ("event", "job", "time", "seconds")}


def test_following_from_the_middle_gives_the_rest_with_the_same_numbers(open_studio: Studio) -> None:
    job = open_studio.submit("sections=1 steps=4")
    whole = [item for item in open_studio.service.follow(job.id) if item is not None]
    assert [number for number, _ in whole] == list(range(1, len(whole) + 1))
    assert [item for item in open_studio.service.follow(job.id, after=3) if item is not None] == whole[3:]
    other = JobService(open_studio.outputs)
    assert [item for item in other.follow(job.id, after=5) if item is not None] == whole[5:]
    with pytest.raises(InputError, match="nothing-of-that-name"):
        next(open_studio.service.follow("nothing-of-that-name"))


def test_following_speaks_up_while_nothing_happens(open_studio: Studio) -> None:
    job = open_studio.submit("at=0 fault=wait")
    open_studio.until(job, StageStarted)
    stream = open_studio.service.follow(job.id, after=3)
    assert [next(stream), next(stream)] == [None, None]
    open_studio.service.queue.cancel(job.id)


def test_a_cancel_between_claim_and_start_is_not_lost(open_studio: Studio) -> None:
    for _ in range(5):
        job = open_studio.submit("fault=wait")
        while not open_studio.service.queue.cancel(job.id):
            pass
        assert isinstance(open_studio.events(job)[-1], Cancelled)


def test_the_engine_keeps_the_model_between_jobs_and_drops_it_after_an_error(open_studio: Studio) -> None:
    def facts(script: str) -> dict[str, int]:
        return engine_facts(open_studio.events(open_studio.submit(script))[1])

    first = facts("steps=1")
    assert facts("steps=1") == first
    assert facts("fault=input") == first
    assert facts("fault=error") == first
    assert facts("steps=1") == {"pid": first["pid"], "loaded": first["loaded"] + 1}


def test_an_engine_that_died_while_idle_is_replaced(open_studio: Studio) -> None:
    pid = engine_facts(open_studio.events(open_studio.submit("steps=1"))[1])["pid"]
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not is_running(pid))
    assert isinstance(open_studio.events(open_studio.submit("steps=1"))[-1], Finished)


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["wait", "hang", "gil"])
def test_stop_ends_job_and_engine(open_studio: Studio, fault: str) -> None:
    job = open_studio.submit(f"sections=2 steps=2 at=3 fault={fault}")
    pid = engine_facts(open_studio.until(job, Warned))["pid"]
    open_studio.until(job, StepDone, 3)
    waiting = open_studio.submit("steps=1")
    open_studio.service.stop()
    assert not is_running(pid)
    assert open_studio.service.job(job.id).state == "interrupted"
    assert open_studio.service.job(job.id).frames == 37
    assert open_studio.service.job(waiting.id).state == "queued"
    with pytest.raises(LongtakeError, match="no finished work is lost"):
        open_studio.events(job)


def test_many_threads_may_submit_and_read_at_once(open_studio: Studio) -> None:
    made: list[str] = []

    def submit() -> None:
        job = open_studio.submit("sections=1 steps=1")
        open_studio.service.jobs()
        open_studio.events(job)
        made.append(job.id)

    threads = [threading.Thread(target=submit) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    jobs = open_studio.service.jobs()
    assert sorted(job.id for job in jobs) == sorted(made)
    assert {job.state for job in jobs} == {"finished"}


def test_the_video_of_a_job_has_to_be_there(tmp_path: Path) -> None:
    file = tmp_path / "video.mp4"
    for video in (None, file):
        with pytest.raises(NotAllowed, match="with a video"):
            video_of(replace(job_of(), video=video))
    file.touch()
    assert video_of(replace(job_of(), video=file)) == file
