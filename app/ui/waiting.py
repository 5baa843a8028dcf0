"""The bounded rooms in which clients wait for updates, and the single check of jobs that serves them all."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

from app.jobs.job import Job, NoSuchJob
from app.jobs.service import JobService
from diffusers_helper.errors import LongtakeError

_GRACE_SECONDS = 5.0  # a client may begin to listen a little after it has asked
_LOOK_SECONDS = 0.2
_LOOK_SECONDS_A_JOB = 0.002  # a check of many jobs takes longer, so it happens more rarely


class Slot:
    """A place in a room.

    Attributes:
        is_lost: Set when another client needs the place and this one has to leave it.
        since: The time at which it was taken, as `time.monotonic` counts.
    """

    def __init__(self, listens: Callable[[], bool]) -> None:
        self.is_lost, self.since, self._listens = asyncio.Event(), time.monotonic(), listens

    def is_deserted(self) -> bool:
        """Return whether nobody listens, although there was time to begin."""
        return time.monotonic() - self.since > _GRACE_SECONDS and not self._listens()


class Limiter:
    """A bounded number of places, for one event loop. If there are too many, a deserted one is lost first.

    Args:
        newcomer_goes: Whether the newcomer, instead of the first comer, loses its place if none is deserted.
    """

    def __init__(self, size: int, *, newcomer_goes: bool) -> None:
        self._size, self._newcomer_goes = size, newcomer_goes
        self._places: list[Slot] = []

    @contextmanager
    def place(self, listens: Callable[[], bool]) -> Generator[Slot, None, None]:
        """Hold a place within the context. `listens` returns whether somebody listens."""
        place = Slot(listens)
        self._places.append(place)
        staying = [one for one in self._places if not one.is_lost.is_set()]
        if len(staying) > self._size:
            deserted = (one for one in staying if one.is_deserted())
            next(deserted, staying[-1 if self._newcomer_goes else 0]).is_lost.set()
        try:
            yield place
        finally:
            self._places.remove(place)


class Endings:
    """A way to wait for the ends of jobs in one event loop, in which a single check serves all who wait."""

    def __init__(self, service: JobService) -> None:
        self._service = service
        self._waiting = set[tuple[str, asyncio.Event]]()
        self._looking: asyncio.Task[None] | None = None

    async def wait(self, job_id: str, ended: asyncio.Event) -> None:
        """Wait until an event is set, at the latest when a job ends or is removed."""
        waiting = (job_id, ended)
        self._waiting.add(waiting)
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())
        try:
            await ended.wait()
        finally:
            self._waiting.discard(waiting)

    async def _look(self) -> None:
        while self._waiting:
            jobs = {job_id for job_id, _ in self._waiting}
            await asyncio.sleep(_LOOK_SECONDS + _LOOK_SECONDS_A_JOB * len(jobs))
            over = await asyncio.to_thread(self._over, jobs)
            for job_id, ended in self._waiting:
                if job_id in over:
                    ended.set()

    def _over(self, job_ids: set[str]) -> list[str]:
        try:
            running, waiting = self._service.open_jobs()
            rest = job_ids - {job.id for job in waiting} - ({running.id} if running else set())
            return [job_id for job_id in rest if self._is_over(job_id)]
        except (LongtakeError, OSError, sqlite3.Error):  # as when the folder is missing for a moment
            return []

    def _is_over(self, job_id: str) -> bool:
        try:
            return has_ended(self._service.job(job_id))
        except NoSuchJob:  # a user removed it
            return True


def has_ended(job: Job) -> bool:
    """Return whether a job is over, or waits for a user to resume it."""
    return job.is_over or job.state == "interrupted"
