"""Tests of the problem report, which helps to find a fault and reveals nothing about the user."""

from contextlib import ExitStack
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from app.jobs.service import JobService
from app.jobs.storage.folders import new_folder
from app.jobs.storage.logs import append_event
from app.report_text import report_text
from app.ui.live.progress import LiveJob
from app.ui.live.scene import Presenter
from diffusers_helper.conditions.pictures import store_request
from diffusers_helper.errors import InputError
from diffusers_helper.events import Event, Failed, SectionFinished, StepDone, Warned
from diffusers_helper.request import GenerationRequest

USER, HOST = "annelise", "annes-tower"
JOB = "20260101-120000-abcd"


@pytest.fixture
def outputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home" / USER
    home.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("LOGNAME", USER)
    monkeypatch.setenv("LONGTAKE_AUTH", f"{USER}:correct-horse")
    monkeypatch.setenv("LONGTAKE_TEST", "only-in-the-environment")
    monkeypatch.setattr("socket.gethostname", lambda: HOST)
    return home / "My videos"


def report(outputs: Path, events: list[Event], **settings: Any) -> str:
    request = GenerationRequest.from_dict({"image": str(outputs / JOB / "input.png"), **settings})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("diffusers_helper.provenance.job_folder.new_job_id", lambda: JOB)
        outputs.mkdir()
        new_folder(
            outputs, lambda new, at: store_request(request, {"image": b""}, new, final_folder=at), ExitStack()
        )
    for event in events:
        append_event(outputs / JOB / "events.jsonl", event)
    return report_text(JobService(outputs), JOB)


def steps(count: int) -> list[Event]:
    return [StepDone(job=JOB, time=float(n), section=1, step=n, steps=count) for n in range(1, count + 1)]


def failed(**facts: Any) -> Failed:
    about = {"message": "There was not enough memory to continue.", "remedy": "Choose less.", **facts}
    return Failed(job=JOB, time=99.5, **about)


def test_it_tells_versions_settings_events_and_the_fault_and_nothing_about_the_user(
    outputs: Path, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    elsewhere = f"/data/{USER}'s disk/private stuff/model"
    detail = "\n".join(
        (
            f'  File "{outputs.parent}/projects/secret plan/run.py", line 3, in {USER}_main',
            f"  File '/srv/hidden/{USER}/x.py'",
            f"OSError: /mnt/vault/{USER}/hidden/weights.safetensors, owner {USER.upper()} on {HOST}.lan",
            f"file:///mnt/vault/hidden/a.bin and ~{USER}/hidden/b.bin and ~/hidden/c.bin",
            f"GET https://{USER}:correct-horse@example.org/x token=abc123def hf_abcdefghijklmnop",
        )
    )
    video = str(outputs / JOB / "segments" / "0001.mp4")
    events = [
        *steps(40), SectionFinished(job=JOB, time=1, section=1, sections=2, video=video, frames=33),
        Warned(job=JOB, time=2, message=f"{USER} has {elsewhere}"),
        failed(message=f"The file {elsewhere}/x cannot be read by {USER}.", detail=detail),
    ]  # fmt: skip
    words = f"{USER} dances in {outputs}"
    text = report(outputs, events, prompt=words, model=elsewhere, negative="no" * 501, steps=40)
    head, _, rest = text.partition("Job")
    for version in ("Longtake ", "Python 3.", "torch ", "diffusers ", "gradio 6.", "CPUs", "GB of RAM"):
        assert version in head, version
    usual = {f"  {field.name}: {field.default!r}" for field in fields(GenerationRequest)}
    lines = [line for line in rest.splitlines() if line not in usual and "  took " not in line]
    assert [*lines[:-27], *lines[-4:]] == snapshot
    lowered = text.lower()
    for private in (
        USER, HOST, str(tmp_path), "correct-horse", "abc123def", "hf_abc", "vault", "hidden/", "srv",
        "my videos", "only-in-the-environment",
    ):  # fmt: skip
        assert private not in lowered, private
    append_event(outputs / JOB / "events.jsonl", failed(detail="x" * 100_000))
    text = report_text(JobService(outputs), JOB)
    assert len(text) < 15_000
    assert f"  | {8000 * 'x'}\n" in text


def test_a_job_without_events_has_a_report_and_an_unknown_one_has_none(outputs: Path) -> None:
    assert "Last 0 of 0 events" in report(outputs, [])
    facts = {"created": 100.0, "started": 130.0, "ended": 172.0, "frames": 45}
    JobService(outputs).queue.store.add_facts(JOB, **facts)
    text = report_text(JobService(outputs), JOB)
    assert "  took 42 s after 30 s in the queue\n" in text
    assert "45 frames (1.50 s) of video" in text
    with pytest.raises(InputError, match="no-such-job"):
        report_text(JobService(outputs), "no-such-job")


def test_the_page_shows_the_report_of_the_newest_failure(outputs: Path) -> None:
    report(outputs, [failed(message="The first fault.")], prompt="a red ball")
    service = JobService(outputs)
    presenter = Presenter(service)
    live = LiveJob(replace(service.job(JOB), state="failed", ended=2.0))
    for fault in ("The first fault.", "The second fault."):
        shown = presenter.show(live)
        assert fault in shown["failure"]["report"]
        append_event(outputs / JOB / "events.jsonl", failed(message="The second fault."))
