"""The pace of this machine, learned from its finished jobs, and the time that others take at this pace.

The events of a job split its wall time into the start-up (until the first section is denoised), the lead of
each section (the extra time of its first step, for example while weights move), the steps, and the tails
(decoding and writing). What a card tries only once, in its first job, counts nowhere.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass, replace
from functools import lru_cache
from itertools import islice
from statistics import fmean, median

from app.jobs.finishing import finishing_pace
from app.jobs.job import Job
from app.jobs.service import JobService
from app.jobs.storage.logs import events_in
from app.jobs.view import share_done
from diffusers_helper.conditions.timeline import steps_of
from diffusers_helper.errors import InputError
from diffusers_helper.events import (
    TRIALS,
    Event,
    Finished,
    JobStarted,
    PieceDone,
    SectionFinished,
    StageStarted,
    StepDone,
)
from diffusers_helper.families.packing import DEFAULT_CHUNK, SectionPlan, decode_work
from diffusers_helper.families.step_caches import OFF
from diffusers_helper.models.registry import ModelInfo, find_model, info_of
from diffusers_helper.provenance.job_folder import JobFolder
from diffusers_helper.request import GenerationRequest

LAST_JOBS = 6
_RECENT = 60  # the number of finished jobs that are searched for those of one model


@dataclass(frozen=True, slots=True)
class Effort:
    """The amount of work that a request asks for; the VAE's windows of time advance by `chunk` frames."""

    plan: SectionPlan
    steps: Sequence[int]
    pixels: int
    cfg: float = 1.0
    chunk: int = DEFAULT_CHUNK

    @property
    def megapixels(self) -> float:
        return self.pixels / 1e6

    @property
    def step(self) -> float:
        return self.megapixels * (2 if self.cfg > 1 else 1)

    @property
    def tails(self) -> tuple[float, ...]:
        return tuple(self.megapixels * latents for latents in decode_work(self.plan, self.chunk))


@dataclass(frozen=True, slots=True)
class Pace:
    """The speed of jobs: `start_up` and `lead` in seconds, the others in seconds per unit of `Effort`."""

    start_up: float
    lead: float
    step: float
    tail: float
    jobs: int = 1

    def seconds(self, work: Effort) -> float:
        sampling = self.lead * len(work.plan) + self.step * work.step * sum(work.steps)
        return self.start_up + sampling + self.tail * sum(work.tails)


def _without_trials(events: Iterable[Event]) -> Iterator[Event]:
    """Yield events at the times that they would have if the card had not tried kernels and convolutions."""
    trial_seconds = 0.0
    trial_start: float | None = None
    for event in events:
        if trial_start is not None and not isinstance(event, PieceDone):
            trial_seconds += event.time - trial_start
            trial_start = None
        if isinstance(event, StageStarted) and event.stage in TRIALS:
            trial_start = event.time
        yield replace(event, time=event.time - trial_seconds)


def pace_of(events: Iterable[Event], request: GenerationRequest) -> Pace | None:
    """Compute the pace of one job from all its events; None if it did not finish or its log is incomplete."""
    pixels = 0
    start_up: float | None = None
    last: float | None = None  # the end of the last step or section, or where this run began to denoise
    first_steps, other_steps, tails = list[float](), list[float](), dict[int, float]()
    is_finished = False
    for event in _without_trials(events):
        if isinstance(event, JobStarted):
            pixels, last = event.width * event.height, None
        elif last is None and isinstance(event, StageStarted) and event.stage == "sample":
            start_up = event.time if start_up is None else start_up
            last = event.time
        elif last is not None and isinstance(event, StepDone | SectionFinished):
            seconds, last = max(0.0, event.time - last), event.time
            if isinstance(event, SectionFinished):
                tails[event.section] = seconds
            else:
                (first_steps if event.step == 1 else other_steps).append(seconds)
        is_finished = isinstance(event, Finished)
    # A step cache makes its steps no measure for a job that computes all of them.
    if not (is_finished and pixels and first_steps and start_up is not None) or request.step_cache != OFF:
        return None
    work = effort_of(request, info_of(request.model), pixels)
    step = fmean(other_steps or first_steps)
    decoding = sum(tail for index, tail in enumerate(work.tails, 1) if index in tails)
    lead = max(0.0, fmean(first_steps) - step)
    return Pace(start_up, lead, step / work.step, sum(tails.values()) / decoding) if decoding else None


def usual(paces: list[Pace]) -> Pace | None:
    if not paces:
        return None
    *speeds, _ = (median(values) for values in zip(*map(astuple, paces), strict=True))
    return Pace(*speeds, jobs=len(paces))


class PaceBook:
    """The paces of a service's finished jobs, for any thread. Each job's log is read once."""

    def __init__(self, service: JobService) -> None:
        self._service = service

    def pace(self, model: str) -> Pace | None:
        jobs = [
            job
            for job in self._service.finished_jobs(_RECENT)
            if job.request.model == model and not job.request.finish
        ]
        paces = (_pace_in(JobFolder(job.folder), job.request) for job in jobs)
        return usual(list(islice(filter(None, paces), LAST_JOBS)))

    @property
    def finishing(self) -> float:
        return finishing_pace(self._service.finished_jobs(_RECENT)) or 1.0


@lru_cache(maxsize=1024)
def _pace_in(folder: JobFolder, request: GenerationRequest) -> Pace | None:
    with suppress(OSError):  # the log cannot be read now
        return pace_of(events_in(folder), request)
    return None


def seconds_left(jobs: Iterable[Job], paces: PaceBook) -> list[float | None]:
    """Estimate the seconds left for each job; None if this machine has not made a video with its model yet.

    Only the area of the video counts, not its shape, so no picture has to be opened.
    """
    jobs = list(jobs)
    of_finishing = paces.finishing if any(job.request.finish for job in jobs) else 1.0
    models = {job.request.model for job in jobs if not job.request.finish}
    pace_by_model = {model: paces.pace(model) for model in models}
    estimates: list[float | None] = []
    for job in jobs:
        if finishing := job.request.finishing:
            estimates.append((1.0 - share_done(job)) * finishing.nominal_seconds * of_finishing)
            continue
        pace = pace_by_model[job.request.model]
        work = _work(job.request)
        estimates.append((1.0 - share_done(job)) * pace.seconds(work) if pace and work else None)
    return estimates


@lru_cache(maxsize=8192)
def _work(request: GenerationRequest) -> Effort | None:
    try:
        return effort_of(request, find_model(request.model, allow_folder=True))
    except InputError:
        return None


def effort_of(request: GenerationRequest, info: ModelInfo, pixels: int = 0) -> Effort:
    pixels = pixels or (request.resolution or info.side) ** 2
    return Effort(
        info.family.sections(request), steps_of(request, info), pixels, request.cfg, request.vae_chunk
    )
