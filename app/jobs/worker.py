"""The thread that takes jobs one at a time and has the engine make them."""

from __future__ import annotations

import errno
import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from app.jobs.engine_client import Engine, EngineDied
from app.jobs.job import Job
from app.jobs.patience import Patience
from app.jobs.recovery import INTERRUPTED, salvage
from app.jobs.state_log import change_by
from app.jobs.store import JobStore
from app.jobs.supervisor import Supervisor
from app.jobs.trouble import TROUBLE, facts_of
from app.machine import this_profile
from diffusers_helper.events import Cancelled, Event, Failed, Warned
from diffusers_helper.failures import engine_died_event, failed_event
from diffusers_helper.memory.shortage import OutOfDeviceMemory, read_shortage
from diffusers_helper.output.job_folder import JobFolder
from diffusers_helper.planning.death_note import DeathNote

_log = logging.getLogger(__name__)
_KILL_SECONDS = 1.0  # the rest of a stop's time that is kept for killing the engine
_BEAT_SECONDS = 0.2  # the pause between two checks whether something has ended
# The pauses between two attempts while passing trouble, such as a full disk, holds up a job.
_RETRY_SECONDS, _LONGEST_PAUSE = 2.0, 30.0
_LOOK_SECONDS = 10.0
_KFD = Path("/dev/kfd")  # exists with the kernel's driver for AMD GPUs


