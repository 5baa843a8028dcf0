"""The service with which the page, the API and the command line submit, follow and cancel jobs."""

import contextlib
import os
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from app.jobs.downloads.manager import Downloads
from app.jobs.history import History, Retention
from app.jobs.job import BEGUN, Command, Job, NoSuchJob, allows
from app.jobs.making.crew import Crew
from app.jobs.making.engine_client import EngineProcess
from app.jobs.making.watchdog import WatchdogTimeouts
from app.jobs.queue import Queue
from app.jobs.steering import Steering
from app.jobs.storage.database import DATABASE_FOLDER
from app.jobs.storage.logs import EventReader, events_in
from app.jobs.storage.store import JobStore
from app.jobs.storage.trouble import TROUBLE
from diffusers_helper.errors import LongtakeError
from diffusers_helper.events import Cancelled, Event, Failed, Finished

_SILENCE_SECONDS = 1.0


class ServiceStopped(LongtakeError):
    """The error for a service that was stopped before a job that somebody follows had ended."""


class JobService:
    """The jobs of one outputs folder, and the workers that make them if no other process does.

    The constructor opens and writes no files. All methods may be called from any thread. They raise NoSuchJob
    for a job that is not there.

    Args:
        engines: The engines that make the videos, each one at a time; one child process by default.
        timeouts: The limits of an engine's silence; by default those learned from this folder's jobs.

    Attributes:
        changes: How often something has changed so far.
    """

    def __init__(
        self, outputs: Path, *engines: EngineProcess, timeouts: WatchdogTimeouts | None = None
    ) -> None:
        retention = Retention.from_environment(os.environ)
        self._engines = engines or (EngineProcess(),)
        self._timeouts = timeouts
        self._changed = threading.Condition()
        self.changes = 0
        self._stopped = False
        self._open_jobs: tuple[object, tuple[Job | None, tuple[Job, ...]]] | None = None
        self.downloads = Downloads(outputs / DATABASE_FOLDER / "downloads", self._wake)
        self._store = JobStore(outputs, self.downloads.reason_to_wait, self._wake)
        self.crew = Crew(self._store, self._notify, retention)
        self.queue = Queue(self._store)
        self.steering = Steering(self.queue)
        self.history = History(self._store)

    def start(self, *, warm: bool = False, adopt: bool = True) -> None:
        """Start the workers, which make jobs as soon as no other process makes those of this folder.

        Args:
            warm: Whether to start the engines, which load their libraries, before the first job.
            adopt: Whether to make all jobs of the folder, and get its models, or those of this process alone.
        """
        self._stopped = False
        timeouts = self._timeouts or WatchdogTimeouts(self._store.outputs / DATABASE_FOLDER / "patience.json")
        self._store.adopts = adopt
        self.crew.start(self._engines, timeouts, warm=warm)
        if adopt:
            self.downloads.start()

    def add_engine(self, engine: EngineProcess) -> None:
        if self.crew.add(engine):
            self._engines = (*self._engines, engine)
            self._notify()

    def expect_cards(self, missing: str) -> None:
        self.crew.missing = missing
        self._wake()

    @property
    def engines(self) -> int:
        return len(self._engines)

    def stop(self, timeout: float = 4.0) -> None:
        """Interrupt the running jobs, which the next program continues, and end the engines in `timeout`."""
        deadline = time.monotonic() + timeout
        self.downloads.stop()
        self.crew.stop(max(0.0, deadline - time.monotonic()))
        self._store.release()
        self._stopped = True
        self._notify()

    def kill(self) -> None:
        for engine in self._engines:
            engine.kill()

    def _wake(self) -> None:
        self.crew.wake()
        self._notify()

    def recover(self) -> None:
        """Record that the jobs of killed programs are interrupted, as a started service does by itself."""
        with contextlib.suppress(*TROUBLE):
            if self._store.select("WHERE state IN ('running', 'waiting') LIMIT 1", what="id"):
                self._store.recover()

    def commands(self, job: Job) -> set[Command]:
        """Read the commands for a job; none for one that has ended or not begun, without a look."""
        return self._store.commands(job.id) if allows(job, "wait") and job.started else set()

    def job(self, job_id: str) -> Job:
        return self._store.job(job_id)

    def all_or_none(self, added: Iterable[Job]) -> list[Job]:
        """Read jobs, which are queued as they are read; if one is refused, cancel those before it."""
        jobs = list[Job]()
        try:
            jobs.extend(added)  # those before an error stay in the list
        except LongtakeError:
            for job in jobs:
                self.queue.cancel(job.id)
            raise
        return jobs

    def jobs(self, limit: int = 50) -> list[Job]:
        return self._store.jobs("ORDER BY place DESC LIMIT ?", limit)

    def recent_jobs(self, limit: int = 20) -> list[Job]:
        changed = "(SELECT max(time) FROM transitions WHERE job = listed.id)"
        return self._store.jobs(f"ORDER BY coalesce({changed}, ended, started, created) DESC LIMIT ?", limit)

    def open_jobs(self) -> tuple[Job | None, tuple[Job, ...]]:
        """Find the job that began first, and the others that are not over; those without a model last."""
        cached = self._open_jobs
        revision = self.revision
        if cached is None or cached[0] != revision:  # a page asks several times a second
            jobs = self._store.jobs("WHERE state IN ('queued', 'running', 'waiting') ORDER BY place, id")
            running = [job for job in jobs if job.state in BEGUN]
            running.sort(key=lambda job: job.started or 0.0)
            queued = sorted((job for job in jobs if job.state == "queued"), key=lambda job: job.waits)
            cached = self._open_jobs = revision, (next(iter(running), None), (*running[1:], *queued))
        return cached[1]

    @property
    def revision(self) -> str:
        cards = tuple((worker.job, worker.is_in_service) for worker in self.crew.workers)
        return f"{hash((self._store.revision, self.downloads.revision, cards)):x}"

    def finished_jobs(self, limit: int) -> list[Job]:
        return self._store.jobs("WHERE state = 'finished' ORDER BY place DESC LIMIT ?", limit)

    def queue_position(self, job_id: str) -> int:
        job = self.job(job_id)
        if job.state != "queued":
            return 0
        condition = "WHERE state IN ('running', 'waiting') OR state = 'queued' AND place < ?"
        rows = self._store.select(condition, job.position, what="state, model")
        waits = self.downloads.reason_to_wait
        return sum(row["state"] != "queued" or not waits(row["model"]) for row in rows)

    def events(self, job_id: str) -> list[Event]:
        self._store.job(job_id)
        with contextlib.suppress(OSError):
            return events_in(self._store.folder(job_id))
        return []

    def follow(self, job_id: str, after: int = 0) -> Iterator[tuple[int, Event] | None]:
        """Yield a job's events with their sequence numbers, from number `after` + 1 until the job ends.

        The events of a resumed job include the final ones of its earlier runs. While there is no new event,
        None is yielded at least once a second, so that the caller can do something else.
        """
        reader = EventReader(self._store.folder(job_id).events)
        job = self._store.job(job_id)
        last_round = ended = False
        while True:
            changes = self.changes
            is_stopped = self._stopped
            try:
                job = self._store.job(job_id)
            except NoSuchJob:  # a user has removed it
                yield reader.sequence + 1, Cancelled(job=job_id, time=0.0, video=None, frames=0)
                return
            except TROUBLE:  # the folder is away for a moment
                pass
            is_over = job.is_over
            is_idle = True
            with contextlib.suppress(OSError):  # the log cannot be read now
                for sequence, event in reader.read():
                    is_idle = False
                    if sequence > after:
                        yield sequence, event
                    ended = event.is_final
            if ended and is_over:
                return
            if is_idle:
                if is_over and last_round and not any(worker.job == job_id for worker in self.crew.workers):
                    # The log has no final event, for example after a full disk.
                    yield reader.sequence + 1, _final_event(job)
                    return
                if is_stopped and not is_over:
                    raise ServiceStopped(
                        f"Longtake was stopped before job {job_id} ended.",
                        "Start Longtake again on the same folder; no finished work is lost.",
                    )
                last_round = is_over
                yield None
                self.wait(changes)

    def wait(self, changes: int) -> None:
        """Wait for at most a second until `changes` differs; other processes' changes wake nobody."""
        with self._changed:
            self._changed.wait_for(lambda: self.changes != changes, _SILENCE_SECONDS)

    def _notify(self) -> None:
        with self._changed:
            self.changes += 1
            self._changed.notify_all()


def _final_event(job: Job) -> Event:
    seconds = (job.ended or job.created) - (job.started or job.created)
    video = None if job.video is None else str(job.video)
    facts: dict[str, Any] = {"job": job.id, "time": seconds, "video": video, "frames": job.frames}
    if job.state == "finished" and video is not None:
        return Finished(**facts, seconds=seconds)
    if job.state == "cancelled":
        return Cancelled(**facts)
    return Failed(**facts, message=job.message, remedy=job.remedy)
