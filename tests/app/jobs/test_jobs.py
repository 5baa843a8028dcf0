"""Tests of jobs from submission to their end, over an engine process whose pipeline is a stand-in."""

import json
import os
import signal
import threading
from pathlib import Path

import pytest
from PIL import Image

from app.jobs.service import JobService
from diffusers_helper.errors import InputError, LongtakeError
from diffusers_helper.events import (
    Cancelled,
    Failed,
    Finished,
    JobStarted,
    SectionFinished,
    StageStarted,
    StepDone,
    Warned,
    from_dict,
)  # fmt: skip
from tests.support.jobs import Studio, engine_facts, is_running, wait_until


@pytest.fixture
def open_studio(studio: Studio) -> Studio:
    studio.service.start()
    return studio


def test_a_job_runs_to_its_end_and_leaves_a_whole_folder(open_studio: Studio) -> None:
    job = open_studio.submit("sections=2 steps=3", seed=7)
    events = open_studio.events(job)
    section = [StageStarted, *[StepDone] * 3, SectionFinished]
    assert [type(event) for event in events] == [JobStarted, Warned, *section, *section, Finished]
    assert [event.time for event in events] == sorted(event.time for event in events)
    assert {event.job for event in events} == {job.id} == {job.folder.name}

    lines = (job.folder / "events.jsonl").read_text(encoding="utf-8").splitlines()
    assert [from_dict(json.loads(line)) for line in lines] == events

    done = open_studio.service.job(job.id)
    assert (done.state, done.frames, done.video) == ("finished", 73, job.folder / "video.mp4")
    assert job.created <= (done.started or 0) <= (done.ended or 0)
    request = json.loads((job.folder / "request.json").read_text(encoding="utf-8"))
    assert (request["seed"], request["image"]) == (7, str(job.folder / "input.png"))
    with Image.open(job.folder / "input.png") as picture:
        assert (picture.format, picture.mode, picture.size) == ("PNG", "RGB", (48, 32))
        assert picture.getpixel((5, 5)) == (200, 30, 40)
    assert not list(open_studio.outputs.rglob("*.tmp"))


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


def test_a_queued_job_is_cancelled_without_the_engine(open_studio: Studio) -> None:
    running = open_studio.submit("fault=wait")
    queued = open_studio.submit("steps=1")
    assert open_studio.service.queue.cancel(queued.id)
    assert open_studio.events(queued) == [Cancelled(job=queued.id, time=0.0, video=None, frames=0)]
    assert open_studio.service.job(queued.id).state == "cancelled"
    assert not open_studio.service.queue.cancel(queued.id)
    assert open_studio.service.queue.cancel(running.id)
    assert isinstance(open_studio.events(running)[-1], Cancelled)


def test_cancel_keeps_the_video_so_far_and_the_next_job_gets_a_fresh_token(open_studio: Studio) -> None:
    first = open_studio.submit("sections=3 steps=2 at=5 fault=wait")
    open_studio.until(first, SectionFinished, 2)
    assert open_studio.service.queue.cancel(first.id)
    end = open_studio.events(first)[-1]
    assert isinstance(end, Cancelled)
    assert end.frames == 73
    job = open_studio.service.job(first.id)
    assert (job.state, job.frames) == ("cancelled", 73)
    assert job.video.read_bytes() == b"video of 73 frames"
    second = open_studio.submit("steps=2")
    assert isinstance(open_studio.events(second)[-1], Finished)
    assert open_studio.service.queue.cancel(first.id) is False


def test_a_cancel_between_claim_and_start_is_not_lost(open_studio: Studio) -> None:
    for _ in range(5):
        job = open_studio.submit("fault=wait")
        while not open_studio.service.queue.cancel(job.id):
            pass
        assert isinstance(open_studio.events(job)[-1], Cancelled)


def test_a_job_goes_on_whose_command_was_withdrawn_after_the_engine_had_obeyed_it(
    open_studio: Studio,
) -> None:
    job = open_studio.submit("sections=3 steps=1 at=2 fault=obeyed times=1")
    end = open_studio.events(job)[-1]
    assert isinstance(end, Finished)
    assert end.frames == 109


def test_the_engine_keeps_the_model_between_jobs_and_drops_it_after_an_error(open_studio: Studio) -> None:
    def facts(script: str) -> dict[str, int]:
        return engine_facts(open_studio.events(open_studio.submit(script))[1])

    first = facts("steps=1")
    assert facts("steps=1") == first
    assert facts("fault=input") == first
    assert facts("fault=error") == first
    assert facts("steps=1") == {"pid": first["pid"], "loaded": first["loaded"] + 1}


@pytest.mark.parametrize(
    ("fault", "code", "words"),
    [
        ("memory", "out_of_memory", "not enough memory"),
        ("error", "error", "ZeroDivisionError: by the stand-in"),
        ("input", "bad_input", "picture is odd; expected an even one."),
    ],
)
def test_an_error_ends_its_job_in_words_for_a_user(
    open_studio: Studio, fault: str, code: str, words: str
) -> None:
    job = open_studio.submit(f"sections=2 steps=2 at=3 fault={fault}")
    end = open_studio.events(job)[-1]
    assert isinstance(end, Failed)
    assert (end.code, end.frames) == (code, 37)
    assert words in end.message
    assert end.remedy
    assert "stand_in.py" in end.detail
    stored = open_studio.service.job(job.id)
    assert (stored.state, stored.message, stored.remedy) == ("failed", end.message, end.remedy)


@pytest.mark.parametrize("fault", ["SIGKILL", "exit"])
def test_a_dead_engine_is_noticed_and_a_new_one_goes_on(open_studio: Studio, fault: str) -> None:
    job = open_studio.submit(f"sections=3 steps=2 at=3 fault={fault} times=2")
    first, *_, end = events = open_studio.events(job)
    deaths = [event for event in events if isinstance(event, Warned) and "restarted" in event.message]
    assert len(deaths) == 2
    assert "section 2" in deaths[0].message
    assert isinstance(first, JobStarted)
    assert sum(isinstance(event, JobStarted) for event in events) == 1
    assert [event.section for event in events if isinstance(event, SectionFinished)] == [1, 2, 3]
    assert isinstance(end, Finished)
    pids = {
        engine_facts(event)["pid"] for event in events if isinstance(event, Warned) and event not in deaths
    }
    assert len(pids) == 3


def test_an_engine_that_dies_again_and_again_fails_the_job_and_the_next_one_runs(open_studio: Studio) -> None:
    job = open_studio.submit("sections=2 steps=2 at=3 fault=SIGABRT")
    events = open_studio.events(job)
    end = events[-1]
    assert isinstance(end, Failed)
    assert (end.code, end.frames) == ("engine_died", 37)
    assert "crashed" in end.message
    assert "tried 3 times" in end.message
    assert end.detail.count("while denoising section 2") == 3
    assert "engine exit code " in end.detail
    assert end.remedy
    assert end.video == str(job.folder / "video.mp4")
    assert Path(end.video).read_bytes() == b"video of 37 frames"
    again = open_studio.events(open_studio.submit("steps=1"))
    assert isinstance(again[-1], Finished)
    assert engine_facts(again[1])["pid"] != engine_facts(events[1])["pid"]


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
