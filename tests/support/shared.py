"""Stand-ins for several programs that share one outputs folder: services with staged engines."""

from pathlib import Path

from app.jobs.job import Job
from app.jobs.making.watchdog import WatchdogTimeouts
from app.jobs.service import JobService
from diffusers_helper.events import Event
from diffusers_helper.request import GenerationRequest
from tests.support.jobs import nth, wait_until, write_picture
from tests.support.staged_engine import StagedEngine


class Sharing:
    """An outputs folder and its services, each of which has its own locks like a separate process."""

    def __init__(self, folder: Path) -> None:
        self.outputs = folder / "outputs"
        self.picture = write_picture(folder / "picture.png")
        self._engines: dict[int, StagedEngine] = {}
        self.services: list[JobService] = []

    def open(self, *, start: bool = True, adopt: bool = True) -> JobService:
        engine = StagedEngine()
        service = JobService(self.outputs, engine, timeouts=WatchdogTimeouts())
        self._engines[id(service)] = engine
        self.services.append(service)
        if start:
            service.start(adopt=adopt)
        return service

    def go(self, service: JobService, events: int = 1000) -> None:
        """Let the service's engine emit so many further events."""
        self._engines[id(service)].go(events)

    def request(self, prompt: str = "a ball", **settings: object) -> GenerationRequest:
        given = {"image": str(self.picture), "prompt": prompt, "model": "demo", "seconds": 1.0, **settings}
        return GenerationRequest.from_dict(given)

    def add(self, service: JobService, prompt: str = "a ball", **settings: object) -> Job:
        return service.queue.add(self.request(prompt, **settings))

    def close(self) -> None:
        for service in self.services:
            service.stop()


def until(service: JobService, job: Job, kind: type[Event], number: int = 1) -> Event:
    """Wait for the first, second, ... event of a kind, and return it."""
    found = (item[1] for item in service.follow(job.id) if item and isinstance(item[1], kind))
    return nth(found, number)


def until_state(service: JobService, job: Job, state: str) -> Job:
    wait_until(lambda: service.job(job.id).state == state)
    return service.job(job.id)


def events(service: JobService, job: Job) -> list[Event]:
    """Wait for the end of a job, and return all its events."""
    return [item[1] for item in service.follow(job.id) if item is not None]
