"""The thread that takes jobs one at a time and has the engine make them."""

from __future__ import annotations

import logging
import signal
import sqlite3
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from app.jobs.engine_client import Engine, EngineDied
from app.jobs.job import Job
from app.jobs.patience import Patience
from app.jobs.store import TAKEN_OVER, JobStore
from app.jobs.supervisor import Supervisor
from diffusers_helper.events import Cancelled, Event, SectionFinished, Warned
from diffusers_helper.failures import engine_died_event, failed_event

_log = logging.getLogger(__name__)
_KILL_SECONDS = 1.0  # what is left of a stop's time when the engine has to be killed
_RETRY_SECONDS = 2.0
_LOOK_SECONDS = 10.0
_KFD = Path("/dev/kfd")  # there with the kernel's driver for AMD's GPUs


class Worker:
    """Runs the store's queue. `on_change` is called after each event, from the worker's thread."""

    def __init__(
        self, store: JobStore, engine: Engine, patience: Patience, on_change: Callable[[], None]
    ) -> None:
        self._store, self._engine, self._on_change = store, engine, on_change
        self._supervisor = Supervisor(engine, patience, compiles=_KFD.exists())
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._running: str | None = None
        self._cancelled: set[str] = set()
        self._thread: threading.Thread | None = None

    def start(self, *, warm: bool) -> None:
        """Begins to work; `warm` starts the engine now instead of with the first job."""
        self._thread = threading.Thread(target=self._work, args=(warm,), name="jobs", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """There may be a new job."""
        self._wake.set()

    def cancel(self, job_id: str) -> bool:
        """Asks the running job to end within a step. False if that is not the running job."""
        with self._lock:
            if job_id != self._running:
                return False
            self._cancelled.add(job_id)
        self._engine.cancel(job_id)
        return True

    def is_ending(self, job_id: str) -> bool:
        """Whether the running job has been asked to end."""
        with self._lock:
            return job_id in self._cancelled

    def stop(self, timeout: float) -> None:
        """Cancels what runs, waits for its end, kills the engine if that takes too long. Queued jobs stay."""
        self._stopping.set()
        self._wake.set()
        if self._thread is None:
            return
        with self._lock:
            running = self._running
        if running is not None:
            self.cancel(running)
        self._thread.join(max(0.0, timeout - _KILL_SECONDS))
        if self._thread.is_alive():
            self._engine.kill()
            self._thread.join(_KILL_SECONDS)

    def _work(self, warm: bool) -> None:
        # Ctrl-C is for the main thread, and an engine that starts with it blocked is not hit while it starts.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        if warm:
            try:
                self._engine.start()
            except OSError:
                _log.exception("the engine did not start; the first job tries again")
        while not self._stopping.is_set():
            self._wake.clear()
            try:
                job = self._claim()
            except Exception:  # noqa: BLE001 - the thread outlives trouble with the index, as on a full disk
                _log.exception("no job could be taken from the queue; trying again")
                self._wake.wait(_RETRY_SECONDS)
                continue
            if job is not None:
                self._run(job)
            elif not self._wake.wait(_LOOK_SECONDS):
                self._look_around()
        self._engine.close()

    def _look_around(self) -> None:
        """Ends the jobs of programs that have died since, so that nobody waits for them."""
        try:
            self._store.recover(adopt=False)
        except (OSError, sqlite3.Error):
            _log.exception("the jobs of other programs could not be looked at")
        self._on_change()

    def _claim(self) -> Job | None:
        with self._lock:
            job = None if self._stopping.is_set() else self._store.claim()
            self._running = None if job is None else job.id
            return job

    def _run(self, job: Job) -> None:
        try:
            self._make(job)
        except Exception as error:  # noqa: BLE001 - the thread outlives any job, which ends with this reported
            _log.exception("job %s ended by an error of its worker", job.id)
            self._engine.close()
            end = failed_event(error, job.id, _since(job), None, 0)
            try:
                self._store.record(end)
            except (OSError, sqlite3.Error):
                _log.exception("the end of job %s could not be written", job.id)
        finally:
            with self._lock:
                self._running = None
                self._cancelled.discard(job.id)
            self._on_change()

    def _make(self, job: Job) -> None:
        before = [event for _, event in self._store.events(job.id).read()]
        if before:
            self._record(job, Warned(job=job.id, time=0.0, message=TAKEN_OVER))
        shown = next((event for event in reversed(before) if isinstance(event, SectionFinished)), None)
        try:
            for event in self._supervisor.make(job, partial(self._should_end, job), before):
                shown = event if isinstance(event, SectionFinished) else shown
                self._record(job, event)
        except EngineDied as death:
            self._record(job, self._last_word(job, death, shown))

    def _record(self, job: Job, event: Event) -> None:
        # One clock for the whole job: the engine's own begins only when it has loaded its libraries.
        self._store.record(replace(event, time=_since(job)))
        self._on_change()

    def _last_word(self, job: Job, death: EngineDied, shown: SectionFinished | None) -> Event:
        video, frames = self._store.salvage(job.id, shown)
        if self._should_end(job):
            return Cancelled(job=job.id, time=0.0, video=video, frames=frames)
        return engine_died_event(
            death.exit_code, job.id, 0.0, video, frames, attempts=death.attempts, lessons=death.lessons
        )

    def _should_end(self, job: Job, wait: float = 0.0) -> bool:
        """Whether the job was cancelled or the program is ending, or is so within `wait` seconds."""
        with self._lock:
            cancelled = job.id in self._cancelled
        return cancelled or self._stopping.wait(wait)


def _since(job: Job) -> float:
    return round(max(0.0, time.time() - (job.started or job.created)), 3)