class Worker:
    """The maker of the jobs in the store's queue.

    Args:
        on_change: Called after each event, from the worker's thread.
        adopts: Whether jobs of programs that are gone are made here, too.
    """

    def __init__(
        self,
        store: JobStore,
        engine: Engine,
        patience: Patience,
        on_change: Callable[[], None],
        *,
        adopts: bool,
    ) -> None:
        self._store, self._engine, self._on_change, self._adopts = store, engine, on_change, adopts
        self._supervisor = Supervisor(engine, patience, compiles=_KFD.exists())
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._running: str | None = None
        self._cancelled: set[str] = set()
        self._thread: threading.Thread | None = None

    def start(self, *, warm: bool) -> None:
        """Begin to work; `warm` starts the engine now instead of with the first job."""
        self._thread = threading.Thread(target=self._work, args=(warm,), name="jobs", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Make the thread look for a new job."""
        self._wake.set()

    def cancel(self, job_id: str) -> bool:
        """Ask a job to end within a step; return False if it is not the running one."""
        with self._lock:
            if job_id != self._running:
                return False
            self._cancelled.add(job_id)
        self._engine.cancel(job_id)
        return True

    def is_ending(self, job_id: str) -> bool:
        """Return whether the running job has been asked to end."""
        with self._lock:
            return job_id in self._cancelled

    def stop(self, timeout: float) -> None:
        """Interrupt the running job, and leave no process behind.

        Waits at most `timeout` seconds for a job that was asked to end. Queued jobs stay queued.
        """
        deadline = time.monotonic() + timeout
        self._stopping.set()
        self._wake.set()
        if self._thread is None:
            return
        with self._lock:
            ends = self._running is not None and self._running in self._cancelled
        if ends:
            self._thread.join(max(0.0, timeout - _KILL_SECONDS))
        while self._thread.is_alive() and time.monotonic() < deadline:
            # This is repeated, since the engine may be starting only now.
            self._engine.kill()
            self._thread.join(_BEAT_SECONDS)

    def _work(self, warm: bool) -> None:
        # Ctrl-C is for the main thread. An engine that starts with it blocked is not hit while it starts.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        if warm:
            try:
                self._engine.start()
            except OSError:
                _log.exception("the engine did not start; the first job tries again")
        trouble = ""
        while not self._stopping.is_set():
            self._wake.clear()
            try:
                job = self._claim()
            except TROUBLE as error:
                if trouble != (trouble := facts_of(error)["message"]):
                    _log.warning("No job can be taken from the queue, which is tried again. %s", trouble)
                self._wake.wait(_RETRY_SECONDS)
                continue
            trouble = ""
            if job is not None:
                self._run(job)
            elif not self._wake.wait(_LOOK_SECONDS):
                self._look_around()
        self._engine.close()

    def _look_around(self) -> None:
        """Recover the jobs of programs that have died since, so that nobody waits for them in vain."""
        try:
            self._store.recover(adopt=self._adopts)
        except TROUBLE as error:
            _log.warning("The jobs of other programs cannot be looked at. %s", facts_of(error)["message"])
        self._on_change()

    def _claim(self) -> Job | None:
        with self._lock:
            job = None if self._stopping.is_set() else self._store.claim()
            self._running = None if job is None else job.id
            return job

    def _run(self, job: Job) -> None:
        try:
            self._make(job)
        except Exception as error:  # noqa: BLE001 - the thread outlives the job, which reports the error
            _log.exception("job %s ended by an error of its worker", job.id)
            self._engine.close()
            self._finish(job, failed_event(error, job.id, 0.0, *self._salvage(job)))
        finally:
            self._store.let_go(job.id)
            with self._lock:
                self._running = None
                self._cancelled.discard(job.id)
            self._on_change()

    def _make(self, job: Job) -> None:
        """Have the engine make the job, again after passing trouble, until the job or the program ends."""
        pause = _RETRY_SECONDS
        try:
            while (trouble := self._attempt(job)) is not None:
                self._wait_out(job, trouble, pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
        except EngineDied as death:
            if not self._should_end(job):
                self._finish(job, self._explained(job, death))
                return
            self._break_off(job)
        except _AskedToEnd:
            self._break_off(job)

    def _explained(self, job: Job, death: EngineDied) -> Failed:
        """Return the end of a job whose engines have died too often."""
        end = engine_died_event(
            death.exit_code, job.id, 0.0, *self._salvage(job),
            attempts=death.attempts, lessons=death.lessons, errors=death.errors,
        )  # fmt: skip
        if not death.shortage:
            return end
        note = DeathNote.read(JobFolder(job.folder).shortage)
        error = OutOfDeviceMemory(
            read_shortage(death.shortage),
            smaller_plans=1 if note and note.change else 0,
            is_apu=this_profile(os.environ).machine.is_apu,
        )
        return replace(end, message=error.message, remedy=error.remedy, code=error.code)

    def _attempt(self, job: Job) -> dict[str, str] | None:
        """Run the engine once, and return why the job has to wait; None if it has ended.

        Raises:
            EngineDied: If the engine died for good, or because the job should end.
            _AskedToEnd: If the job should end while it waits for something to be written.
        """
        if self._stopping.is_set():
            raise _AskedToEnd
        before = [event for _, event in self._store.events(job.id).read()]
        for event in self._supervisor.make(job, partial(self._should_end, job), before):
            if isinstance(event, Failed) and (trouble := self._trouble_of(job, event)):
                return trouble
            if event.is_final:
                self._finish(job, event)
            else:
                self._write(job, partial(self._store.record, _timed(job, event)))
                self._on_change()
        return None

    def _trouble_of(self, job: Job, failed: Failed) -> dict[str, str] | None:
        """Return why a job has to wait if the engine lost its folder; None after any other failure."""
        if self._store.is_removed(job.id):
            return None
        if failed.code == "disk_full":
            return facts_of(OSError(errno.ENOSPC, ""))
        if failed.code == "storage":
            return {"message": failed.message, "remedy": failed.remedy}
        if not job.folder.exists():
            return facts_of(FileNotFoundError(errno.ENOENT, ""))
        return None

    def _wait_out(self, job: Job, trouble: dict[str, str], seconds: float) -> None:
        """Let a job wait, at least until its folder can be written."""
        self._hold(job, trouble)
        self._write(job, partial(self._store.enter, job.id, "waiting", **trouble))
        said = Warned(job=job.id, time=0.0, message=" ".join(trouble.values()))
        self._write(job, partial(self._store.record, _timed(job, said)))
        self._on_change()
        if self._should_end(job, seconds):
            raise _AskedToEnd
        self._write(job, partial(self._store.enter, job.id, "running", message="", remedy=""))

    def _write(self, job: Job, write: Callable[[], None]) -> None:
        """Write something of a job; the job waits until an attempt succeeds.

        Raises:
            _AskedToEnd: If the job should end before that.
        """
        began, trouble = time.monotonic(), None
        while True:
            try:
                write()
            except TROUBLE as error:
                trouble = facts_of(error)
                self._hold(job, trouble)
                if self._should_end(job, _RETRY_SECONDS):
                    raise _AskedToEnd from error
            else:
                break
        self._store.unhold(job.id)
        if trouble is not None:
            waited = f"{trouble['message']} The job waited for {time.monotonic() - began:.0f} seconds."
            self._write(job, partial(self._store.note, job.id, _since(job), waited))

    def _hold(self, job: Job, trouble: dict[str, str]) -> None:
        if self._store.hold(job.id, "waiting", **trouble):
            _log.warning("Job %s waits. %s", job.id, trouble["message"])
        self._on_change()

    def _finish(self, job: Job, end: Event) -> None:
        """Write a job's end; if that fails, the job is over at least within this program."""
        end = _timed(job, end)
        try:
            self._write(job, partial(self._store.record, end))
        except _AskedToEnd:
            state, facts = change_by(end, job.folder) or ("failed", {})
            self._store.hold(job.id, state, **facts)

    def _break_off(self, job: Job) -> None:
        """End a job that a person cancelled, or mark it as interrupted if the program ends."""
        if self.is_ending(job.id):
            video, frames = self._salvage(job)
            self._finish(job, Cancelled(job=job.id, time=0.0, video=video, frames=frames))
            return
        JobFolder(job.folder).remove_leftovers()
        try:
            self._store.enter(job.id, "interrupted", **INTERRUPTED)
        except TROUBLE as error:  # then the next program finds that it was interrupted
            _log.warning("Job %s is interrupted. %s", job.id, facts_of(error)["message"])

    @staticmethod
    def _salvage(job: Job) -> tuple[str | None, int]:
        try:
            return salvage(JobFolder(job.folder))
        except OSError:  # its folder is missing
            return None, 0

    def _should_end(self, job: Job, wait: float = 0.0) -> bool:
        """Return whether, within `wait` seconds, the job is cancelled or the program ends."""
        deadline = time.monotonic() + wait
        while not self.is_ending(job.id):
            left = deadline - time.monotonic()
            if self._stopping.wait(max(0.0, min(left, _BEAT_SECONDS))):
                return True
            if left <= 0:
                return False
        return True


class _AskedToEnd(Exception):
    """The wish of a person, or of the ending program, that a waiting job end."""


def _timed(job: Job, event: Event) -> Event:
    """Return the event by the job's clock; the engine's starts when it has loaded its libraries."""
    return replace(event, time=_since(job))


def _since(job: Job) -> float:
    return round(max(0.0, time.time() - (job.started or job.created)), 3)
