"""Tests that damage to one job's files concerns that job alone, and that a damaged database is made anew."""

import itertools
import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from app.jobs.job import Job
from app.jobs.service import JobService
from app.jobs.storage import database
from diffusers_helper.errors import InputError
from diffusers_helper.events import Finished, StepDone
from tests.support.jobs import Studio, wait_until

Damage = Callable[[Path], None]
DEEP = b"[" * 100_000


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


def damaged_jobs(studio: Studio) -> dict[str, Job]:
    """Damage the request of a new job in each way."""
    jobs = {}
    for name, damage in REQUESTS.items():
        jobs[name] = studio.submit("steps=1")
        damage(jobs[name].folder / "request.json")
    return jobs


@pytest.mark.slow
@pytest.mark.parametrize("is_lost", [False, True])
def test_damage_to_a_request_is_shown_in_its_job_alone(studio: Studio, is_lost: bool) -> None:
    jobs, whole = damaged_jobs(studio), studio.submit("steps=1")
    if is_lost:
        shutil.rmtree(studio.outputs / ".longtake")
        studio.service = studio.open()
    studio.service.start()
    studio.service.queue.resume_queue()
    assert isinstance(studio.events(whole)[-1], Finished)
    for name, job in jobs.items():
        shown = studio.service.job(job.id)
        assert (name, shown.state, shown.damage) == (name, "failed", "request")
        assert shown.message.startswith("The job's folder is damaged: request.json"), name
        assert shown.remedy
        for call in (studio.service.queue.resume, studio.service.queue.duplicate):
            with pytest.raises(InputError, match=r"folder is damaged: request.json"):
                call(job.id)
    listed = {job.id for job in studio.service.jobs(limit=1000)}
    assert listed == {whole.id, *(job.id for job in jobs.values())}


def test_a_request_that_is_whole_again_is_made(studio: Studio) -> None:
    job = studio.submit("steps=1")
    request = (job.folder / "request.json").read_bytes()
    (job.folder / "request.json").write_bytes(b"")
    studio.service.start()
    wait_until(lambda: studio.service.job(job.id).damage)
    (job.folder / "request.json").write_bytes(request)
    assert studio.service.queue.resume(job.id).damage == ""
    assert isinstance(studio.events(job)[-1], Finished)


def test_other_damaged_files_hold_up_no_job(studio: Studio) -> None:
    files = itertools.product(["lineage.json", "memory.json", "job.log"], ["folder", "pipe"])
    odd = dict[str, tuple[str, str]]()
    for name, damage in [("events.jsonl", damage) for damage in OTHERS] + list(files):
        job = studio.submit("steps=1")
        OTHERS[damage](job.folder / name)
        odd[job.id] = name, damage
    whole = studio.submit("steps=1")
    studio.service.start()
    assert isinstance(studio.events(whole)[-1], Finished)
    assert [case for job_id, case in odd.items() if not studio.service.job(job_id).is_over] == []
    assert {job.id for job in studio.service.jobs()} == {*odd, whole.id}


def overwrite(at: int) -> Damage:
    def damage(file: Path) -> None:
        with file.open("r+b") as opened:
            opened.seek(at)
            opened.write(b"garbage!" * 4096)

    return damage


def of_another_program(file: Path) -> None:
    file.unlink()
    with sqlite3.connect(file) as connection:
        connection.execute("CREATE TABLE jobs (id)")
    connection.close()


DAMAGES: dict[str, Damage] = {
    "head": overwrite(0), "middle": overwrite(4096), "cut": lambda file: os.truncate(file, 5000),
    "text": content(b"no database at all" * 100),
}  # fmt: skip
DAMAGES_AT_START = DAMAGES | {
    "removed": Path.unlink, "emptied": content(b""), "of another program": of_another_program,
}  # fmt: skip


@pytest.mark.parametrize("damage", ["middle", "text"])  # CORRUPT and NOTADB
def test_a_damaged_database_is_made_anew_while_programs_run_and_pauses_the_queue(
    studio: Studio, damage: str
) -> None:
    studio.service.start()
    running = studio.submit("sections=2 steps=2 at=1 fault=pause")
    waiting = studio.submit("steps=1")
    studio.until(running, StepDone)
    DAMAGES[damage](studio.outputs / ".longtake" / "longtake.sqlite3")
    (running.folder / "go").touch()
    other = JobService(studio.outputs)  # another program
    wait_until(lambda: other.queue.is_paused)
    assert [job.id for job in other.queue.jobs()] == [running.id, waiting.id]
    assert {job.state for job in other.queue.jobs()} == {"paused"}
    wait_until(lambda: not any(worker.is_busy for worker in studio.service.crew.workers))
    other.queue.resume_queue()
    for job in (running, waiting):
        assert isinstance(studio.events(job)[-1], Finished)
    assert list((studio.outputs / ".longtake").glob("longtake.sqlite3.damaged-*"))


