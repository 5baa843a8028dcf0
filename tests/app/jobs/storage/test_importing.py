"""Tests that outputs of earlier versions open, resume and branch, and that an import starts nothing."""

import errno
import itertools
import os
import re
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from app.jobs.job import Job
from app.jobs.service import JobService
from app.jobs.storage import importing
from app.jobs.storage.database import Database
from app.jobs.storage.importing import mark_for_old_versions
from app.jobs.storage.logs import append_event, append_line
from diffusers_helper.errors import InputError
from diffusers_helper.events import Cancelled, Event, Finished, SectionFinished, StepDone
from diffusers_helper.files import json_line, read_file
from diffusers_helper.machine.file_locks import Lock
from diffusers_helper.machine.sysfs import computes_bf16
from diffusers_helper.provenance.branch import num_finished_sections
from diffusers_helper.provenance.job_folder import JobFolder
from tests.support import jobs
from tests.support.transcripts import changes_of, database_facts

ARCHIVE = Path(jobs.__file__).with_name("old_outputs") / "outputs-0.2.tar.xz"


@pytest.fixture
def outputs(tmp_path: Path) -> Path:
    """Unpack a folder that version 0.2 has made with the demo model."""
    with tarfile.open(ARCHIVE) as archive:
        if hasattr(tarfile, "data_filter"):  # from Python 3.11.4 on
            archive.extraction_filter = tarfile.data_filter
        archive.extractall(tmp_path)
    return tmp_path / "outputs-0.2"


@pytest.fixture
def by_title(outputs: Path) -> dict[str, Job]:
    return titles(JobService(outputs))


def titles(service: JobService) -> dict[str, Job]:
    return {f"{job.request.prompt} {job.request.seed}": job for job in service.jobs()}


ODD = [
    b'{"place": null}', b'{"place": 1e400}', b'{"place": true}', b'{"frames": 1.5}', b'{"state": ["x"]}',
    b'{"video": "../../secret"}', b'{"video": "/etc/passwd"}', b'{"message": null}', b"[" * 100_000,
    b'{"state": "flying"}', b'{"frames": true}', b'{"frames": "3"}', b'{"video": ""}', b'{"video": 3}',
    b'{"created": null}', b"[]", b"5", b"no JSON", b"\xff\xfe\x00", b'{"message": "\\ud800"}',
]  # fmt: skip


def test_jobs_of_version_0_2_arrive_as_they_were_and_those_of_0_1_by_their_events(
    outputs: Path, snapshot: SnapshotAssertion
) -> None:
    """Compare databases: of version 0.2, with lines that no version writes, of 0.1, and of restored jobs."""
    usual = imported(outputs)
    service = JobService(outputs)
    (removed,) = (outputs / ".longtake" / "trash").iterdir()
    service.queue.restore(removed.name)
    restored = imported(outputs, anew=False)
    service.queue.resume_queue()
    changed = imported(outputs, anew=False)
    with JobFolder(next(outputs.glob("*-c561"))).states.open("ab") as file:
        file.write(b"\n".join(ODD) + b"\n")
    odd = imported(outputs)
    for file in outputs.glob("*/states.jsonl"):
        file.unlink()
    steps = [{}, usual, restored, changed, odd, imported(outputs)]
    changes = [changes_of(before, after) for before, after in itertools.pairwise(steps)]
    assert changes == snapshot


def imported(outputs: Path, *, anew: bool = True) -> dict[str, str]:
    """Return what a database has that does not depend on now."""
    for file in (outputs / ".longtake").glob("longtake.sqlite3*") if anew else ():
        file.unlink()
    JobService(outputs).jobs()
    facts = {re.sub(r" at \S+( s)?$", "", name): value for name, value in database_facts(outputs)}
    return {name: value.replace(str(outputs), "OUT") for name, value in facts.items()}


def test_a_program_of_version_0_2_must_end_first(outputs: Path) -> None:
    lock = Lock(outputs / ".longtake" / "maker-cpu")
    with pytest.raises(InputError, match=r"version 0\.2 makes the jobs"):
        JobService(outputs).jobs()
    assert not (outputs / ".longtake" / "longtake.sqlite3").exists()
    lock.release()
    assert len(JobService(outputs).jobs()) == 6


@pytest.mark.slow
@pytest.mark.skipif(
    not computes_bf16(), reason="this processor needs many minutes for their decoding in bf16"
)
def test_unfinished_jobs_of_version_0_2_and_0_1_are_finished(outputs: Path) -> None:
    (interrupted,) = outputs.glob("*-0a83")
    JobFolder(interrupted).states.unlink()  # as version 0.1 left it
    service = JobService(outputs)
    service.start()
    try:
        found = titles(service)
        branch = service.queue.branch(found["a finished ball 1"].id, 1, seed=8)
        service.queue.resume_queue()
        service.queue.resume(found["a changed ball 2"].id)
        assert service.queue.cancel(found.pop("a queued ball 5").id)
        for job in (branch, *(job for job in found.values() if not job.is_over)):
            last = [item[1] for item in service.follow(job.id) if item is not None][-1]
            assert isinstance(last, Finished), job
            assert service.job(job.id).video
        assert num_finished_sections(JobFolder(interrupted)) == 3
    finally:
        service.stop()


