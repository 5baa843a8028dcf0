"""An engine that plays a script of events, silences and deaths, and a supervisor over it."""

import os
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from app.cards import VideoCard
from app.jobs.job import Job
from app.jobs.making.engine_client import EngineDied, Trial
from app.jobs.making.supervisor import Supervisor
from app.jobs.making.watchdog import WatchdogTimeouts
from diffusers_helper.events import (
    Event,
    Finished,
    JobStarted,
    SectionFinished,
    StageStarted,
    StepDone,
    Warned,
)
from diffusers_helper.families.packing import Mode
from diffusers_helper.request import GenerationRequest

ABOUT: dict[str, Any] = {"job": "job", "time": 0.0}
STARTED = JobStarted(**ABOUT, sections=3, frames=109, width=64, height=64)
END = Finished(**ABOUT, video="/v.mp4", frames=109, seconds=1.0)


def card_of(name: str) -> VideoCard:
    return replace(VideoCard.from_environment(os.environ), in_use=name)


def stage(section: int, name: Any = "sample") -> StageStarted:
    return StageStarted(**ABOUT, stage=name, section=section)


def step(section: int, number: int = 1) -> StepDone:
    return StepDone(**ABOUT, section=section, step=number, steps=2)


def done(section: int, front: int = 0) -> SectionFinished:
    frames = 36 * section + 1
    return SectionFinished(
        **ABOUT, section=section, sections=3, video=f"/{section}.mp4", frames=frames, added_in_front=front
    )


@dataclass
class Clock:
    """A stand-in for the module `time` that goes on only when it is told to."""

    now: float = 1000.0

    def monotonic(self) -> float:
        return self.now


@dataclass
class Script:
    """An engine whose runs are lists of events, seconds of silence, and deaths (exit codes after "dies")."""

    runs: list[list[Any]]
    clock: Clock
    restarts: bool = True
    card: VideoCard = field(default_factory=lambda: card_of("CPU"))
    attempts: int = 0
    killed: bool = False
    blocklist: dict[Trial, str] = field(default_factory=dict)

    def start(self) -> None: ...

    def close(self) -> None: ...

    def cancel(self, job_id: str) -> None: ...

    def kill(self) -> None:
        self.killed = True

    def run(
        self, job: Job, *, blocklist: Mapping[Trial, str] = MappingProxyType({})
    ) -> Iterator[Event | None]:
        self.attempts += 1
        self.blocklist = dict(blocklist)
        self.killed = False
        for item in self.runs[self.attempts - 1]:
            if isinstance(item, Event):
                yield item
            elif isinstance(item, float):
                for _ in range(10):
                    self.clock.now += item / 10
                    yield None
                    if self.killed:
                        raise EngineDied(-signal.SIGKILL)
            elif isinstance(item, EngineDied):
                raise item
            else:
                raise EngineDied(item)


def job_for(mode: Mode = "inverted") -> Job:
    request = GenerationRequest(image="p.png", prompt="a", mode=mode)
    return Job(id="job", state="running", request=request, folder=Path("job"), created=0.0)


def make(
    engine: Script, timeouts: WatchdogTimeouts | None = None, mode: Mode = "inverted", **settings: Any
) -> list[Event]:
    made: list[Event] = []
    timeouts = timeouts or WatchdogTimeouts()
    made += Supervisor(job_for(mode), engine, timeouts, lambda wait: False, **settings).make()
    return made


def warnings(events: list[Event]) -> list[str]:
    return [event.message for event in events if isinstance(event, Warned)]
