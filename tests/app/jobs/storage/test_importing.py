"""Tests that outputs of earlier versions open, resume and branch, and that an import starts nothing."""

import errno
import json
import os
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest

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
from diffusers_helper.provenance.branch import num_finished_sections
from diffusers_helper.provenance.job_folder import JobFolder
from tests.support import jobs

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


STATES = {
    "a finished ball 1": "finished", "a changed ball 2": "paused", "a cancelled ball 3": "cancelled",
    "an interrupted ball 4": "paused", "a queued ball 5": "paused", "a finished ball 77": "paused",
}  # fmt: skip


def last_line(job: Job) -> dict[str, object]:
    return json.loads(JobFolder(job.folder).states.read_bytes().splitlines()[-1])


def test_jobs_of_version_0_2_arrive_as_they_were_and_unfinished_ones_paused(
    outputs: Path, by_title: dict[str, Job]
) -> None:
    assert {title: job.state for title, job in by_title.items()} == STATES
    finished, branch = by_title["a finished ball 1"], by_title["a finished ball 77"]
    assert (finished.favourite, finished.frames, finished.card) == (True, 73, "processor (23.5 GB)")
    assert finished.video == finished.folder / "video.mp4"
    assert by_title["a changed ball 2"].message == "Paused by you."
    assert by_title["an interrupted ball 4"].message == "It was found in its folder and waits for you."
    service = JobService(outputs)
    assert [job.request.seed for job in service.queue.jobs()] == [2, 4, 77, 5]
    assert [one.state for one in service.history.transitions(finished.id)] == [
        "queued", "running", "running", "running", "finished",
    ]  # fmt: skip
    assert [twig.job.id for twig in service.history.tree(finished.id)] == [finished.id, branch.id]
    assert service.queue.store.commands(by_title["a queued ball 5"].id) == {"wait"}


def test_the_queue_of_version_0_2_is_paused_and_goes_on_with_what_was_not(
    outputs: Path, by_title: dict[str, Job]
) -> None:
    service = JobService(outputs)
    assert service.queue.is_paused
    service.queue.resume_queue()
    assert [job.request.seed for job in service.queue.jobs() if job.state == "queued"] == [4, 77, 5]
    assert service.job(by_title["a changed ball 2"].id).state == "paused"  # by its user


def test_version_0_2_is_told_that_unfinished_jobs_are_not_its_own(
    outputs: Path, by_title: dict[str, Job]
) -> None:
    for job in by_title.values():
        assert last_line(job)["state"] == (job.state if job.is_over else "failed")
    new = JobService(outputs).queue.duplicate(by_title["a finished ball 1"].id, {"seed": 9})
    assert last_line(new)["state"] == "failed"


def test_a_program_of_version_0_2_must_end_first(outputs: Path) -> None:
    lock = Lock(outputs / ".longtake" / "maker-cpu")
    with pytest.raises(InputError, match=r"version 0\.2 makes the jobs"):
        JobService(outputs).jobs()
    assert not (outputs / ".longtake" / "longtake.sqlite3").exists()
    lock.release()
    assert len(JobService(outputs).jobs()) == 6


@pytest.mark.slow
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


def test_a_job_of_version_0_1_has_its_state_from_its_events(outputs: Path) -> None:
    for file in outputs.glob("*/states.jsonl"):
        file.unlink()
    found = titles(JobService(outputs))
    assert {title: job.state for title, job in found.items()} == STATES
    assert found["a finished ball 1"].frames == 73


def test_a_job_that_version_0_2_has_removed_is_restored(outputs: Path) -> None:
    (removed,) = (outputs / ".longtake" / "trash").iterdir()
    service = JobService(outputs)
    assert removed.name not in [job.id for job in service.jobs()]
    assert service.queue.restore(removed.name).state == "paused"


def test_lines_that_no_version_has_written_do_not_count(outputs: Path) -> None:
    (finished,) = outputs.glob("*-c561")
    odd = [
        b'{"place": null}', b'{"place": 1e400}', b'{"place": true}', b'{"frames": 1.5}', b'{"state": ["x"]}',
        b'{"video": "../../secret"}', b'{"video": "/etc/passwd"}', b'{"message": null}', b"[" * 100_000,
        b'{"created": null}', b"[]", b"5", b"no JSON", b"\xff\xfe\x00", b'{"message": "\\ud800"}',
    ]  # fmt: skip
    with JobFolder(finished).states.open("ab") as file:
        file.write(b"\n".join(odd) + b"\n")
    job = JobService(outputs).job(finished.name)
    assert (job.state, job.frames, job.video) == ("finished", 73, finished / "video.mp4")


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