@pytest.mark.parametrize("has_database", [True, False])
def test_a_folder_that_cannot_be_written_is_listed_and_shown(
    outputs: Path, monkeypatch: pytest.MonkeyPatch, has_database: bool
) -> None:
    expected = [job.id for job in JobService(outputs).jobs()] if has_database else []
    before = {path: path.stat().st_mtime_ns for path in outputs.rglob("*")}

    def refuse(*_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "access", lambda *_: False)
    monkeypatch.setattr(Database, "_open", refuse)
    service = JobService(outputs)
    listed = service.jobs()
    assert len(listed) == 6
    assert not has_database or [job.id for job in listed] == expected
    assert service.history.search("finished").total == 2
    assert service.revision == service.revision
    with pytest.raises(InputError, match="cannot be written"):
        service.queue.duplicate(listed[0].id)
    assert {path: path.stat().st_mtime_ns for path in outputs.rglob("*")} == before


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO])
def test_a_folder_that_cannot_be_read_now_is_left_out_until_the_next_look(
    outputs: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    (finished,) = outputs.glob("*-c561")

    def read(path: Path, *arguments: int) -> bytes:
        if path.is_relative_to(finished):
            raise OSError(number, os.strerror(number), str(path))
        return read_file(path, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr("app.jobs.storage.importing.read_file", read)
        assert len(JobService(outputs).jobs()) == 5
    (found,) = (job for job in JobService(outputs).jobs() if job.id == finished.name)
    assert (found.state, found.frames, found.favourite) == ("finished", 73, True)
    assert not list(outputs.rglob("*.damaged-*"))


def test_a_list_is_not_made_anew_while_too_many_files_are_open(
    outputs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(*_: object) -> bytes:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patch:
        patch.setattr("app.jobs.storage.importing.read_file", read)
        with pytest.raises(InputError, match="Too many open files"):
            JobService(outputs).jobs()
    assert len(JobService(outputs).jobs()) == 6


def test_a_folder_that_is_only_read_gets_no_database_until_a_program_changes_it(outputs: Path) -> None:
    shutil.rmtree(outputs / ".longtake")
    before = sorted(outputs.rglob("*"))
    reader = JobService(outputs)
    assert len(reader.jobs()) == 6
    assert reader.queue.is_paused
    assert sorted(outputs.rglob("*")) == before
    writer = JobService(outputs)
    writer.queue.resume_queue()
    assert (outputs / ".longtake" / "longtake.sqlite3").is_file()
    assert not reader.queue.is_paused
    (job, *_) = reader.queue.jobs()
    assert reader.queue.cancel(job.id)
    assert writer.job(job.id).state == "cancelled"


def test_what_others_have_left_is_listed_held_and_swept_by_the_only_maker(tmp_path: Path) -> None:
    (tmp_path / ".longtake").mkdir()
    (tmp_path / ".longtake" / "held").touch()  # by version 0.2
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "states.jsonl").write_text('{"state": "failed", "message": "It broke."}\n')
    first, second = (JobService(tmp_path) for _ in range(2))
    (job,) = first.jobs()
    assert (job.id, job.state, job.damage, first.queue.is_paused) == ("old", "failed", "request", True)
    leftovers = tmp_path / ".new.tmp", tmp_path / ".longtake" / ".file.tmp"
    for service, card, stay in ((first, "a", False), (second, "b", True)):
        leftovers[0].mkdir()
        leftovers[1].touch()
        assert service.queue.store.lock_card(card)
        assert {file.exists() for file in leftovers} == {stay}
    assert first.queue.store.lock_card("b") is None
    shutil.rmtree(tmp_path / "old")
    second.queue.rebuild()
    assert first.job("old").message == "The job's folder is missing."
    first.queue.remove("old")
    assert second.jobs() == []


def test_a_folder_that_comes_later_arrives_paused_beside_a_queue_that_goes_on(
    outputs: Path, tmp_path: Path
) -> None:
    here = JobService(tmp_path / "here")
    here.queue.rebuild()
    assert here.jobs() == []
    (queued,) = outputs.glob("*-5aa4")
    queued.rename(tmp_path / "here" / queued.name)
    here.queue.rebuild()
    assert (here.job(queued.name).state, here.queue.is_paused) == ("paused", False)


@pytest.mark.parametrize(
    ("lines", "said", "state"),
    [
        ([], "", "queued"),
        (["queued"], "", "queued"),
        (["queued", "running"], "", "interrupted"),
        (["running", "waiting"], "", "interrupted"),
        (["running", "paused"], "", "paused"),
        (["running", "failed"], "step", "failed"),
        ([], "step", "interrupted"),
        ([], "section", "interrupted"),
        ([], "cancelled", "cancelled"),
        (["marked"], "cancelled", "cancelled"),  # what this version writes says nothing of the state
        (["marked"], "step", "interrupted"),
    ],
)
def test_a_state_is_what_the_lines_say_or_else_the_events(
    lines: list[str], said: str, state: str, tmp_path: Path
) -> None:
    folder = JobFolder(tmp_path)
    about: dict[str, Any] = {"job": folder.job, "time": 1.0}
    events: dict[str, Event] = {
        "step": StepDone(**about, section=1, step=1, steps=2),
        "section": SectionFinished(**about, section=1, sections=2, video="v.mp4", frames=9),
        "cancelled": Cancelled(**about, video=None, frames=0),
    }
    if said:
        append_event(folder.events, events[said])
    for line in lines:
        if line == "marked":
            mark_for_old_versions(folder, created=5.0, place=6.0, press="p")
        else:
            append_line(folder.states, json_line({"state": line, "time": 1.0}), sync=False)
    facts = importing._facts_of(folder, list(importing._lines(folder)))
    assert facts["state"] == state
    assert ((facts["created"], facts["place"]) == (5.0, 6.0)) == (lines == ["marked"])
