"""The thread that has one card's engine make jobs, one at a time."""

import errno
import logging
import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from app.cards import VideoCard
from app.jobs.finishing import add_following
from app.jobs.job import Command, Job, JobState, LostJob
from app.jobs.making.awake import Awake
from app.jobs.making.engine_client import EngineDied, EngineProcess
from app.jobs.making.supervisor import Supervisor
from app.jobs.making.watchdog import WatchdogTimeouts
from app.jobs.storage.commands import INTERRUPTED, PAUSED, WAITS, ended_by
from app.jobs.storage.folders import size_of
from app.jobs.storage.logs import events_in
from app.jobs.storage.store import JobStore
from app.jobs.storage.trouble import TROUBLE, facts_of
from diffusers_helper.errors import LongtakeError
from diffusers_helper.events import Cancelled, Event, Failed, Finished, SectionFinished, Warned
from diffusers_helper.failures import failed_event
from diffusers_helper.library_errors import is_storage_trouble
from diffusers_helper.machine.signals import block_ctrl_c
from diffusers_helper.provenance.branch import num_finished_sections
from diffusers_helper.provenance.job_folder import JobFolder

_log = logging.getLogger(__name__)
_KILL_SECONDS = 1.0  # the part of a stop's time that is reserved for killing the engine
_BEAT_SECONDS = 0.2  # the pause between two checks of whether something has ended
# The first and the longest pause between two attempts while a temporary problem, such as a full disk, delays
# a job.
_RETRY_SECONDS, _LONGEST_PAUSE = 2.0, 30.0
_KFD = Path("/dev/kfd")  # exists with the kernel's driver for AMD GPUs


