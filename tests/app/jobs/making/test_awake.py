"""Tests that the computer is kept awake while a job is made, with a stand-in for systemd-inhibit."""

import os
from pathlib import Path

import pytest

from app.commands.doctor import examine
from app.jobs.making.awake import Awake, can_stay_awake
from app.jobs.service import JobService
from diffusers_helper.events import Finished
from diffusers_helper.request import GenerationRequest
from tests.support.jobs import TIMEOUT, Studio, is_running, kill, run_program, wait_until
from tests.support.pages import write_photo
from tests.support.staged_engine import StagedEngine

# It writes what it was asked to its own file, runs the program that it was given, and then writes that it has
# ended, all of which systemd-inhibit does with logind in place of the file.
STAND_IN = """#!/bin/sh
printf '%s\\n' "$@" > "$INHIBITED/$$"
{refusal}
while [ "${1#--}" != "$1" ]; do shift; done
"$@"
echo ended >> "$INHIBITED/$$"
"""


@pytest.fixture
def inhibited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a stand-in on the path, and return the folder with a file for each of its calls."""
    return install(tmp_path, monkeypatch)


def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal: str = "") -> Path:
    programs, calls = tmp_path / "bin", tmp_path / "calls"
    programs.mkdir(exist_ok=True)
    calls.mkdir(exist_ok=True)
    (programs / "systemd-inhibit").write_text(STAND_IN.replace("{refusal}", refusal))
    (programs / "systemd-inhibit").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("INHIBITED", str(calls))
    return calls


def lines_of(calls: Path) -> list[list[str]]:
    return [call.read_text().splitlines() for call in sorted(calls.iterdir())]


def stays_awake(service: JobService) -> bool:
    return any(worker.keeps_awake for worker in service.crew.workers)


def test_the_lock_lasts_as_long_as_the_job(
    inhibited: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.jobs.making.awake._END_SECONDS", TIMEOUT)  # the stand-in is never cut short
    engine = StagedEngine()
    service = JobService(tmp_path / "outputs", engine)
    service.start()
    assert not stays_awake(service)
    request = GenerationRequest(image=str(write_photo(tmp_path / "photo.png")), prompt="a", seconds=1.0)
    job = service.queue.add(request)
    wait_until(lambda: [call[-1:] for call in lines_of(inhibited)] == [["cat"]])
    (asked,) = lines_of(inhibited)
    wait_until(lambda: stays_awake(service))  # the stand-in may be quicker than its caller
    assert set(asked) >= {"--what=sleep:idle", "--mode=block", "--who=Longtake"}
    engine.go(100)
    assert isinstance([item[1] for item in service.follow(job.id) if item][-1], Finished)
    wait_until(lambda: not stays_awake(service))
    assert lines_of(inhibited) == [[*asked, "ended"]]
    service.stop()


def test_the_lock_ends_with_a_program_that_is_killed(inhibited: Path, tmp_path: Path) -> None:
    program, _ = run_program(Studio(tmp_path), "fault=wait")
    wait_until(lambda: any(lines_of(inhibited)))
    (holder,) = [int(call.name) for call in inhibited.iterdir()]
    assert is_running(holder)
    kill(program)
    wait_until(lambda: lines_of(inhibited)[0][-1] == "ended")
    wait_until(lambda: not is_running(holder))


@pytest.mark.parametrize("case", ["refused", "hangs", "missing"])
def test_a_job_is_made_also_where_there_is_no_lock(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if case == "missing":
        monkeypatch.setenv("PATH", str(tmp_path))
    else:
        install(tmp_path, monkeypatch, {"refused": "exit 1", "hangs": "exec sleep 600"}[case])
    monkeypatch.setattr("app.jobs.making.awake._END_SECONDS", 0.0)
    awake = Awake()
    for _ in range(2):
        with awake:
            assert case != "missing" or not awake.holds
        assert not awake.holds
    if case != "hangs":
        assert not can_stay_awake()


def test_doctor_says_whether_the_computer_stays_awake(
    inhibited: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told() -> list[str]:
        report = examine("demo", tmp_path, {}, root=tmp_path, probe=lambda _: {})
        return [finding.text for finding in report if finding.topic == "sleep"]

    assert told() == ["systemd-logind keeps the computer awake while a video is made"]
    install(tmp_path, monkeypatch, "exit 1")
    assert told() == [
        "nothing keeps the computer awake while a video is made, as systemd-logind does not answer here"
    ]