@pytest.mark.parametrize("damage", DAMAGES_AT_START)
def test_a_damaged_database_is_made_anew_at_the_start(studio: Studio, damage: str) -> None:
    jobs = [studio.submit("steps=1") for _ in range(2)]
    DAMAGES_AT_START[damage](studio.outputs / ".longtake" / "longtake.sqlite3")
    studio.service = studio.open()
    assert [(job.id, job.state, job.position) for job in studio.service.queue.jobs()] == [
        (job.id, "paused", job.position) for job in jobs
    ]
    assert studio.service.queue.is_paused
    studio.service.start()
    studio.service.queue.resume_queue()
    for job in jobs:
        assert isinstance(studio.events(job)[-1], Finished)


def test_a_database_whose_index_is_damaged_is_made_anew_by_the_change_that_meets_it(studio: Studio) -> None:
    job = studio.submit()
    with sqlite3.connect(studio.outputs / ".longtake" / "longtake.sqlite3") as connection:
        connection.execute("PRAGMA writable_schema = ON")
        wrong = "CREATE INDEX jobs_by_parent ON jobs (place)"  # which a quick check does not notice
        connection.execute("UPDATE sqlite_master SET sql = ? WHERE name = 'jobs_by_parent'", (wrong,))
    connection.close()
    assert studio.open().job(job.id).state == "queued"
    change = studio.service.queue.store.change
    with pytest.raises(InputError, match="made anew"), change() as changes:
        changes.execute("UPDATE jobs SET place = place + 1")
    with change() as changes:
        changes.execute("UPDATE jobs SET place = place + 1")
    assert studio.service.job(job.id).state == "paused"
    assert list((studio.outputs / ".longtake").glob("longtake.sqlite3.damaged-*"))


def test_a_database_of_a_newer_version_is_refused_and_stays(studio: Studio) -> None:
    studio.submit()
    file = studio.outputs / ".longtake" / "longtake.sqlite3"
    with sqlite3.connect(file) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    content = file.read_bytes()
    with pytest.raises(InputError, match=r"is of version 99; expected at most \d+\. Use the newer version"):
        studio.open().jobs()
    with pytest.raises(InputError, match="cannot be written"):  # by a program that runs meanwhile
        studio.submit()
    assert file.read_bytes() == content


def test_a_migration_keeps_a_copy_of_the_database_before_it(
    studio: Studio, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = studio.submit()

    def add_note(connection: sqlite3.Connection) -> None:
        connection.execute("ALTER TABLE folder ADD COLUMN note TEXT")

    monkeypatch.setattr(database, "MIGRATIONS", (*database.MIGRATIONS, add_note))
    monkeypatch.setattr(database, "_VERSION", 2)
    assert studio.open().job(job.id).state == "queued"
    folder = studio.outputs / ".longtake"
    for name, version in ("longtake.sqlite3", 2), ("longtake.sqlite3.before-1", 1):
        with sqlite3.connect(folder / name) as connection:
            assert connection.execute("PRAGMA user_version").fetchone() == (version,)
            assert connection.execute("SELECT id FROM jobs").fetchall() == [(job.id,)]
        connection.close()


def test_an_outputs_folder_whose_disk_is_away_gets_no_other_in_its_place(studio: Studio) -> None:
    studio.service.start()
    done = studio.submit("steps=1")
    studio.events(done)
    away = studio.outputs.rename(studio.outputs.with_name("away"))
    for place in ("nothing", "a mount point"):
        if place == "a mount point":
            studio.outputs.mkdir()
        with pytest.raises(InputError, match="cannot be written"):
            studio.submit("steps=1")
        if place == "a mount point":
            assert not list(studio.outputs.iterdir())
            studio.outputs.rmdir()
        assert not studio.outputs.exists()
    away.rename(studio.outputs)
    assert studio.service.job(done.id).state == "finished"
    assert isinstance(studio.events(studio.submit("steps=1"))[-1], Finished)


def test_a_job_without_its_folder_says_so_until_it_is_back(studio: Studio, tmp_path: Path) -> None:
    job, other = studio.submit(), studio.submit()
    job.folder.rename(tmp_path / "aside")
    lost = studio.open().job(job.id)
    assert (lost.damage, lost.message) == ("folder", "The job's folder is missing.")
    (tmp_path / "aside").rename(job.folder)
    assert studio.open().job(job.id) == job
    shutil.rmtree(other.folder)
    studio.service.queue.remove(other.id)
    assert [one.id for one in studio.open().jobs()] == [job.id]


def test_a_full_disk_lends_each_change_a_part_of_the_reserve(
    studio: Studio, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = studio.submit()
    reserve = studio.outputs / ".longtake" / "reserve"
    assert reserve.stat().st_size == 2**21
    usage = shutil.disk_usage(studio.outputs)
    for free_afterwards in (0, 2**16, 2**19):  # others may have taken some of what was lent
        before = reserve.stat().st_size
        free = iter((0, free_afterwards))
        monkeypatch.setattr(shutil, "disk_usage", lambda path, free=free: usage._replace(free=next(free)))
        with studio.service.queue.store.change() as database:
            assert reserve.stat().st_size == before - 2**18
            database.execute("UPDATE jobs SET message = 'x'")
        assert reserve.stat().st_size == min(before, before - 2**18 + free_afterwards)
    assert studio.service.job(job.id).message == "x"
