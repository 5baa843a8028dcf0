"""Tests of `longtake jobs`: what it prints, what it changes, and its exit codes."""

import json
import shutil
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from app.cli import main
from app.commands import generate
from app.jobs.job import Job
from app.jobs.storage.commands import INTERRUPTED, commands_of
from app.jobs.storage.logs import append_event
from diffusers_helper.events import Finished, SectionFinished, Warned
from diffusers_helper.provenance.job_folder import JobFolder
from tests.support.shared import Sharing, events, until, until_state


class Command:
    def __init__(self, sharing: Sharing, output: pytest.CaptureFixture[str]) -> None:
        self._outputs, self._output = sharing.outputs, output

    def __call__(self, verb: str, *arguments: str) -> int:
        return main(["jobs", verb, *arguments, "--out", str(self._outputs)])

    @property
    def output(self) -> tuple[str, str]:
        """Return what was written to standard output and to standard error since the last look."""
        out, err = self._output.readouterr()
        return out, err

    @property
    def text(self) -> str:
        return self._output.readouterr().out

    @property
    def complaint(self) -> str:
        return self._output.readouterr().err

    def records(self, verb: str, *arguments: str) -> list[dict[str, Any]]:
        self._output.readouterr()
        assert self(verb, *arguments, "--json") == 0
        return [json.loads(line) for line in self.text.splitlines()]