class Worker:
    """The maker of jobs on one card.

    Args:
        on_change: Called after each event, from the worker's thread.
        wake: Called when the worker is free again.
        passes_on: Returns why a job on which the engine has died goes to another card; "" if it does not.

    Attributes:
        job: The id of the job that is being made, or is about to be; "" if there is none.
        failures: The number of jobs in a row on which the engine has died for good.
        gives_back: Whether its job is to end within a step and go back to the queue.
        trouble: Why this program has taken the card out of service; "" if it has not.
    """

    def __init__(
        self,
        store: JobStore,
        engine: EngineProcess,
        card: VideoCard,
        timeouts: WatchdogTimeouts,
        on_change: Callable[[], None],
        wake: Callable[[], object],
        passes_on: Callable[["Worker", Job], str],
    ) -> None:
        self._store, self._engine, self._timeouts, self._on_change = store, engine, timeouts, on_change
        self.card = card
        self.job = ""
        self.failures = 0
        self.trouble = ""
        self.gives_back = False
        self._orders: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._wake, self._passes_on = wake, passes_on
        self._command: Command | None = None  # the one that was passed on to the running job
        self._num_finished = 0  # its sections that were finished before, the last of which is reported again
        self._awake = Awake()
        self._frees = False  # true after a pause, until a job follows
        self._thread: threading.Thread | None = None

    @property
    def keeps_awake(self) -> bool:
        return self._awake.holds

    def __str__(self) -> str:
        return self.card.name

    @property
    def is_busy(self) -> bool:
        return bool(self.job)

    @property
    def is_in_service(self) -> bool:
        return not (self.trouble or self.card.away or self._store.is_out(self.card.key))

    @property
    def used_bytes(self) -> int:
        return self.card.used_bytes or (0 if self.card.machine else self._engine.used_bytes)

    def start(self) -> None:
        """Start the worker's thread, which starts the engine, since the engine ends with that thread."""
        self._thread = threading.Thread(target=self._work, name="jobs", daemon=True)
        self._thread.start()

    def make(self, job: Job) -> None:
        self.job = job.id
        self._frees = False
        self._orders.put(partial(self._run, job))

    def warm_up(self) -> None:
        self._orders.put(self._engine.start)

    def rest(self, *, leaves: bool) -> None:
        """Free the card's memory after a pause that no job followed, or if `leaves` is true."""
        if leaves or self._frees:
            self._frees = False
            self._engine.close()

    def interrupt(self) -> None:
        self._stopping.set()

    def stop(self, timeout: float) -> None:
        """End the engine, and the job if `interrupt` was called, within `timeout` seconds."""
        deadline = time.monotonic() + timeout
        self._orders.put(None)
        if self._thread is None:  # should another thread start it yet, it ends at once
            return
        commands = self._store.commands(job) if (job := self.job) else set[Command]()
        if self._command is not None or commands & {"cancel", "pause"}:
            self._thread.join(max(0.0, timeout - _KILL_SECONDS))
        while self._thread.is_alive() and time.monotonic() < deadline:
            # This is repeated, because the engine may just be starting.
            self._engine.kill()
            self._thread.join(_BEAT_SECONDS)

    def _work(self) -> None:
        # Only the main thread handles Ctrl-C. The engine inherits the blocked signal, which therefore cannot
        # end it while it starts.
        block_ctrl_c()
        while (order := self._orders.get()) is not None:
            try:
                order()
            except OSError:  # a job reports its own
                _log.exception("the engine did not start; the first job tries again")
        self._engine.close()

    def _run(self, job: Job) -> None:
        try:
            self._make(job)
        except LostJob as lost:
            _log.warning("%s", lost.message)
            self._engine.kill()
        except Exception as error:  # noqa: BLE001 - the thread outlives the job, which reports the error
            is_removed = self._store.is_removed(job.id)  # which is a user's doing
            _log.error("job %s ended by an error of its worker", job.id, exc_info=not is_removed)
            self._engine.close()
            self._finish(job, failed_event(error, job.id, 0.0, *self._store.salvage(job.id)))
        finally:
            self._store.release_job(job.id)
            self._command = None
            self.gives_back = False
            self.job = ""
            self._on_change()
            self._wake()

    def _make(self, job: Job) -> None:
        pause = _RETRY_SECONDS
        try:
            while (trouble := self._attempt(job)) is not None:
                self._wait_out(job, trouble, pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
        except (EngineDied, _AskedToEnd):
            self._break_off(job)

    def _attempt(self, job: Job) -> dict[str, str] | None:
        """Have the engine make the job; return the message and remedy with which it has to wait, or None."""
        if self._stopping.is_set():
            raise _AskedToEnd
        asked_to_end = partial(self._is_asked_to_end, job)
        supervisor = Supervisor(job, self._engine, self._timeouts, asked_to_end, compiles=_KFD.exists())
        try:
            self._num_finished = num_finished_sections(JobFolder(job.folder))
            with self._awake:
                for event in supervisor.make(events_in(JobFolder(job.folder))):
                    if isinstance(event, Failed) and (trouble := self._passing_trouble(job, event)):
                        return trouble
                    if isinstance(event, Failed) and (reason := self._goes_elsewhere(job, event)):
                        self._record(job, Warned(job=job.id, time=0.0, message=reason))
                        self._enter(job, "queued", reason=reason, message="", remedy="")
                        break
                    self.failures = 0 if isinstance(event, SectionFinished) else self.failures
                    if event.is_final:
                        self._finish(job, event)
                    else:
                        self._record(job, event)
                        self._on_change()
                        self._obey(job, event)
        except OSError as error:
            if not is_storage_trouble(error):
                raise
            self._engine.close()
            return facts_of(error)
        return None

    def _goes_elsewhere(self, job: Job, failed: Failed) -> str:
        if failed.code == "card_away":
            self.card.away = failed.message
            return f"{self.card.name} cannot go on. {failed.message} The video waits for a card."
        return self._passes_on(self, job) if failed.code == "engine_died" else ""

    def _passing_trouble(self, job: Job, failed: Failed) -> dict[str, str] | None:
        if self._store.is_removed(job.id):
            return None
        if failed.code == "disk_full":
            return facts_of(OSError(errno.ENOSPC, ""), needed_bytes=_needed_bytes(job))
        if failed.code in ("storage", "card_busy"):
            return {"message": failed.message, "remedy": failed.remedy}
        return None if job.folder.exists() else facts_of(FileNotFoundError(errno.ENOENT, ""))

    def _obey(self, job: Job, event: Event | None = None) -> Command | None:
        """Ask the engine to end within a step if a command wants that, and return this command."""
        commands = self._store.commands(job.id)
        end = ended_by(commands, event, self._num_finished)
        is_cancelled = "cancel" in commands or end == "cancel"
        pauses = "pause" in commands or self.gives_back or end == "pause"
        if self._command is None and (is_cancelled or pauses):
            self._engine.cancel(job.id)
        if self._command is None or is_cancelled:
            self._command = "cancel" if is_cancelled else "pause" if pauses else None
        return self._command

    def _wait_out(self, job: Job, trouble: dict[str, str], seconds: float) -> None:
        _log.warning("Job %s waits. %s", job.id, trouble["message"])
        self._enter(job, "waiting", **trouble)
        self._record(job, Warned(job=job.id, time=0.0, message=" ".join(trouble.values())))
        self._on_change()
        if self._should_end(job, seconds):
            raise _AskedToEnd
        self._enter(job, "running", message="", remedy="")

    def _record(self, job: Job, event: Event) -> None:
        self._write(job, partial(self._store.record, _timed(job, event)))

    def _enter(self, job: Job, state: JobState, **facts: str) -> None:
        self._write(job, partial(self._store.enter, job.id, state, **facts))

    def _write(self, job: Job, write: Callable[[], object], *, is_end: bool = False) -> None:
        """Call `write` until it succeeds. The first failure is said, and so is the wait afterwards.

        Args:
            is_end: Whether only the end of the program ends the wait, and not a command for the job.

        Raises:
            _AskedToEnd: If the job is asked to end before `write` succeeds.
            OSError: If only this job's own files cannot be written, so waiting would not help.
        """
        start_time = time.monotonic()
        trouble = dict[str, str]()
        while True:
            try:
                write()
            except TROUBLE as error:
                if self._store.concerns_one_job(error):
                    raise
                if not trouble:
                    trouble = facts_of(error)
                    _log.warning("Job %s waits. %s", job.id, trouble["message"])
                    with suppress(*TROUBLE):
                        if self._store.job(job.id).state == "running":
                            self._store.enter(job.id, "waiting", **trouble)
                    self._on_change()
                if self._stopping.wait(_RETRY_SECONDS) if is_end else self._should_end(job, _RETRY_SECONDS):
                    raise _AskedToEnd from error
            else:
                break
        if trouble:
            waited = f"{trouble['message']} The job waited for {time.monotonic() - start_time:.0f} seconds."
            self._write(job, partial(self._wait_no_more, job))
            self._record(job, Warned(job=job.id, time=0.0, message=waited))

    def _wait_no_more(self, job: Job) -> None:
        if self._store.job(job.id).state == "waiting":
            self._store.enter(job.id, "running", message="", remedy="")

    def _finish(self, job: Job, end: Event) -> None:
        end = _timed(job, end)
        write = partial(self._store.record, end)
        if isinstance(end, Finished) and job.request.then:
            write = partial(self._end_with_following, job, end)
        # A command that the engine obeyed may have been withdrawn since.
        if isinstance(end, Cancelled) and self._obey(job) != "cancel":
            self._frees = bool(self._store.commands(job.id) & {"pause", "wait"})
            write = partial(self._pause, job, end)
        try:
            self._write(job, write, is_end=True)
        except (*TROUBLE, LongtakeError, _AskedToEnd) as error:  # the next program recovers the job
            _log.warning("The end of job %s could not be written (%s).", job.id, error)

    def _end_with_following(self, job: Job, end: Finished) -> None:
        """Queue what follows before the end is written: after a crash in between, the job ends again."""
        try:
            add_following(self._store, job, Path(end.video))
        except LongtakeError as error:  # the video itself is whole
            message = f"What was to follow the video was not queued: {error.message} {error.remedy}"
            self._store.record(_timed(job, Warned(job=job.id, time=0.0, message=message.strip())))
        self._store.record(end)

    def _pause(self, job: Job, end: Cancelled) -> None:
        video = None if end.video is None else Path(end.video).name
        video_facts = {"video": video, "frames": end.frames, "ended": None}
        with self._store.transaction():  # in which no command comes
            commands = self._store.commands(job.id)
            if commands & {"pause", "wait"}:
                facts = PAUSED if "pause" in commands else WAITS
                self._store.enter(job.id, "paused", **video_facts, **facts)
                return
            reason = "The pause was withdrawn."
            if self.gives_back:
                reason = f"{self.card.name} was taken out of service."
            elif "change" in commands:
                reason = "You changed what comes next."
            self._store.enter(job.id, "queued", reason=reason, message="", remedy="", **video_facts)

    def _break_off(self, job: Job) -> None:
        if self._obey(job) is not None:
            video, frames = self._store.salvage(job.id)
            self._finish(job, Cancelled(job=job.id, time=0.0, video=video, frames=frames))
            return
        JobFolder(job.folder).remove_leftovers()
        try:
            self._store.enter(job.id, "interrupted", **INTERRUPTED)
        except TROUBLE as error:  # the next program will find that the job was interrupted
            _log.warning("Job %s is interrupted. %s", job.id, facts_of(error)["message"])

    def _is_asked_to_end(self, job: Job, wait: float = 0.0) -> bool:
        """Wait like `_should_end`; raise LostJob if another program has taken the job over."""
        if not self._store.is_mine(job.id):
            raise LostJob(job.id)
        return self._should_end(job, wait)

    def _should_end(self, job: Job, wait: float = 0.0) -> bool:
        deadline = time.monotonic() + wait
        while self._obey(job) is None:
            seconds_left = deadline - time.monotonic()
            if self._stopping.wait(max(0.0, min(seconds_left, _BEAT_SECONDS))):
                return True
            if seconds_left <= 0:
                break
        return self._command is not None


class _AskedToEnd(Exception):
    """The signal that a waiting job should end, because a user or the ending program asked for it."""


def _timed(job: Job, event: Event) -> Event:
    """Give an event the time since the job began. The engine counts from its own start."""
    return replace(event, time=round(max(0.0, time.time() - (job.started or job.created)), 3))


def _needed_bytes(job: Job) -> int:
    """Estimate the bytes that the rest of a job needs, from its finished sections; 0 if there are none."""
    finished = [event for event in events_in(JobFolder(job.folder)) if isinstance(event, SectionFinished)]
    if not finished:
        return 0
    num_left = finished[-1].sections - finished[-1].section
    return size_of(job.folder) * max(1, num_left) // finished[-1].section
