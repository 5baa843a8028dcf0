"""The estimate of a request's time on this machine, from the jobs that it has finished.

A job's wall time is split, by its own events, into start-up (until the first section is sampled), denoising
and the rest (decoding, writing). Denoising is taken as proportional to sections, steps and pixels, and
doubled by classifier-free guidance; the rest as proportional to sections and pixels. The estimate uses the
medians of several jobs, so that one job beside a game or a backup does not spoil it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from app.jobs.job import Job
from app.jobs.service import JobService
from diffusers_helper.events import Event, Finished, JobStarted, SectionFinished, StageStarted, StepDone

LAST_JOBS = 6
_RECENT = 60  # number of finished jobs that are searched for those of one model


@dataclass(frozen=True, slots=True)
class Work:
    """The amount of work that a request asks for.

    Attributes:
        pixels: The pixels of one frame.
        passes: Runs of the model per step: 2 with classifier-free guidance, otherwise 1.
    """

    sections: int
    steps: int
    pixels: int
    passes: int = 1

    @property
    def decoding(self) -> float:
        """Return sections x megapixels."""
        return self.sections * self.pixels / 1e6

    @property
    def denoising(self) -> float:
        """Return sections x megapixels x steps x passes."""
        return self.decoding * self.steps * self.passes


@dataclass(frozen=True, slots=True)
class Pace:
    """The speed of one job: `start_up` in seconds, the rates in seconds per unit of `Work`."""

    start_up: float
    denoising: float
    decoding: float


@dataclass(frozen=True, slots=True)
class Estimate:
    """An estimated time; `jobs` is the number of finished jobs behind it."""

    seconds: float
    jobs: int


def passes(cfg: float) -> int:
    """Return how often a step runs the model at this classifier-free guidance."""
    return 2 if cfg > 1 else 1


def pace_of(events: Iterable[Event], cfg: float) -> Pace | None:
    """Return the pace of one job from all its events; None if it did not finish or its log is incomplete."""
    pixels = sections = steps = 0
    start_up = denoising = 0.0
    last = 0.0  # the beginning of the present section's denoising, or the end of its last step
    for event in events:
        if isinstance(event, JobStarted):
            pixels, sections = event.width * event.height, event.sections
        elif isinstance(event, StageStarted) and event.stage == "sample":
            start_up = start_up or event.time
            last = event.time
        elif isinstance(event, StepDone):
            steps = event.steps
            denoising += max(0.0, event.time - last)
            last = event.time
        elif isinstance(event, SectionFinished):
            last = event.time
        elif isinstance(event, Finished) and pixels and sections and steps:
            work = Work(sections, steps, pixels, passes(cfg))
            rest = max(0.0, event.time - start_up - denoising)
            return Pace(start_up, denoising / work.denoising, rest / work.decoding)
    return None


def estimate(paces: list[Pace], work: Work) -> Estimate | None:
    """Return the time for some work at the median of the paces; None if there are none."""
    if not paces:
        return None
    seconds = (
        median(pace.start_up for pace in paces)
        + median(pace.denoising for pace in paces) * work.denoising
        + median(pace.decoding for pace in paces) * work.decoding
    )
    return Estimate(seconds, len(paces))


class PaceBook:
    """The paces of a service's finished jobs. Each job's log is read once; any thread may use it."""

    def __init__(self, service: JobService) -> None:
        self._service = service
        self._lock = threading.Lock()
        self._known: dict[str, Pace | None] = {}

    def estimate(self, model: str, work: Work) -> Estimate | None:
        """Estimate from the last jobs of the same model, as `GenerationRequest.model` names it."""
        jobs = self._service.finished_jobs(_RECENT)
        with self._lock:
            self._known = {job.id: self._known[job.id] for job in jobs if job.id in self._known}
            paces: list[Pace] = []
            for job in jobs:
                pace = self._pace(job) if job.request.model == model else None
                paces += [] if pace is None else [pace]
                if len(paces) == LAST_JOBS:
                    break
        return estimate(paces, work)

    def _pace(self, job: Job) -> Pace | None:
        if job.id not in self._known:
            events = (item[1] for item in self._service.follow(job.id) if item is not None)
            self._known[job.id] = pace_of(events, job.request.cfg)
        return self._known[job.id]
