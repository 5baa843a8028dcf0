"""Helpers for the tests of jobs, of the engine and of the command line."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from PIL import Image

from app.jobs.job import Job
from app.jobs.making.engine_client import EngineProcess
from app.jobs.service import JobService
from app.jobs.storage.database import DATABASE_FILE, DATABASE_FOLDER
from app.jobs.storage.store import JobStore
from diffusers_helper.conditions.pictures import picture_paths, store_request
from diffusers_helper.events import Event, SectionFinished, Warned
from diffusers_helper.families.framepack import COMPONENTS
from diffusers_helper.provenance.job_folder import JobFolder
from diffusers_helper.request import GenerationRequest

ROOT = Path(__file__).resolve().parents[2]
STAND_IN = str(Path(__file__).with_name("faulty"))
# The seconds for which a test waits for an event that is sure to come. On any machine, only a fault takes
# that long; no test asserts a duration.
TIMEOUT = 600.0  # a slow processor with other work needs minutes for a few videos of the demo model


# A program that submits a job for each script that it gets, prints the ids and runs the jobs.
PROGRAM = """
import sys
from pathlib import Path
from app.jobs.service import JobService
from diffusers_helper.request import GenerationRequest
outputs, picture, model, *scripts = sys.argv[1:]
service = JobService(Path(outputs))
service.start()
for script in scripts:
    request = GenerationRequest(image=picture, prompt=script, model=model)
    print(service.queue.add(request, allow_folder=True).id, flush=True)
sys.stdin.read()
"""


def asked_in(folder: Path, request: GenerationRequest) -> Path:
    """Write a request into a job's folder, with the pictures that are there, and return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    named = {name: Path(path) for name, path in picture_paths(request).items()}
    pictures = {name: path.read_bytes() for name, path in named.items() if path.exists()}
    store_request(request, pictures, JobFolder(folder), final_folder=JobFolder(folder))
    return folder


def write_blank_model(folder: Path) -> Path:
    """Write a folder that is accepted as a model as long as nothing is loaded from it."""
    for part in COMPONENTS:
        (folder / part).mkdir(parents=True)
    return folder


def write_picture(path: Path) -> Path:
    Image.new("RGB", (48, 32), (200, 30, 40)).save(path)
    return path


class Studio:
    """A service with the stand-in engine, and a picture and a model for requests."""

    def __init__(self, folder: Path, engine: EngineProcess | None = None) -> None:
        self.model = write_blank_model(folder / "model")
        self.picture = write_picture(folder / "picture.png")
        self.outputs = folder / "outputs"
        self._engine = engine
        self.service = self.open()

    def open(self) -> JobService:
        """Return another service on the folder, for which the same engine can work."""
        return JobService(self.outputs, *filter(None, [self._engine]))

    def submit(self, script: str = "", service: JobService | None = None, **settings: object) -> Job:
        given = {"image": str(self.picture), "prompt": script, "model": str(self.model), **settings}
        return (service or self.service).queue.add(GenerationRequest.from_dict(given), allow_folder=True)

    def events(self, job: Job, after: int = 0) -> list[Event]:
        """Wait for the end of a job, and return all its events."""
        return [item[1] for item in self.service.follow(job.id, after) if item is not None]

    def until(self, job: Job, kind: type[Event], number: int = 1) -> Event:
        """Wait for the first, second, ... event of a kind, and return it."""
        found = (item[1] for item in self.service.follow(job.id) if item and isinstance(item[1], kind))
        return nth(found, number)


class RealStudio(Studio):
    """A started service with the real engine, and a model with weights."""

    def __init__(self, folder: Path, model: Path) -> None:
        self.engine = EngineProcess()
        super().__init__(folder, self.engine)
        self.model = model
        self.service.start()


def nth(items: Iterator[Event], number: int) -> Event:
    for _ in range(number - 1):
        next(items)
    return next(items)


def engine_facts(event: Event) -> dict[str, int]:
    """Return `pid` and `loaded` from the first warning of the stand-in."""
    assert isinstance(event, Warned)
    return {name: int(value) for name, value in (part.split("=") for part in event.message.split())}


def is_running(pid: int) -> bool:
    """Return whether a process is running. A zombie is not."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return text.rpartition(")")[2].split()[0] not in "ZX"


def processes_in_group(group: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and is_running(int(entry.name)):
            try:
                if os.getpgid(int(entry.name)) == group:
                    found.append(int(entry.name))
            except ProcessLookupError:
                continue
    return found


def wait_until(condition: Callable[[], object]) -> None:
    """Wait, by polling, for a condition that no event announces, such as the end of another's child."""
    end = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < end, f"the condition did not hold within {TIMEOUT} s"
        time.sleep(0.01)


def run_program(studio: Studio, *scripts: str) -> tuple[subprocess.Popen[str], list[str]]:
    """Start a program with the stand-in engine and these jobs; return it and the ids of the jobs."""
    arguments = [str(studio.outputs), str(studio.picture), str(studio.model), *scripts]
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *arguments],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    return process, [process.stdout.readline().strip() for _ in scripts]


def kill(process: subprocess.Popen[str]) -> None:
    with process:
        process.send_signal(signal.SIGKILL)


def states_of(folder: Path) -> list[str]:
    return [one.state for one in JobStore(folder.parent).transitions(folder.name)]


def sections_of(events: list[Event]) -> list[int]:
    return [event.section for event in events if isinstance(event, SectionFinished)]


def damage_database(outputs: Path, damage: str) -> None:
    """Remove the folder of the database; if `damage` is "garbage", replace the database by another file."""
    folder = outputs / DATABASE_FOLDER
    shutil.rmtree(folder)
    if damage == "garbage":
        folder.mkdir()
        (folder / DATABASE_FILE).write_bytes(b"no database at all" * 100)