@pytest.fixture
def command(sharing: Sharing, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(sharing, capsys)


def queued(sharing: Sharing, *prompts: str) -> list[Job]:
    service = sharing.open(start=False)
    return [sharing.add(service, prompt) for prompt in prompts]


def test_jobs_are_listed_and_found(sharing: Sharing, command: Command) -> None:
    a, b = queued(sharing, "a red ball", "ein Boot\nauf dem See")
    assert command("list") == 0
    assert [line.split()[0] for line in command.text.splitlines()] == [b.id, a.id]
    assert [one["id"] for one in command.records("list", "--queue")] == [a.id, b.id]
    (record,) = command.records("list", "BOOT see")
    assert (record["id"], record["state"]) == (b.id, "queued")
    assert record["request"]["prompt"] == "ein Boot\nauf dem See"
    assert command.records("list", "--state", "finished") == []
    sharing.add(sharing.open(start=False), "a blue ball", one_frame=9)
    assert command("list") == 0
    assert "queued      picture  a blue ball" in command.text


def test_a_job_is_shown_with_the_states_that_it_went_through(sharing: Sharing, command: Command) -> None:
    (job,) = queued(sharing, "a ball")
    sharing.open(start=False).queue.cancel(job.id)
    (shown,) = command.records("show", job.id)
    assert [state["state"] for state in shown["states"]] == ["queued", "cancelled"]
    assert shown["states"][1]["reason"] == "You ended it."
    assert command("show", job.id) == 0
    text = command.text
    for words in (f"{job.id}: cancelled", "Prompt: a ball", "You started it."):
        assert words in text


def test_a_job_is_added_while_a_server_makes_others(sharing: Sharing, command: Command) -> None:
    settings = ("--image", str(sharing.picture), "--prompt", "a ball", "--seconds", "1")
    assert command("add", *settings) == 0
    text = command.text
    assert "No program makes jobs in this folder now" in text
    assert f"--outputs {sharing.outputs}" in text
    server = sharing.open()
    (added,) = command.records("add", *settings, "--seed", "7", "--wait")
    assert (added["has_maker"], added["request"]["seed"]) == (True, 7)
    assert commands_of(JobFolder(sharing.outputs / added["id"])) == {"wait"}
    sharing.go(server)
    assert isinstance(events(server, server.job(added["id"]))[-1], Finished)


@pytest.mark.slow
def test_the_running_job_of_a_server_is_paused_resumed_and_cancelled(
    sharing: Sharing, command: Command
) -> None:
    server = sharing.open()
    job = sharing.add(server, seconds=3.6)
    sharing.go(server, 7)
    until(server, job, SectionFinished)
    (asked,) = command.records("pause", job.id)
    assert asked["asked"]
    sharing.go(server, 1)
    until_state(server, job, "paused")
    (resumed,) = command.records("resume", job.id)
    assert resumed["state"] == "queued"
    until_state(server, job, "running")
    assert command("cancel", job.id, "--after-section") == 0
    sharing.go(server)
    until_state(server, job, "cancelled")
    assert command("cancel", job.id) == 1
    assert command("retry", job.id) == 0
    assert isinstance(events(server, job)[-1], Finished)
    assert command("retry", job.id) == 1


def test_the_job_of_a_killed_program_is_interrupted_and_says_how_it_goes_on(
    sharing: Sharing, command: Command
) -> None:
    living, killed = queued(sharing, "a boat", "a ball")
    programs = [sharing.open(start=False).queue.store for _ in range(2)]
    for program in programs:
        program.adopts = True
        assert program.claim(lambda job: "card")
    programs[1].release()
    assert command("list") == 0
    listed, how = command.output
    states = dict(line.split()[:2] for line in listed.splitlines())
    assert states == {killed.id: "interrupted", living.id: "running"}
    assert how.endswith(f"longtake generate --resume JOB --outputs {sharing.outputs}\n")
    (found,) = command.records("list", "--state", "interrupted")
    assert (found["id"], found["state"], found["remedy"]) == (killed.id, "interrupted", INTERRUPTED["remedy"])
    assert [one["id"] for one in command.records("list", "--state", "running")] == [living.id]
    programs[0].release()
    assert command("resume", living.id) == 0
    assert f"{living.id}: queued" in command.text


def test_the_queue_is_held_reordered_and_goes_on(sharing: Sharing, command: Command) -> None:
    a, b, c = queued(sharing, "a", "b", "c")
    assert command("pause", "--all") == 0
    for arguments, order in (
        (("--first",), [c, a, b]), (("--after", a.id), [a, c, b]), (("--last",), [a, b, c]),
        (("--before", b.id), [a, c, b]),
    ):  # fmt: skip
        assert command("reorder", c.id, *arguments) == 0
        assert [job.id for job in sharing.open(start=False).queue.jobs()] == [job.id for job in order]
    assert sharing.open(start=False).queue.is_paused
    assert command("resume", "--all") == 0
    assert not sharing.open(start=False).queue.is_paused


def test_a_job_is_removed_brought_back_and_exported(
    sharing: Sharing, command: Command, tmp_path: Path
) -> None:
    server = sharing.open()
    sharing.go(server)
    job = sharing.add(server)
    events(server, job)
    assert command("remove", job.id) == 0
    assert "jobs restore" in command.text
    assert command("show", job.id) == 2
    assert "There is no job" in command.complaint
    assert command("restore", job.id) == 0
    (exported,) = command.records("export", job.id, "--to", str(tmp_path))
    assert Path(exported["exported"]).read_bytes() == (job.folder / "video.mp4").read_bytes()
    assert command.records("rebuild") == [{"jobs": 1}]


def test_jobs_are_deleted_for_good_and_their_space_is_shown(sharing: Sharing, command: Command) -> None:
    kept, deleted, removed = (sharing.add(sharing.open(start=False)) for _ in range(3))
    (deleted.folder / "video.mp4").write_bytes(bytes(2**20))
    *usage, rest = command.records("usage")
    assert usage[0]["id"] == deleted.id
    assert usage[0]["bytes"] > 2**20
    assert rest["removed_bytes"] == 0
    assert command("remove", removed.id) == 0
    assert command("usage") == 0
    assert "removed jobs; delete them for good with" in command.text
    assert command.records("empty-trash") == [{"deleted": [removed.id]}]
    assert command.records("delete", deleted.id) == [{"id": deleted.id}]
    assert command("delete", removed.id) == 2
    assert "There is no job" in command.complaint
    assert {path.name for path in sharing.outputs.glob("[!.]*")} == {kept.id}
    assert not list((sharing.outputs / ".longtake" / "trash").iterdir())


def test_what_is_not_there_is_refused_in_one_line_and_nothing_is_made(
    sharing: Sharing, command: Command, tmp_path: Path
) -> None:
    assert command("list") == 2
    assert "no outputs folder" in command.complaint
    assert main(["generate", "--resume", "nojob", "--out", str(sharing.outputs)]) == 2
    assert not sharing.outputs.exists()
    queued(sharing, "a")
    assert command.complaint.startswith("There is no job 'nojob'")
    for verb in ("show", "cancel", "pause", "resume", "remove", "restore"):
        assert command(verb, "nojob") == 2
        complaint = command.complaint
        assert "There is no job 'nojob'" in complaint
        assert len(complaint.splitlines()) == 1


def test_each_of_several_jobs_is_tried_and_the_highest_code_counts(
    sharing: Sharing, command: Command
) -> None:
    a, b, c = (job.id for job in queued(sharing, "a", "b", "c"))
    service = sharing.open(start=False)
    assert command("cancel", a) == 0
    assert command("pause", a, b, "nojob", c) == 2
    assert command.output == (
        f"{a}: cancelled\n{a}: cancelled\n{b}: paused\n{c}: paused\n",
        f"Job {a} is cancelled; expected one that is queued, running, waiting or interrupted.\n"
        "There is no job 'nojob' in this outputs folder. Look for it in the list of jobs, or name another "
        "folder as --outputs.\n",
    )
    assert command("pause", "nojob", a) == 2  # not that of the last one
    assert command("resume", b, b, a) == 0
    assert [service.job(job).state for job in (a, b, c)] == ["queued", "queued", "paused"]
    assert command("resume", b, c) == 1
    assert service.job(c).state == "queued"
    assert f"Job {b} is queued; expected one that is paused, interrupted, failed or cancelled." in (
        command.complaint
    )
    assert command("cancel", "--after-section", a, b) == 1
    assert f"Job {b} is queued; expected one that is running or waiting." in command.complaint
    assert command("cancel", a, b, c) == 0
    assert command("wait", a, b) == 1
    assert f"Job {b} is cancelled; expected one that is not over." in command.complaint
    assert command("remove", a, "nojob", c) == 2
    assert f"restored with: longtake jobs restore {c} --outputs {sharing.outputs}\n" in command.text
    assert [job.id for job in service.jobs()] == [b]
    assert command("restore", c, "nojob", a) == 2
    assert len(service.jobs()) == 3


def test_all_that_failed_or_were_cancelled_are_retried_and_the_queue_stays_paused(
    sharing: Sharing, command: Command
) -> None:
    a, b, c = queued(sharing, "a", "b", "c")
    service = sharing.open(start=False)
    assert command("retry", "--all") == 0
    assert command.complaint == "No job of this folder has failed or was cancelled.\n"
    assert command("cancel", b.id, a.id) == 0
    assert command("pause", c.id) == 0
    assert command("pause", "--all") == 0
    assert [record["id"] for record in command.records("retry", "--all")] == [a.id, b.id]
    assert [service.job(job.id).state for job in (a, b, c)] == ["queued", "queued", "paused"]
    assert service.queue.is_paused


def test_a_paused_queue_is_told_with_what_continues_it(sharing: Sharing, command: Command) -> None:
    (job,) = queued(sharing, "a")
    told = (
        "The queue of this folder is paused. Continue it with: longtake jobs resume --all --outputs "
        f"{sharing.outputs}\n"
    )
    assert command("pause", "--all") == 0
    assert command.text == told
    assert command("list") == 0
    assert command.complaint == told
    assert command("show", job.id) == 0
    assert told in command.text
    assert command("pause", job.id) == 0
    assert command.text == f"{job.id}: paused\n"
    assert command("resume", job.id) == 0
    assert command.text == f"{job.id}: queued. {told}"
    assert command("resume", "--all") == 0
    assert command.text == "The queue of this folder is not paused.\n"
    assert command("list") == 0
    assert command.complaint == ""
    assert command.records("pause", "--all") == [{"is_paused": True}]


def test_a_folder_that_is_only_read_stays_as_it_is(
    sharing: Sharing, command: Command, tmp_path: Path
) -> None:
    (job,) = queued(sharing, "a")
    shutil.rmtree(sharing.outputs / ".longtake")
    (job.folder / "video.mp4").write_bytes(b"video")
    before = sorted(sharing.outputs.rglob("*"))
    assert command("list") == 0
    assert command("show", job.id) == 0
    assert command("pause", "nojob") == 2
    assert command("export", job.id, "--to", str(tmp_path)) == 1
    assert sorted(sharing.outputs.rglob("*")) == before
    assert command("cancel", job.id) == 0
    assert (sharing.outputs / ".longtake").is_dir()


def test_an_export_never_replaces_a_file(sharing: Sharing, command: Command, tmp_path: Path) -> None:
    server = sharing.open()
    sharing.go(server)
    job = sharing.add(server)
    events(server, job)
    target = tmp_path / "mine.mp4"
    target.write_bytes(b"mine")
    (tmp_path / "link.mp4").symlink_to(tmp_path / "gone.mp4")
    for name in ("mine.mp4", "link.mp4"):
        assert command("export", job.id, "--to", str(tmp_path / name)) == 2
        assert f"{tmp_path / name} cannot be written (it is there already)" in command.complaint
    assert target.read_bytes() == b"mine"
    assert not (tmp_path / "gone.mp4").exists()
    assert command("export", job.id, "--to", str(tmp_path)) == 0
    assert command("export", job.id, "--to", str(tmp_path)) == 2


def test_what_asks_for_nothing_is_refused(sharing: Sharing, command: Command) -> None:
    queued(sharing, "a")
    for verb in ("pause", "resume", "retry"):
        assert command(verb) == 2
        assert "No job is named" in command.complaint
    for limit in ("0", "-1", str(10**30)):
        assert command("list", "--limit", limit) == 2
        assert f"--limit is {limit}" in command.complaint


def test_a_finished_job_answers_at_once(sharing: Sharing, command: Command) -> None:
    server = sharing.open()
    sharing.go(server)
    job = sharing.add(server)
    events(server, job)
    before = (job.folder / "events.jsonl").read_bytes()
    assert main(["generate", "--resume", job.id, "--out", str(sharing.outputs)]) == 0
    assert (job.folder / "events.jsonl").read_bytes() == before
    server.stop()
    assert f"{job.folder}: starting" in command.complaint
    assert command("retry", job.id) == 1
    assert command.output == (
        f"{job.id}: finished\n",
        f"Job {job.id} is finished; expected one that is paused, interrupted, failed or cancelled.\n",
    )


def test_a_branch_is_queued(sharing: Sharing, command: Command) -> None:
    service = sharing.open(start=False)
    job = sharing.add(service, "a ball", seconds=3.6)
    sections = job.folder / "sections"
    sections.mkdir()
    for number in (1, 2, 3):
        (sections / f"{number:04}.safetensors").write_bytes(b"latents")
    (made,) = command.records("branch", job.id, "--keep", "1", "--seed", "7")
    assert (made["request"]["seed"], made["request"]["seconds"], made["state"]) == (7, 3.6, "queued")
    assert command("branch", job.id, "--longer", "1.2") == 0
    assert "The last 2.4 s stay" in command.text
    assert service.jobs(1)[0].request.seconds == 4.8
    assert command("branch", job.id, "--keep", "9") == 2
    assert "expected a number from 1 to 2" in command.complaint


def test_what_follows_a_resumed_job_is_shown_from_its_beginning(
    sharing: Sharing, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = queued(sharing, "a", "b")
    append_event(first.folder / "events.jsonl", Warned(job=first.id, time=0.0, message="Earlier."))
    service, shown = sharing.open(start=False), list[tuple[str, int]]()

    def show(_: object, job: Job, num_earlier: int, *__: object) -> Finished:
        shown.append((job.id, num_earlier))
        return Finished(job=job.id, time=1.0, video="", frames=1, seconds=1.0)

    monkeypatch.setattr(generate, "_show", show)
    monkeypatch.setattr(service.history, "made_by", lambda _: [second] if len(shown) == 1 else [])
    arguments = Namespace(resume=first.id, json=True, outputs=str(sharing.outputs))
    assert generate.follow_jobs(service, lambda _: [first], arguments) == 0
    assert shown == [(first.id, 1), (second.id, 0)]


def test_a_pause_is_withdrawn_as_often_as_it_is_asked_for(sharing: Sharing, command: Command) -> None:
    (job,) = queued(sharing, "a")
    store = sharing.open(start=False).queue.store
    store.adopts = True
    assert store.claim(lambda job: "card")  # as a program whose engine is busy
    for _ in range(2):
        assert command("pause", job.id) == command("pause", job.id) == 0
        assert store.commands(job.id) == {"pause"}
        assert command("resume", job.id) == 0
        assert not store.commands(job.id)
        assert "expected one that" not in command.complaint
        assert command("resume", job.id) == 1
        assert f"Job {job.id} is running; expected one that is" in command.complaint
    assert command("cancel", job.id) == 0
    assert command("resume", job.id) == 1  # an end is not withdrawn
    assert store.commands(job.id) == {"cancel"}
