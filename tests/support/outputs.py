"""An outputs folder with real jobs, and the programs that work on it and can be killed."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from app.jobs.service import JobService
from app.jobs.storage.store import JobStore
from diffusers_helper.provenance.job_folder import JobFolder
from tests.support.jobs import ROOT, processes_in_group, wait_until, write_picture

SECTIONS = 3
SERVER = """
import json, sys
from pathlib import Path
from app.jobs.making import crew, worker
from app.jobs.service import JobService
from app.jobs.storage.store import JobStore
from diffusers_helper.request import GenerationRequest
crew._RETRY_SECONDS = worker._RETRY_SECONDS = 0.1
service = JobService(Path(sys.argv[1]))
service.start()
for settings in sys.argv[2:]:
    service.queue.add(GenerationRequest.from_dict(json.loads(settings)), allow_folder=True)
print("up", flush=True)
sys.stdin.read()
"""


class Folder:
    """An outputs folder, and the programs that work on it and can be killed."""

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
        server = self.start_program(name, "-c", SERVER, str(self.outputs), *jobs)
        assert server.stdout.readline() == b"up\n"

    def start_command(self, number: int) -> None:
        settings = [f"--{name}={value}" for name, value in self.settings(number).items()]
        self.start_program("command", "-m", "app", "generate", "--json", f"--out={self.outputs}", *settings)

    def resume_command(self, job_id: str) -> None:
        arguments = ("-m", "app", "generate", "--json", "--resume", job_id, "--out", str(self.outputs))
        self.start_program("command", *arguments)

    def start_program(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        self._programs[name] = subprocess.Popen(
            [sys.executable, *arguments], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, start_new_session=True, env=self._environment,
        )  # fmt: skip
        return self._programs[name]

    def runs(self, name: str) -> bool:
        return name in self._programs and self._programs[name].poll() is None

    def kill(self, *names: str) -> None:
        """Kill the programs but not their engines, which have to notice that by themselves."""
        for name in names:
            if self.runs(name):
                self._programs[name].send_signal(signal.SIGKILL)
        for name in names:
            if program := self._programs.pop(name, None):
                program.communicate()

    def kill_engines(self) -> None:
        """Kill the engines of all programs."""
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
        """Wait for so many further events of any jobs, for at most so many seconds."""
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
        return JobStore(self.outputs).job(job.job).state == "finished"
