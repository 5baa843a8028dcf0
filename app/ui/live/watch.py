"""The stream that keeps a page up to date. It only reads: no job depends on it."""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass

from app.jobs.job import BEGUN, MOVABLE, Command, Job, NoSuchJob, size_of
from app.jobs.pace import PaceBook
from app.jobs.service import JobService
from app.ui.live.progress import LiveJob
from diffusers_helper.errors import LongtakeError

_MIN_PAUSE_SECONDS = 0.2  # between two updates; more updates would only cost the browser work
_RECENT_SECONDS = 600.0  # for which a job without a video is still shown on a new page


@dataclass(frozen=True, slots=True)
class Scene:
    """The state that a page should show now.

    Attributes:
        running: The job that began first.
        waiting: The other jobs that run, and those that come after them, oldest first.
        commands: The commands of users for the shown job, if it is being made.
        awake: Whether the computer is kept from going to sleep meanwhile.
    """

    live: LiveJob | None
    running: Job | None
    waiting: tuple[Job, ...]
    commands: frozenset[Command] = frozenset()
    jobs_first: int = 0
    queue_is_paused: bool = False
    awake: bool = False

    @property
    def open_jobs(self) -> int:
        return sum(not job.waits for job in self.waiting) + (self.running is not None)


def watch(service: JobService, chosen_id: str = "") -> Iterator[Scene]:
    """Yield scenes for ever, one per second or more: of the chosen or first running job, or the newest."""
    live: LiveJob | None = None
    paces = PaceBook(service)
    while True:
        changes = service.changes
        running, waiting = service.open_jobs()
        running_job = next((job for job in waiting if job.id == chosen_id and job.state in BEGUN), running)
        job = running_job or (waiting[0] if waiting else _newest(service, live))
        if job is None or (live is not None and live.job.id == job.id and job.is_over):
            yield Scene(live, running, waiting)
            service.wait(changes)
        else:
            try:
                pace = None if job.is_over else paces.pace(job.request.model)
                live = LiveJob(job, pace, *size_of(job))
                yield from _watch_job(service, live)
            except NoSuchJob:  # a user removed it
                live = None
            except LongtakeError:  # the service was stopped, and the server ends with it
                return


def _watch_job(service: JobService, live: LiveJob) -> Iterator[Scene]:
    shown_at = math.inf  # what happened earlier is shown as a whole, not replayed
    for item in service.follow(live.job.id):
        if item is not None:
            live.apply(item[1])
            if time.monotonic() < shown_at + _MIN_PAUSE_SECONDS:
                continue  # the change comes with the next event, or with the pause after it
        job = service.job(live.job.id)
        if job.request != live.job.request:  # a user has changed what comes next
            return
        live.job = job
        running, waiting = service.open_jobs()
        commands = frozenset(service.commands(live.job))
        jobs_first = service.queue_position(live.job.id) if live.job.state == "queued" else 0
        queue_is_paused = live.job.state == "queued" and service.queue.is_paused
        awake = any(worker.keeps_awake for worker in service.crew.workers)
        yield Scene(live, running, waiting, commands, jobs_first, queue_is_paused, awake)
        shown_at = time.monotonic()
        if live.job.state in MOVABLE and running is not None:
            return
    live.job = service.job(live.job.id)
    yield Scene(live, *service.open_jobs())


def _newest(service: JobService, live: LiveJob | None) -> Job | None:
    """Find the job that changed its state last; if none was shown yet, with a video or a recent end."""
    for job in service.recent_jobs():
        if live is not None or job.video is not None or time.time() - (job.ended or 0) < _RECENT_SECONDS:
            return job
    return None
