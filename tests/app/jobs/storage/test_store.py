"""Tests of what remains of jobs when programs end, and of requests that are refused before a job exists."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from app.jobs.service import JobService
from app.jobs.storage.logs import EventReader, append_event
from app.jobs.storage.owners import JobOwner, standing_of
from diffusers_helper.events import Failed, Finished, SectionFinished, Warned
from tests.support.jobs import Studio, damage_database, kill, run_program


def test_a_program_of_another_computer_may_live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.jobs.storage.owners._host", lambda: "here/boot")
    hosts = ("here/boot", "here/earlier", "container/boot", "there/another")
    standings = [standing_of(tmp_path, f"{host}:1:1") for host in hosts]
    assert standings == ["dead", "dead", "dead", "unknown"]
    owner = JobOwner(tmp_path)
    assert standing_of(tmp_path, owner.enter()) == "alive"
    owner.leave()


def test_a_program_that_dies_later_is_noticed_too(studio: Studio, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.jobs.making.crew._LOOK_SECONDS", 0.1)
    process, (running,) = run_program(studio, "fault=hang times=1")
    studio.service.start()
    assert studio.service.crew.is_follower
    studio.until(studio.service.job(running), Warned)
    kill(process)
    assert isinstance(studio.events(studio.service.job(running))[-1], Finished)


def test_a_lost_database_is_made_from_the_folders(studio: Studio) -> None:
    studio.service.start()
    done = studio.submit("sections=1 steps=1")
    failed = studio.submit("sections=2 steps=1 at=1 fault=error")
    studio.events(failed)
    before = studio.service.jobs()
    studio.service.stop()
    damage_database(studio.outputs, "removed")

    again = JobService(studio.outputs)
    again.start()
    try:
        after = {job.id: job for job in again.jobs()}
        for job in before:
            same = dataclasses.replace(after[job.id], started=job.started, ended=job.ended, card=job.card)
            assert same == job
        assert after[done.id].video == done.folder / "video.mp4"
        assert after[failed.id].message
    finally:
        again.stop()


def test_an_outputs_folder_can_be_moved(studio: Studio, tmp_path: Path) -> None:
    studio.service.start()
    job = studio.submit("sections=1 steps=1")
    studio.events(job)
    studio.service.stop()
    moved = JobService(studio.outputs.rename(tmp_path / "moved"))
    found = moved.job(job.id)
    assert found.video == tmp_path / "moved" / job.id / "video.mp4"
    assert found.request.image == str(tmp_path / "moved" / job.id / "input.png")


def test_a_torn_line_is_cut_off_before_the_next_and_numbers_stay(tmp_path: Path) -> None:
    log = tmp_path / "events.jsonl"
    first, second = (Warned(job="a", time=0.0, message="one"), Warned(job="a", time=1.0, message="\u2028 ö"))
    append_event(log, first)
    with log.open("ab") as file:
        file.write(b'{"event": "warned", "jo')
    reader = EventReader(log)
    assert list(reader.read()) == [(1, first)]
    append_event(log, second)
    assert list(reader.read()) == [(2, second)]
    with log.open("ab") as file:
        file.write(b'{"event": "of the future"}\n[]\n')
    append_event(log, first)
    assert list(reader.read()) == [(5, first)]
    assert [json.loads(line)["event"] for line in log.read_text().splitlines()[:2]] == ["warned", "warned"]


def test_an_event_is_appended_without_reading_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, event = tmp_path / "events.jsonl", Warned(job="a", time=0.0, message="one")
    append_event(log, event)
    with monkeypatch.context() as patched:
        patched.delattr("app.jobs.storage.logs.read_file")
        for _ in range(99):
            append_event(log, event)
    assert [one for _, one in EventReader(log).read()] == [event] * 100


@pytest.mark.slow
def test_a_job_whose_log_could_not_be_written_still_ends_for_who_follows_it(studio: Studio) -> None:
    studio.service.start()
    job = studio.submit("sections=1 steps=1")
    whole = studio.events(job)
    log = job.folder / "events.jsonl"
    log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[:-1]))
    again = [item for item in studio.service.follow(job.id) if item is not None]
    assert [number for number, _ in again] == list(range(1, len(whole) + 1))
    last = again[-1][1]
    assert isinstance(last, Finished)
    assert (last.video, last.frames) == (str(job.folder / "video.mp4"), 37)


@pytest.mark.slow
def test_a_job_whose_folder_was_removed_fails_and_the_next_one_runs(studio: Studio) -> None:
    job = studio.submit("steps=1")
    shutil.rmtree(job.folder)
    after = studio.submit("steps=1")
    studio.service.start()
    assert isinstance(studio.events(after)[-1], Finished)
    assert studio.service.job(job.id).state == "failed"
    assert isinstance(studio.events(job)[-1], Failed)


def test_a_job_whose_folder_was_away_is_resumed_once_it_is_back_and_an_end_is_written_till_it_is_there(
    studio: Studio, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, job = studio.service._store, studio.submit("steps=1")
    end = Failed(job=job.id, time=1.0, message="No such file.", remedy="")
    assert store.claim(lambda job: "") is not None
    job.folder.rename(tmp_path / "aside")
    store.record(end)
    store.release_job(job.id)
    assert studio.service.job(job.id).message == "The job's folder was removed."
    (tmp_path / "aside").rename(job.folder)
    assert studio.service.queue.resume(job.id).state == "queued"
    assert store.claim(lambda job: "") is not None
    with monkeypatch.context() as patch:
        patch.setattr("app.jobs.storage.store.append_event", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            store.record(end)
    store.record(end)
    assert studio.service.events(job.id)[-1] == end


@pytest.mark.parametrize("ends", [False, True])
def test_a_video_is_told_once_all_names_in_its_folder_are_on_the_disk(
    studio: Studio, monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    """Without them, a power cut would leave a finished video that cannot be branched."""
    store, job = studio.service._store, studio.submit("steps=1")
    assert store.claim(lambda job: "") is not None
    for name in ("sections", "segments", "thumbs"):
        (job.folder / name).mkdir()
    synced = list[tuple[str, int | None]]()
    monkeypatch.setattr(
        "app.jobs.storage.store.sync_folder",
        lambda folder: synced.append((folder.name, studio.service.job(job.id).frames)),
    )
    facts: dict[str, Any] = {"job": job.id, "time": 1.0, "video": str(job.folder / "video.mp4"), "frames": 9}
    store.record(Finished(**facts, seconds=1.0) if ends else SectionFinished(**facts, section=1, sections=2))
    assert sorted(synced) == [
        (name, 0) for name in sorted([job.folder.name, "sections", "segments", "thumbs"])
    ]
    assert studio.service.job(job.id).frames == 9
