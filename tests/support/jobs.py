"""What the tests of jobs, engine and command line share."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from PIL import Image

from app.jobs.job import Job
from app.jobs.service import JobService
from diffusers_helper.events import Event, Warned
from diffusers_helper.models.registry import PARTS
from diffusers_helper.request import GenerationRequest

ROOT = Path(__file__).resolve().parents[2]
STAND_IN = str(Path(__file__).with_name("faulty"))


def write_blank_model(folder: Path) -> Path:
    """A folder that passes for a model as long as nothing is loaded from it."""
    for part in PARTS:
        (folder / part).mkdir(parents=True)
    return folder


def write_picture(path: Path) -> Path:
    """A red picture of 48 by 32 pixels."""
    Image.new("RGB", (48, 32), (200, 30, 40)).save(path)
    return path


class Studio:
    """A service over the stand-in engine, with a request at hand."""

    def __init__(self, folder: Path) -> None:
        self.model = write_blank_model(folder / "model")
        self.picture = write_picture(folder / "picture.png")
        self.outputs = folder / "outputs"
        self.service = JobService(self.outputs)

    def submit(self, script: str = "", service: JobService | None = None, **settings: object) -> Job:
        given = {"image": str(self.picture), "prompt": script, "model": str(self.model), **settings}
        return (service or self.service).submit(GenerationRequest.from_dict(given), allow_folder=True)

    def events(self, job: Job, after: int = 0) -> list[Event]:
        """All events to the final one."""
        return [item[1] for item in self.service.follow(job.id, after) if item is not None]

    def until(self, job: Job, kind: type[Event], number: int = 1) -> Event:
        """The first, second, ... event of a kind."""
        found = (item[1] for item in self.service.follow(job.id) if item and isinstance(item[1], kind))
        return nth(found, number)


def nth(items: Iterator[Event], number: int) -> Event:
    for _ in range(number - 1):
        next(items)
    return next(items)


def engine_facts(event: Event) -> dict[str, int]:
    """`pid` and `loaded` from the stand-in's first words."""
    assert isinstance(event, Warned)
    return {name: int(value) for name, value in (part.split("=") for part in event.message.split())}


def is_running(pid: int) -> bool:
    """Whether there is such a process; one that is dead but not yet collected does not count."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return text.rpartition(")")[2].split()[0] not in "ZX"


def processes_in_group(group: int) -> list[int]:
    """Living processes of a process group."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and is_running(int(entry.name)):
            try:
                if os.getpgid(int(entry.name)) == group:
                    found.append(int(entry.name))
            except ProcessLookupError:
                continue
    return found


def wait_until(condition: Callable[[], object], seconds: float) -> float:
    """How long it took until the condition held; fails when it takes longer than allowed."""
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < seconds, f"not within {seconds} s"
        time.sleep(0.01)
    return time.monotonic() - start
