"""Tests that repeated kills of all programs, or power cuts, over one queue lose no job and change no byte.

`LONGTAKE_TEST_CRASHES=30` asks for the full size. Each kill or cut costs the seconds of another start.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from app.jobs.service import JobService
from diffusers_helper.events import SectionFinished
from diffusers_helper.output.job_folder import JobFolder
from diffusers_helper.request import GenerationRequest
from tests.support.jobs import ROOT, processes_in_group, wait_until, write_picture
from tests.support.power import Disk

CRASHES = int(os.environ.get("LONGTAKE_TEST_CRASHES", "4"))
CUTS = CRASHES if CRASHES > 10 else 2
# The last one is the command line's own.
JOBS = 5 if CRASHES > 10 else 3
SECTIONS = 3
KILLS = [
    ("engine",), ("server",), ("second",), ("command",), ("server", "second"),
    ("server", "second", "command"),
]  # fmt: skip
SERVER = """
import json, sys
from pathlib import Path
from app.jobs.service import JobService
from diffusers_helper.request import GenerationRequest
service = JobService(Path(sys.argv[1]))
service.start()
for settings in sys.argv[2:]:
    service.submit(GenerationRequest.from_dict(json.loads(settings)), allow_folder=True)
print("up", flush=True)
sys.stdin.read()
"""


class Folder:
    """An outputs folder, the programs that work on it, and how they end."""

    def __init__(
        self, folder: Path, model: Path, mode: str, environment: Mapping[str, str] | None = None
    ) -> None:
        folder.mkdir(exist_ok=True)
        self.outputs = folder / "outputs"
        self._environment = os.environ | (environment or {})
        self._model, self._mode = model, mode
        self._picture = write_picture(folder / "picture.png")
        self._programs: dict[str, subprocess.Popen[bytes]] = {}
        self.known = 0

    def settings(self, number: int) -> dict[str, Any]:
        return {
            "image": str(self._picture), "prompt": "a red ball", "seconds": SECTIONS * 1.2, "steps": 2,
            "seed": number, "mode": self._mode, "model": str(self._model),
        }  # fmt: skip

    def start_server(self, *numbers: int, name: str = "server") -> None:
        jobs = (json.dumps(self.settings(number)) for number in numbers)
        server = self._start(name, "-c", SERVER, str(self.outputs), *jobs)
        assert server.stdout is not None
        assert server.stdout.readline() == b"up\n"

    def start_command(self, number: int) -> None:
        settings = [f"--{name}={value}" for name, value in self.settings(number).items()]
        self._start("command", "-m", "app", "generate", "--json", f"--out={self.outputs}", *settings)

    def resume_command(self, job_id: str) -> None:
        arguments = ("-m", "app", "generate", "--json", "--resume", job_id, "--out", str(self.outputs))
        self._start("command", *arguments)

    def _start(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        self._programs[name] = subprocess.Popen(
            [sys.executable, *arguments], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, start_new_session=True, env=self._environment,
        )  # fmt: skip
        return self._programs[name]

    def runs(self, name: str) -> bool:
        return name in self._programs and self._programs[name].poll() is None

    def kill(self, *names: str) -> None:
        """Kill the programs alone; their engines have to notice that by themselves."""
        for name in names:
            if self.runs(name):
                self._programs[name].send_signal(signal.SIGKILL)
        for name in names:
            if program := self._programs.pop(name, None):
                program.communicate()

    def kill_engines(self) -> None:
        """Kill the children of the programs."""
        for program in self._programs.values():
            for process in processes_in_group(program.pid):
                if process != program.pid:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(process, signal.SIGKILL)

    def end(self) -> None:
        groups = [program.pid for program in self._programs.values()]
        self.kill(*list(self._programs))
        for group in groups:
            wait_until(lambda group=group: not processes_in_group(group))

    def jobs(self) -> list[JobFolder]:
        """Return the jobs in the order in which they were submitted."""
        found = [JobFolder(path.parent) for path in self.outputs.glob("[!.]*/request.json")]
        return sorted(found, key=lambda job: json.loads(job.request.read_text())["seed"])

    def lines(self) -> int:
        return sum(job.events.read_bytes().count(b"\n") for job in self.jobs() if job.events.exists())

    def wait_for_signs(self, count: int, seconds: float) -> None:
        """Wait for so many further signs of life of any job, but no longer than so many seconds."""
        begin, before = time.monotonic(), self.lines()
        while self.lines() < before + count and time.monotonic() - begin < seconds:
            if all(map(self.is_over, self.jobs())):
                return
            time.sleep(0.05)

    def wait_until_all_are_over(self) -> None:
        service = JobService(self.outputs)
        for job in self.jobs():
            for _ in service.follow(job.job):
                pass

    def is_over(self, job: JobFolder) -> bool:
        return json.loads(job.states.read_bytes().splitlines()[-1])["state"] == "finished"


@pytest.fixture
def folders() -> Iterator[list[Folder]]:
    made: list[Folder] = []
    yield made
    for folder in made:
        folder.end()


@pytest.fixture(params=["inverted", "forward"])
def mode(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_all_jobs_finish_in_order_with_the_undisturbed_bytes(
    mode: str, folders: list[Folder], tmp_path: Path, tiny_model: Path
) -> None:
    folder = Folder(tmp_path / "killed", tiny_model, mode)
    folders.append(folder)
    _start_all(folder)
    out_of_turn = _kill_again_and_again(folder, mode)
    folder.wait_until_all_are_over()
    _check_all(folder, Folder(tmp_path / "whole", tiny_model, mode), out_of_turn)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_power_cuts_lose_no_job_and_change_no_byte(
    mode: str, folders: list[Folder], tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "disk").mkdir()
    disk = Disk(tmp_path / "disk", tmp_path / "record", monkeypatch)
    folder = Folder(tmp_path / "disk", tiny_model, mode, disk.environment)
    folders.append(folder)
    _start_all(folder)
    chance = random.Random(12)
    for number in range(CUTS):
        folder.wait_for_signs(chance.randrange(1, 15), 30)
        folder.end()
        disk.lose()
        assert len(folder.jobs()) == JOBS
        folder.start_server(name="server")
        folder.start_server(name="second")
        command = folder.jobs()[-1]
        if not folder.is_over(command) and chance.random() < 0.5:
            folder.resume_command(command.job)
        sys.stderr.write(f"{mode}: cut {number + 1}, finished {sum(map(folder.is_over, folder.jobs()))}\n")
    folder.wait_until_all_are_over()
    _check_all(folder, Folder(tmp_path / "whole", tiny_model, mode), {folder.jobs()[-1].job})


def _start_all(folder: Folder) -> None:
    """Start two servers, of which one gets jobs, and a command line that brings the last job."""
    folder.start_server(*range(JOBS - 1))
    folder.start_server(name="second")
    folder.start_command(JOBS - 1)
    while len(folder.jobs()) < JOBS:
        time.sleep(0.01)


def _check_all(folder: Folder, whole: Folder, out_of_turn: set[str]) -> None:
    """Check that all jobs finished in order as jobs that nothing disturbs, and that nothing else is left."""
    service = JobService(folder.outputs)
    expected = _undisturbed(whole)
    for number, job in enumerate(folder.jobs()):
        events = [item[1] for item in service.follow(job.job) if item is not None]
        assert service.job(job.job).state == "finished", service.job(job.job)
        assert job.video.read_bytes() == expected[number].video.read_bytes()
        sections = [event.section for event in events if isinstance(event, SectionFinished)]
        assert sections == list(range(1, SECTIONS + 1))
        for kind in ("sections", "segments", "thumbs"):
            assert _names(job.path / kind) == _names(expected[number].path / kind)
    in_order = sorted((service.job(job.job) for job in folder.jobs()[:-1]), key=lambda job: job.place)
    ended = [job.ended or 0.0 for job in in_order if job.id not in out_of_turn]
    assert ended == sorted(ended)
    folder.end()
    service.start()  # as the next start leaves it
    service.stop()
    assert not list(folder.outputs.rglob("*.tmp"))
    assert _names(folder.outputs) == sorted([".longtake", *(job.job for job in folder.jobs())])
    assert not list(folder.outputs.glob("*/wish-*"))


def _kill_again_and_again(folder: Folder, mode: str) -> set[str]:
    """Kill and start programs at random moments; return the jobs that did not wait for their turn."""
    chance = random.Random(11)
    person, paused = JobService(folder.outputs), set[str]()
    person.queue.move(folder.jobs()[JOBS - 2].job, before=folder.jobs()[JOBS - 3].job)
    running, _ = person.open_jobs()
    begun = set[str]() if running is None else {running.id}  # a move does not interrupt a job that has begun
    counts: dict[str, int] = {}
    began = time.monotonic()
    for _ in range(CRASHES):
        if chance.random() < 0.25:  # also while the programs are starting
            time.sleep(chance.uniform(0, 3))
        else:
            folder.wait_for_signs(chance.randrange(1, 15), 30)
        running, _ = person.open_jobs()
        if running is not None and chance.random() < 0.3:
            paused.add(running.id)
            person.queue.pause(running.id)
        names = chance.choice(KILLS)
        counts["+".join(names)] = counts.get("+".join(names), 0) + 1
        if names == ("engine",):
            folder.kill_engines()
        folder.kill(*names)
        if chance.random() < 0.5:
            shutil.rmtree(folder.outputs / ".longtake", ignore_errors=True)
        for name in ("server", "second"):
            if not folder.runs(name):
                folder.start_server(name=name)
        for job_id in paused:
            person.resume(job_id)
        command = folder.jobs()[-1]
        if not folder.runs("command") and not folder.is_over(command) and chance.random() < 0.5:
            folder.resume_command(command.job)
        finished = sum(map(folder.is_over, folder.jobs()))
        sys.stderr.write(f"{time.monotonic() - began:.0f} s, {mode}: killed {counts}, finished {finished}\n")
    for job_id in paused:
        person.resume(job_id)
    return paused | begun


def _undisturbed(whole: Folder) -> list[JobFolder]:
    service = JobService(whole.outputs)
    for number in range(JOBS):
        service.submit(GenerationRequest.from_dict(whole.settings(number)), allow_folder=True)
    service.start()
    for job in whole.jobs():
        assert list(service.follow(job.job))
    service.stop()
    return whole.jobs()


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())
