"""The store of the jobs of one outputs folder: their folders, and an SQLite index that can be rebuilt."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Generator, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from app.jobs.job import BEGUN, Job, JobState, NoSuchJob
from app.jobs.storage.event_log import EventReader, append_event, sync_video
from app.jobs.storage.index import agree, job_from_row, open_index, put
from app.jobs.storage.locks import Lock, is_locked
from app.jobs.storage.new_job import new_folder
from app.jobs.storage.recovery import recover, sweep
from app.jobs.storage.state_log import StateLog, change_by
from app.jobs.storage.trouble import TROUBLE, unwritable
from app.jobs.storage.wishes import forget_wishes
from diffusers_helper.errors import InputError
from diffusers_helper.events import Event, Warned
from diffusers_helper.files import given_path, sync_folder
from diffusers_helper.machine.storage import is_storage_trouble
from diffusers_helper.output.job_folder import JobFolder
from diffusers_helper.request import GenerationRequest

_log = logging.getLogger(__name__)
INDEX_FOLDER, MAKER, HELD = ".longtake", "maker", "held"
_REMOVED = ("The job's folder was removed.", "Start the job again.")


class JobStore:
    """The jobs of one folder, for any thread. If several processes use it, the leading one makes the jobs.

    A change is on the disk, in the job's folder, before it is in the index and before it is announced.

    Args:
        outputs: The folder that holds one folder per job. It is created if it is missing.

    Raises:
        InputError: If the folder cannot be written.
    """

    def __init__(self, outputs: Path) -> None:
        self.outputs = given_path(outputs, "outputs").absolute()
        self._lock = threading.RLock()  # held while writing
        self._reading = threading.Lock()
        self._file = self.outputs / INDEX_FOLDER / "jobs.sqlite3"
        self._lead: Lock | None = None  # held by the leading process
        self._own: set[str] = set()  # the jobs that this process has submitted or resumed
        self._locks: dict[str, Lock] = {}  # the locks of the jobs that this process is making
        self._held: dict[str, dict[str, Any]] = {}  # changes that could not be written yet
        try:
            if not self.outputs.exists():
                self.outputs.mkdir(parents=True)
                sync_folder(self.outputs.parent)
            self._open()
        except (OSError, sqlite3.OperationalError) as error:
            raise unwritable(outputs, error) from error

    def _open(self) -> None:
        self._file.parent.mkdir(exist_ok=True)
        self._database = open_index(self._file)
        with self._reading:
            self._reader = sqlite3.connect(self._file, check_same_thread=False)
            self._reader.row_factory = sqlite3.Row
        self._identity = _identity(self._file)

    def lead(self, *, adopt: bool) -> bool:
        """Take the lock for making the jobs if it is free, and return whether this process holds it.

        A process that takes the lock first tidies up after the previous holder.

        Args:
            adopt: Whether this process takes over all jobs, instead of only its own.
        """
        with self._lock:
            if self._lead is not None and self._lead.holds():
                return True
            self.give_up_lead()
            if _identity(self._file) != self._identity:
                self._reopen()
            try:
                lock = Lock(self._file.parent / MAKER)
            except BlockingIOError:
                return False
            with contextlib.ExitStack() as on_failure:
                on_failure.callback(lock.release)
                with self.transaction():
                    sweep(self.outputs, self._file.parent)
                    self.recover(adopt=adopt)
                on_failure.pop_all()
            self._lead = lock
            return True

    def has_leader(self) -> bool:
        """Return whether any process holds the lock for making this folder's jobs."""
        return is_locked(self._file.parent / MAKER)

    def rebuild(self) -> None:
        """Read all folders anew into the index."""
        with self.transaction() as database:
            database.execute("DELETE FROM jobs")
            agree(database, self.outputs)

    def give_up_lead(self) -> None:
        """Release the lock for making this folder's jobs, so that another process can take it."""
        with self._lock:
            if self._lead is not None:
                self._lead.release()
                self._lead = None

    def release(self) -> None:
        """Give up the lead and the current jobs, which the next leading process continues."""
        with self._lock:
            for lock in self._locks.values():
                lock.release()
            self._locks.clear()
            self.give_up_lead()

    def own(self, job_id: str) -> None:
        """Count a job among this process's own, which it makes even if it does not adopt all jobs."""
        self._own.add(job_id)

    def has_own(self) -> bool:
        """Return whether a job of this process waits to be made, or to be taken over."""
        states = "('queued', 'running', 'waiting', 'interrupted')"
        return any(job in self._own for (job,) in self.select(f"WHERE state IN {states}", what="id"))

    @property
    def held(self) -> Path:
        """Return the path of a file that keeps jobs from beginning. It lists the jobs that were paused."""
        return self._file.parent / HELD

    def add(self, request: GenerationRequest, picture: bytes, fill: Callable[[JobFolder], None]) -> Job:
        """Put a new job at the end of the queue. Its folder appears complete or not at all.

        Args:
            request: The settings of the video.
            picture: The start picture, as PNG.
            fill: Puts further files into the folder.

        Raises:
            OSError, sqlite3.Error: If the job cannot be written; then it does not exist.
        """
        with (
            self.transaction() as database,
            new_folder(self.outputs, request, picture, self.last_place(), fill) as folder,
        ):
            row = put(database, folder)
        self.own(folder.job)
        return job_from_row(self.outputs, row)

    def last_place(self) -> float:
        """Return the place at the end of the queue: the present time, or one more than the last place."""
        ((last,),) = self.select("", what="max(place)")
        return max(time.time(), (last or 0.0) + 1.0)  # the gaps leave places for jobs that are moved

    def claim(self, *, adopt: bool) -> Job | None:
        """Mark the first queued job as running and return it; None if there is none.

        Args:
            adopt: Whether to take any job, instead of only one of this process.
        """
        self._write_held()
        if _identity(self._file) == self._identity and not self.select("WHERE state = 'queued' LIMIT 1"):
            return None
        with self.transaction() as database:
            if self.held.exists():
                return None
            queued = "SELECT id FROM jobs WHERE state = 'queued' ORDER BY place, id"
            for row in database.execute(queued).fetchall():
                if not (adopt or row["id"] in self._own):
                    continue
                folder = self.folder(row["id"])
                if not folder.path.exists():
                    self._bury(database, row["id"], *_REMOVED)
                    continue
                try:
                    is_taken = self._take(folder)
                    made = put(database, folder)
                except (OSError, ValueError) as error:
                    if isinstance(error, OSError) and is_storage_trouble(error):
                        raise
                    words = f"The job's folder cannot be used ({error})."  # the others must not wait for it
                    self._bury(database, row["id"], words, "Repair the folder, and resume the job.")
                    continue
                if is_taken:
                    return job_from_row(self.outputs, made)
        return None

    def _take(self, folder: JobFolder) -> bool:
        """Lock a queued job and mark it as running; return False if another process makes it."""
        log = StateLog(folder)
        facts = log.read()
        if facts["state"] != "queued":
            return False
        try:
            lock = Lock(log.path)
        except BlockingIOError:
            return False
        with contextlib.ExitStack() as on_failure:
            on_failure.callback(lock.release)
            started = facts["started"] or time.time()
            log.enter("running", reason="It is its turn.", started=started, ended=None, message="", remedy="")
            on_failure.pop_all()
        self._locks[folder.job] = lock
        return True

    def let_go(self, job_id: str) -> None:
        """Record that this process no longer makes a job."""
        with self._lock:
            if lock := self._locks.pop(job_id, None):
                lock.release()

    def enter(self, job_id: str, state: JobState, *, reason: str = "", **facts: Any) -> Job:
        """Write a job's state and facts to its folder, and then to the index.

        Raises:
            OSError, sqlite3.Error: If they cannot be written, for example on a full disk.
        """
        with self.transaction() as database:
            folder = self.folder(job_id)
            StateLog(folder).enter(state, reason=reason, **facts)
            if state not in (*BEGUN, "interrupted"):
                forget_wishes(folder)
            return job_from_row(self.outputs, put(database, folder))

    def add_facts(self, job_id: str, **facts: Any) -> Job:
        """Write facts of a job to its folder, and then to the index, without changing its state."""
        with self.transaction() as database:
            StateLog(self.folder(job_id)).add(**facts)
            return job_from_row(self.outputs, put(database, self.folder(job_id)))

    def hold(self, job_id: str, state: JobState, **facts: Any) -> bool:
        """Remember a state that cannot be written yet, for use within this process.

        The state is still written to the folder if possible, for example if only the index is locked.

        Returns:
            Whether the state or its facts are new.
        """
        held, self._held[job_id] = self._held.get(job_id), {"state": state, **facts}
        is_new = held != self._held[job_id]
        if is_new and state in BEGUN and job_id in self._locks:
            with contextlib.suppress(*TROUBLE, ValueError):
                StateLog(self.folder(job_id)).enter(state, **facts)
        return is_new

    def unhold(self, job_id: str) -> None:
        """Forget a remembered state, because a later one has been written."""
        self._held.pop(job_id, None)

    def note(self, job_id: str, seconds: float, text: str) -> None:
        """Write a warning to a job's log of events, dated `seconds` after the job began."""
        append_event(self.folder(job_id).events, Warned(job=job_id, time=seconds, message=text))

    def record(self, event: Event) -> None:
        """Write the state that follows from an event, and then the event to its job's log.

        In this order, a reader of a final event finds that the job has ended.

        Raises:
            OSError, sqlite3.Error: If they cannot be written, for example on a full disk.
        """
        folder = self.folder(event.job)
        if change := change_by(event, folder.path):
            if self.is_removed(event.job):
                with self.transaction() as database:
                    self._bury(database, event.job, *_REMOVED)
                return
            sync_video(event, folder)
            self.enter(event.job, change[0], **change[1])
        append_event(folder.events, event)

    def is_removed(self, job_id: str) -> bool:
        """Return whether a job's folder was removed while the outputs folder still exists."""
        return _identity(self._file) == self._identity and not self.folder(job_id).path.exists()

    def _bury(self, database: sqlite3.Connection, job_id: str, message: str, remedy: str) -> None:
        """Mark a job as failed in the index only, because its folder cannot be used."""
        database.execute(
            "UPDATE jobs SET state = 'failed', ended = ?, message = ?, remedy = ? WHERE id = ?",
            (time.time(), message, remedy, job_id),
        )

    def job(self, job_id: str) -> Job:
        """Return a job by its id.

        Raises:
            NoSuchJob: If there is no job with that id.
        """
        rows = self.select("WHERE id = ?", job_id)
        if not rows:
            raise NoSuchJob(job_id)
        return self._as_known(job_from_row(self.outputs, rows[0]))

    def jobs(self, condition: str, *values: object) -> list[Job]:
        """Return the jobs that an SQL condition selects."""
        return self.readable(self.select(condition, *values))

    def readable(self, rows: Iterable[sqlite3.Row]) -> list[Job]:
        """Return rows of the index as jobs, without those that this version cannot read."""
        found: list[Job] = []
        for row in rows:
            try:
                found.append(self._as_known(job_from_row(self.outputs, row)))
            except InputError as error:  # the job comes from a version with other settings
                _log.warning("Job %s is left out: %s", row["id"], error)
        return found

    def select(self, condition: str, *values: object, what: str = "*") -> list[sqlite3.Row]:
        """Return the rows of the index that an SQL condition selects."""
        # Reading has its own connection, so a program that locks the index for writing does not block it.
        with self._reading:
            return self._reader.execute(f"SELECT {what} FROM jobs {condition}", values).fetchall()

    def _as_known(self, job: Job) -> Job:
        """Return the job with the changes that could not be written yet."""
        held = self._held.get(job.id)
        if held is None:
            return job
        facts = {name: value for name, value in held.items() if name in Job.__dataclass_fields__}
        if facts.get("video") is not None:
            facts["video"] = job.folder / facts["video"]
        return replace(job, **facts)

    def events(self, job_id: str) -> EventReader:
        """Return a reader of the job's log, from its beginning."""
        return EventReader(self.folder(job_id).events)

    def recover(self, *, adopt: bool) -> None:
        """Write remembered final states, and recover the jobs whose process has ended.

        All of them are queued if `adopt` is true, otherwise only this process's own.
        """
        self._write_held()
        with self.transaction() as database:
            recover(database, self.outputs, lambda job_id: adopt or job_id in self._own)

    def _write_held(self) -> None:
        for job_id, held in list(self._held.items()):
            if held["state"] not in BEGUN:
                self.enter(job_id, **held)
                self.unhold(job_id)

    @property
    def revision(self) -> tuple[object, ...]:
        """Return a value that changes whenever a job's facts do, by whichever process."""
        with self._reading:
            ((version,),) = self._reader.execute("PRAGMA data_version")
        return self._identity, version, tuple((one, held["state"]) for one, held in self._held.items())

    def folder(self, job_id: str) -> JobFolder:
        """Return the folder of a job, whether or not it exists."""
        return JobFolder(self.outputs / job_id)

    @contextlib.contextmanager
    def transaction(self) -> Generator[sqlite3.Connection, None, None]:
        """Lock the index for the block. The index gets all changes of the block or none."""
        with self._lock:
            if self._database.in_transaction:  # a caller has opened the transaction
                yield self._database
                return
            if _identity(self._file) != self._identity:
                self._reopen()
            self._database.execute("BEGIN IMMEDIATE")
            try:
                yield self._database
                self._database.execute("COMMIT")
            except sqlite3.DatabaseError as error:
                if not isinstance(error, sqlite3.OperationalError):  # damaged: the next call rebuilds it
                    self._identity = (-1, -1)
                raise
            finally:
                if self._database.in_transaction:
                    self._database.execute("ROLLBACK")

    def _reopen(self) -> None:
        """Rebuild an index that was removed or damaged, unless a folder in use is missing."""
        if not self.outputs.is_dir() or any(not self.folder(job).path.exists() for job in self._locks):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self.outputs))
        self._database.close()
        self._open()


def _identity(file: Path) -> tuple[int, int] | None:
    """Return the numbers that distinguish a file from others of the same name; None if it does not exist."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
