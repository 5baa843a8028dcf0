"""Tests that damage to one job's files concerns that job alone, and that damage to the index is healed."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from app.jobs.job import Job
from app.jobs.service import JobService
from app.jobs.storage.logs import StateLog
from diffusers_helper.errors import InputError
from diffusers_helper.events import Finished, StepDone
from diffusers_helper.provenance.job_folder import JobFolder
from tests.support.jobs import Studio, wait_until

Damage = Callable[[Path], None]
DEEP = b"[" * 100_000
DIGITS = b"9" * 400
LINES = [
    b'{"place": null}', b'{"place": NaN}', b'{"place": 1e26}', b'{"place": 1e400}', b'{"place": true}',
    b'{"place": ' + DIGITS + b"}", b'{"state": ["queued"]}', b'{"state": "odd"}', b'{"state": {}}',
    b'{"created": null}', b'{"started": "now"}', b'{"ended": [1]}', b'{"frames": 1.5}',
    b'{"frames": ' + DIGITS * 20 + b"}", b'{"video": "../../secret"}',
    b'{"video": "/etc/passwd"}', b'{"video": "a\\u0000b"}', b'{"video": ""}', b'{"video": 5}',
    b'{"message": null}', b'{"remedy": 7}', b'{"message": "\\ud800"}', b'{"favourite": "yes"}',
    b'{"edits": "x"}', b'{"deaths": null}', b'{"time": "x"}', b'{"reason": []}', DEEP,
    b'{"death": ' + DEEP, b"[]", b"null", b"5", b"no JSON", b"\xff\xfe\x00", b"\x00" * 9,
]  # fmt: skip


def instead(make: Damage) -> Damage:
    """Return a damage that puts something else in the place of a file."""

    def damage(file: Path) -> None:
        file.unlink(missing_ok=True)
        make(file)

    return damage


def huge(file: Path) -> None:
    with file.open("wb") as opened:
        opened.truncate(2**40)


def content(data: bytes) -> Damage:
    return instead(lambda file: file.write_bytes(data) and None)


OTHERS: dict[str, Damage] = {
    "folder": instead(Path.mkdir), "pipe": instead(os.mkfifo), "huge": instead(huge),
    "dangling": instead(lambda file: file.symlink_to("nowhere/at/all")),
    "circle": instead(lambda file: file.symlink_to(file.name)),
    "device": instead(lambda file: file.symlink_to("/dev/zero")),
    "deep": content(DEEP + b"\n"), "binary": content(bytes(range(256)) * 9 + b"\n"),
}  # fmt: skip
REQUESTS: dict[str, Damage] = OTHERS | {
    "gone": lambda file: file.unlink(), "empty": content(b""), "list": content(b"[]"),
    "null": content(b"null"), "lone surrogate": content(b'{"prompt": "\\udc00"}'),
    "wrong types": content(b'{"seconds": "x", "seed": []}'),
    "settings that exclude each other": content(
        b'{"prompt": "kept words", "mode": "forward", "loop": "on", "video": "a.mp4", "one_frame": 9}'
    ),
    "setting of a later version": content(b'{"prompt": "kept words", "future": 1, "steps": 1e9}'),
}  # fmt: skip


def add_to_log(line: bytes) -> Damage:
    def damage(file: Path) -> None:
        with file.open("ab") as opened:
            opened.write(line + b"\n")

    return damage


def damaged_jobs(studio: Studio) -> dict[str, tuple[Job, str]]:
    """Damage a new job in each way, and return the jobs with the name of the damaged file."""
    lines = {str(line[:40]): add_to_log(line) for line in LINES}
    ways = [("states.jsonl", name, damage) for name, damage in (lines | OTHERS).items()]
    ways += [("request.json", name, damage) for name, damage in REQUESTS.items()]
    found = {}
    for file, name, damage in ways:
        job = studio.submit("steps=1")
        damage(job.folder / file)
        found[f"{file} {name}"] = job, file
    return found


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before the start", "while a program runs"])
def test_damage_to_a_log_or_a_request_is_shown_in_its_job_alone(studio: Studio, when: str) -> None:
    jobs = damaged_jobs(studio)
    whole = studio.submit("steps=1")
    if when == "before the start":
        studio.service = studio.open()
    studio.service.start()
    assert isinstance(studio.events(whole)[-1], Finished)
    for name, (job, file) in jobs.items():
        shown = studio.service.job(job.id)
        assert (name, shown.state) == (name, "failed")
        assert shown.damage == ("log" if file == "states.jsonl" else "request"), name
        assert shown.message.startswith("The job's folder is damaged: "), name
        assert file in shown.message
        assert shown.remedy
        assert studio.service.history.transitions(job.id) is not None
    studio.service.queue.rebuild()
    listed = {job.id for job in studio.service.jobs(limit=1000)}
    assert listed == {whole.id, *(job.id for job, _ in jobs.values())}
    assert not list((studio.outputs / ".longtake").glob("*.damaged-*"))


@pytest.mark.slow
def test_a_job_with_a_damaged_log_is_made_once_a_user_resumes_it(studio: Studio) -> None:
    jobs = damaged_jobs(studio)
    studio.service = studio.open()
    for name, (job, file) in jobs.items():
        if file == "request.json":
            for call in (studio.service.queue.resume, studio.service.queue.duplicate):
                with pytest.raises(InputError, match=r"folder is damaged: request.json"):
                    call(job.id)
        else:
            assert (name, studio.service.queue.resume(job.id).state) == (name, "queued")
            assert studio.service.job(job.id).damage == ""
    studio.service.start()
    for name, (job, file) in jobs.items():
        if file == "states.jsonl":
            assert (name, type(studio.events(job)[-1])) == (name, Finished)
            assert StateLog(JobFolder(job.folder)).read()["fault"] == ""


@pytest.mark.parametrize(
    ("name", "damage"),
    [("events.jsonl", damage) for damage in OTHERS]
    + list(itertools.product(["lineage.json", "memory.json", "wish-cancel", "job.log"], ["folder", "pipe"])),
)
def test_other_damaged_files_hold_up_no_job(studio: Studio, name: str, damage: str) -> None:
    odd, whole = studio.submit("steps=1"), studio.submit("steps=1")
    OTHERS[damage](odd.folder / name)
    studio.service.start()
    assert isinstance(studio.events(whole)[-1], Finished)
    assert studio.service.job(odd.id).is_over
    assert {job.id for job in studio.service.jobs()} == {odd.id, whole.id}


@pytest.mark.parametrize("line", [b'{"place": null}', b'{"state": "finished"}', DEEP])
@pytest.mark.parametrize("replaces", [False, True])
def test_a_job_whose_log_is_damaged_while_it_is_made_is_made_to_its_end(
    studio: Studio, line: bytes, replaces: bool
) -> None:
    studio.service.start()
    job, after = studio.submit("sections=2 steps=2 at=1 fault=pause"), studio.submit("steps=1")
    studio.until(job, StepDone)
    log = job.folder / "states.jsonl"
    if replaces:  # as editors do
        shutil.copy(log, log.with_name("copy"))
        log.with_name("copy").replace(log)
    add_to_log(line)(log)
    assert JobService(studio.outputs).job(job.id).damage in ("", "log")
    (job.folder / "go").touch()
    assert isinstance(studio.events(job)[-1], Finished)
    assert isinstance(studio.events(after)[-1], Finished)
    again = JobService(studio.outputs).job(job.id)
    assert (again.state, again.damage, again.frames) == ("finished", "", 73)


def overwrite(at: int) -> Damage:
    def damage(index: Path) -> None:
        with index.open("r+b") as file:
            file.seek(at)
            file.write(b"garbage!" * 4096)

    return damage


def sql(statement: str) -> Damage:
    def damage(index: Path) -> None:
        with sqlite3.connect(index) as database:
            database.execute(statement)
        database.close()

    return damage


def instead_of_folder(folder: Path, damage: Damage) -> None:
    shutil.rmtree(folder)
    damage(folder)


INDEX: dict[str, Damage] = {
    **OTHERS, "removed": Path.unlink, "emptied": content(b""), "head": overwrite(0),
    "middle": overwrite(4096),
    "cut": lambda index: os.truncate(index, 5000), "no table": sql("DROP TABLE jobs"),
    "other table": sql("ALTER TABLE jobs RENAME COLUMN place TO spot"),
    "edited row": sql("UPDATE jobs SET state = 'finished', place = 'x', created = 'y'"),
    "removed rows": sql("DELETE FROM jobs"), "odd text": sql("UPDATE jobs SET message = CAST(x'ff' AS TEXT)"),
    "log beside it": lambda index: index.with_name("jobs.sqlite3-wal").write_bytes(b"garbage" * 999) and None,
    "memory beside it": lambda index: index.with_name("jobs.sqlite3-shm").write_bytes(b"") and None,
    "journal": lambda index: index.with_name("jobs.sqlite3-journal").write_bytes(b"garbage" * 999) and None,
    "journal folder": lambda index: index.with_name("jobs.sqlite3-journal").mkdir(),
    "log folder": lambda index: index.with_name("jobs.sqlite3-wal").mkdir(),
    "folder removed": lambda index: shutil.rmtree(index.parent),
    "folder a file": lambda index: instead_of_folder(index.parent, content(b"")),
    "folder a link": lambda index: instead_of_folder(index.parent, OTHERS["dangling"]),
    "maker a folder": lambda index: OTHERS["folder"](index.with_name("maker")),
    "maker a link": lambda index: OTHERS["dangling"](index.with_name("maker")),
    "hold a folder": lambda index: index.with_name("held").mkdir(),
}  # fmt: skip


@pytest.mark.parametrize(
    ("damage", "first"), list(zip(INDEX, itertools.cycle(["reads", "writes"]), strict=False))
)
def test_a_damaged_index_is_healed_while_programs_run(
    studio: Studio, monkeypatch: pytest.MonkeyPatch, damage: str, first: str
) -> None:
    monkeypatch.setattr("app.jobs.making.crew._LOOK_SECONDS", 0.05)
    studio.service.start()
    other = JobService(studio.outputs)  # another program
    running = studio.submit("sections=2 steps=2 at=1 fault=pause")
    waiting = studio.submit("steps=1", service=other)
    studio.until(running, StepDone)
    INDEX[damage](studio.outputs / ".longtake" / "jobs.sqlite3")
    added, refusals = list[Job](), list[str]()

    def write() -> None:
        for service in (other, studio.service):
            try:
                added.append(studio.submit("steps=1", service=service))
            except InputError as error:  # the first program that meets the damage in a change
                refusals.append(str(error))
                added.append(studio.submit("steps=1", service=service))

    def read() -> None:
        for service in (studio.service, other):
            # The maker notices within a second that rows are missing.
            wait_until(lambda service=service: running.id in [job.id for job in service.queue.jobs()])
            assert service.job(running.id).state == "running"
            assert service.job(waiting.id).state == "queued"
            assert [job.id for job in service.queue.jobs()][:2] == [running.id, waiting.id]

    for step in (read, write) if first == "reads" else (write, read):
        step()
    assert all("it is whole again" in refusal for refusal in refusals)
    assert len(refusals) < 2
    (running.folder / "go").touch()
    for job in (running, waiting, *added):
        assert isinstance(studio.events(job)[-1], Finished)
    other.queue.remove(added[0].id)
    assert other.queue.restore(added[0].id).state == "finished"
    assert {job.id for job in JobService(studio.outputs).jobs()} == {
        running.id, waiting.id, *(job.id for job in added)
    }  # fmt: skip


@pytest.mark.parametrize("damage", INDEX)
def test_a_damaged_index_is_healed_at_the_start(studio: Studio, damage: str) -> None:
    jobs = [studio.submit("steps=1") for _ in range(2)]
    known = [replace(studio.service.job(job.id)) for job in jobs]
    studio.service.stop()
    INDEX[damage](studio.outputs / ".longtake" / "jobs.sqlite3")
    studio.service = studio.open()
    assert [studio.service.job(job.id) for job in jobs] == known
    studio.service.start()
    for job in jobs:
        assert isinstance(studio.events(job)[-1], Finished)


def test_a_row_that_was_edited_by_hand_is_not_believed(studio: Studio) -> None:
    job = studio.submit()
    sql("UPDATE jobs SET state = 'finished', message = 'x'")(studio.outputs / ".longtake" / "jobs.sqlite3")
    assert [one.state for one in studio.service.jobs()] == ["queued"]
    assert studio.service.history.search(states=["queued"]).jobs[0].id == job.id


def test_an_outputs_folder_whose_disk_is_away_gets_no_other_in_its_place(studio: Studio) -> None:
    studio.service.start()
    done = studio.submit("steps=1")
    studio.events(done)
    away = studio.outputs.rename(studio.outputs.with_name("away"))
    for place in ("nothing", "a mount point", "a file"):
        if place == "a mount point":
            studio.outputs.mkdir()
        elif place == "a file":
            studio.outputs.write_bytes(b"")
        with pytest.raises(InputError, match="cannot be written"):
            studio.submit("steps=1")
        assert studio.service.job(done.id).state == "finished"
        if place == "a mount point":
            assert not list(studio.outputs.iterdir())
            studio.outputs.rmdir()
        assert place == "a file" or not studio.outputs.exists()
    studio.outputs.unlink()
    away.rename(studio.outputs)
    assert isinstance(studio.events(studio.submit("steps=1"))[-1], Finished)


def test_a_state_that_is_written_over_damage_keeps_what_is_known(studio: Studio) -> None:
    job = studio.submit()
    studio.service.history.set_favourite(job.id, True)
    log = StateLog(JobFolder(job.folder))
    place = log.read()["place"]
    add_to_log(b'{"place": null, "frames": "x"}')(log.path)
    assert "line 3 of states.jsonl" in log.read()["fault"]
    log.enter("queued", reason="A user resumed it.")
    facts = log.read()
    assert (facts["fault"], facts["favourite"], facts["place"]) == ("", True, place)
    assert [line for line in log.path.read_bytes().splitlines() if b"null, " in line]  # the damage stays
    assert json.loads(log.path.read_bytes().splitlines()[-1])["whole"] is True
    with pytest.raises(ValueError, match="cannot become finished"):
        log.enter("finished")
    assert [one.state for one in log.transitions()] == ["queued"]
