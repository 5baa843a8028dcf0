"""The jobs of one outputs folder, kept in their folders, with an SQLite index that can be rebuilt."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

from app.jobs.event_log import EventReader, append_event, last_event
from app.jobs.index import job_from_row, open_index, put
from app.jobs.job import BEGUN, Job, JobState
from app.jobs.owner import Lock, Owner, living_owners
from app.jobs.recovery import recover, salvage, sweep
from app.jobs.state_log import StateLog, change_by
from app.jobs.trouble import TROUBLE, unwritable
from diffusers_helper.errors import InputError
from diffusers_helper.events import Cancelled, Event, Warned
from diffusers_helper.files import given_path, sync_folder, write_atomic
from diffusers_helper.output.job_folder import JobFolder, new_job_id
from diffusers_helper.request import GenerationRequest

_log = logging.getLogger(__name__)
INDEX_FOLDER = ".longtake"
RESUMED = "The job goes on; nothing that was finished is made again."


class JobStore:
    """The jobs, for any thread. Several processes may open one folder; each makes only the jobs it owns.

    A change is on the disk, in the job's folder, before it is in the index and before anyone is told.

    Args:
        outputs: The folder that holds one folder per job; made if it is missing.

    Raises:
        InputError: If nothing can be written there.
    """

    def __init__(self, outputs: Path) -> None:
        self.outputs = given_path(outputs, "outputs").absolute()
        self._lock = threading.RLock()  # held while writing
        self._reading = threading.Lock()
        self._file = self.outputs / INDEX_FOLDER / "jobs.sqlite3"
        self._owner: Owner | None = None
        self._locks: dict[str, Lock] = {}  # the locks of the jobs that this process makes now
        self._held: dict[str, dict[str, Any]] = {}  # changes that could not be written yet
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
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
        if self._owner is not None:  # its file was removed with the index
            self._owner.release()
            self._owner = Owner(self._owners, self._owner.name)

    @property
    def _owners(self) -> Path:
        return self._file.parent / "owners"

    def _mine(self) -> str:
        """Return the name of this process as an owner of jobs. Call it with the index locked."""
        if self._owner is None:
            self._owner = Owner(self._owners)
        return self._owner.name

    def release(self) -> None:
        """Give up this process's jobs; those that are not over wait for the next process that adopts them."""
        with self._lock:
            for lock in self._locks.values():
                lock.release()
            self._locks.clear()
            if self._owner is not None:
                self._owner.release()
                self._owner = None

    def add(self, request: GenerationRequest, picture: bytes, fill: Callable[[JobFolder], None]) -> Job:
        """Put a new job at the end of this process's queue. Its folder appears whole or not at all.

        Args:
            request: The settings of the video.
            picture: The start picture, as PNG.
            fill: Puts further files into the new folder.

        Raises:
            OSError, sqlite3.Error: If it cannot be written; then there is no job.
        """
        with self._transaction() as database, contextlib.ExitStack() as on_failure:
            folder = JobFolder(self.outputs / new_job_id())
            while folder.path.exists():  # two jobs of the same second drew the same number
                folder = JobFolder(self.outputs / new_job_id())
            new = JobFolder(self.outputs / f".{folder.job}.{self._mine()}.tmp")
            on_failure.callback(shutil.rmtree, new.path, ignore_errors=True)
            new.path.mkdir()
            write_atomic(new.input, picture)
            fill(new)
            request = replace(request, image=str(folder.input))
            write_atomic(new.request, request.to_json().encode() + b"\n")
            StateLog(new).start(created=time.time(), place=self._last_place(database), owner=self._mine())
            on_failure.callback(shutil.rmtree, folder.path, ignore_errors=True)
            new.path.rename(folder.path)
            sync_folder(self.outputs)
            row = put(database, folder)
            on_failure.pop_all()
        return job_from_row(self.outputs, row)

    @staticmethod
    def _last_place(database: sqlite3.Connection) -> float:
        """Return the place at the end of the queue: the time, or a later one if the clock was set back."""
        (last,) = database.execute("SELECT max(place) FROM jobs").fetchone()
        return max(time.time(), (last or 0.0) + 1e-6)

    def claim(self) -> Job | None:
        """Mark the first queued job of this process as running and return it; None if there is none."""
        self._write_held()
        with self._transaction() as database:
            queued = "SELECT id FROM jobs WHERE state = 'queued' AND owner = ? ORDER BY place, id"
            for row in database.execute(queued, (self._mine(),)).fetchall():
                folder = self._folder(row["id"])
                if not folder.path.exists():
                    self._bury(database, row["id"])
                    continue
                log = StateLog(folder)
                facts = log.read()
                lock = None
                if facts["state"] == "queued" and facts["owner"] == self._mine():
                    with contextlib.suppress(BlockingIOError):
                        lock = Lock(log.path)
                if lock is not None:
                    try:
                        log.enter("running", started=facts["started"] or time.time(), ended=None, message="")
                        self._locks[folder.job] = lock
                    except OSError:
                        lock.release()
                        raise
                made = put(database, folder)
                if lock is not None:
                    return job_from_row(self.outputs, made)
        return None

    def let_go(self, job_id: str) -> None:
        """Record that this process no longer makes a job."""
        with self._lock:
            if lock := self._locks.pop(job_id, None):
                lock.release()

    def cancel_queued(self, job_id: str) -> bool:
        """End a job that nobody makes now; return False if somebody does, or it is over or unknown."""
        with self._transaction() as database:
            folder = self._folder(job_id)
            if not folder.request.exists():
                return False
            log = StateLog(folder)
            if log.read()["state"] not in ("queued", "interrupted"):
                return False
            last = last_event(folder.events)
            video, frames = salvage(folder)  # an earlier program may have worked on it
            end = Cancelled(job=job_id, time=last.time if last else 0.0, video=video, frames=frames)
            state, facts = change_by(end, folder.path) or ("cancelled", {})
            log.enter(state, **facts)
            put(database, folder)
        with contextlib.suppress(OSError):  # whoever follows the job finds its end in the index
            append_event(folder.events, end)
        return True

    def resume(self, job_id: str) -> Job:
        """Put a job that was interrupted, has failed or was cancelled at the end of this process's queue.

        Returns:
            The job; a finished one stays as it is.

        Raises:
            InputError: If there is no such job, or if a running program makes it or will make it.
            OSError, sqlite3.Error: If it cannot be written.
        """
        self.recover(adopt=False)
        with self._transaction() as database:
            job = self.job(job_id)
            is_abandoned = job.state == "queued" and job.owner not in living_owners(self._owners)
            if not (job.is_resumable or is_abandoned):
                if job.state == "finished" or job.owner == self._mine():
                    return job
                raise InputError(
                    f"job {job_id} is {job.state} in another program; expected one that is over.",
                    "Follow it there.",
                )
            folder = self._folder(job_id)
            StateLog(folder).enter(
                "queued", owner=self._mine(), place=self._last_place(database), ended=None, message="",
                remedy="", ending=False, deaths=0, death="",
            )  # fmt: skip
            row = put(database, folder)
            last = last_event(folder.events)
            self.note(job_id, last.time if last else 0.0, RESUMED)
        return job_from_row(self.outputs, row)

    def enter(self, job_id: str, state: JobState, **facts: Any) -> None:
        """Write a job's state, to its folder and then to the index.

        Raises:
            OSError, sqlite3.Error: If it cannot be written, as on a full disk.
        """
        with self._transaction() as database:
            folder = self._folder(job_id)
            StateLog(folder).enter(state, **facts)
            put(database, folder)

    def mark_ending(self, job_id: str) -> None:
        """Record that a person wants a running job to end, even if this process dies first."""
        with contextlib.suppress(*TROUBLE), self._transaction() as database:
            log = StateLog(self._folder(job_id))
            state = log.read()["state"]
            if state in BEGUN:
                log.enter(state, ending=True)
                put(database, self._folder(job_id))

    def hold(self, job_id: str, state: JobState, **facts: Any) -> bool:
        """Remember a state that cannot be written yet; it holds within this process.

        Returns:
            Whether the state or its facts are new.
        """
        held, self._held[job_id] = self._held.get(job_id), {"state": state, **facts}
        return held != self._held[job_id]

    def unhold(self, job_id: str) -> None:
        """Forget a remembered state, since a later one was written."""
        self._held.pop(job_id, None)

    def note(self, job_id: str, seconds: float, text: str) -> None:
        """Write a warning for a person into a job's log, dated `seconds` after the job began."""
        append_event(self._folder(job_id).events, Warned(job=job_id, time=seconds, message=text))

    def record(self, event: Event) -> None:
        """Write the state that an event brings, and then the event to its job's log.

        Thus whoever reads a final event from the log finds the job ended.

        Raises:
            OSError, sqlite3.Error: If it cannot be written, as on a full disk.
        """
        folder = self._folder(event.job)
        if change := change_by(event, folder.path):
            if self.is_removed(event.job):
                with self._transaction() as database:
                    self._bury(database, event.job)
                return
            self.enter(event.job, change[0], **change[1])
        append_event(folder.events, event)

    def is_removed(self, job_id: str) -> bool:
        """Return whether somebody removed a job's folder while the outputs folder still exists."""
        return _identity(self._file) == self._identity and not self._folder(job_id).path.exists()

    def _bury(self, database: sqlite3.Connection, job_id: str) -> None:
        """Mark a job whose folder is gone as failed in the index, which alone still knows it."""
        database.execute(
            "UPDATE jobs SET state = 'failed', ended = ?, message = ?, remedy = ? WHERE id = ?",
            (time.time(), "The job's folder was removed.", "Start the job again.", job_id),
        )

    def job(self, job_id: str) -> Job:
        """Return a job.

        Raises:
            InputError: If there is none of that id.
        """
        rows = self._select("WHERE id = ?", job_id)
        if not rows:
            raise InputError(f"job is {job_id!r}; expected the id of a job here.", "Choose one of the list.")
        return self._as_known(job_from_row(self.outputs, rows[0]))

    def jobs(self, limit: int = 50) -> list[Job]:
        """Return the last jobs, newest first."""
        return self._readable(self._select("ORDER BY place DESC LIMIT ?", limit))

    def open_jobs(self) -> list[Job]:
        """Return the jobs that are queued, running or waiting, in their order."""
        rows = self._select("WHERE state IN ('queued', 'running', 'waiting') ORDER BY place, id")
        return [job for job in self._readable(rows) if job.state in ("queued", *BEGUN)]

    def finished_jobs(self, limit: int) -> list[Job]:
        """Return the last jobs that were finished, newest first."""
        return self._readable(self._select("WHERE state = 'finished' ORDER BY place DESC LIMIT ?", limit))

    def _select(self, condition: str, *values: object) -> list[sqlite3.Row]:
        # Reading has its own connection, so that a program that locks the index for writing does not stop it.
        with self._reading:
            return self._reader.execute(f"SELECT * FROM jobs {condition}", values).fetchall()

    def _readable(self, rows: list[sqlite3.Row]) -> list[Job]:
        found: list[Job] = []
        for row in rows:
            try:
                found.append(self._as_known(job_from_row(self.outputs, row)))
            except InputError as error:  # the job is of another version, with other settings
                _log.warning("Job %s is left out: %s", row["id"], error)
        return found

    def _as_known(self, job: Job) -> Job:
        """Return the job with the changes that could not be written yet."""
        held = self._held.get(job.id)
        if held is None:
            return job
        facts = {name: value for name, value in held.items() if name in Job.__dataclass_fields__}
        video = {"video": job.folder / facts["video"]} if facts.get("video") is not None else {}
        return replace(job, **(facts | video))

    def jobs_before(self, job_id: str) -> int:
        """Return how many jobs its process must end before it begins this one; 0 if it is not queued."""
        with self._reading:
            (count,) = self._reader.execute(
                "SELECT count(*) FROM jobs AS other JOIN jobs AS this USING (owner) "
                "WHERE this.id = ? AND this.state = 'queued' AND "
                "(other.state IN ('running', 'waiting') "
                "OR other.state = 'queued' AND other.place < this.place)",
                (job_id,),
            ).fetchone()
        return count

    def events(self, job_id: str) -> EventReader:
        """Return a reader of the job's log, from its beginning."""
        return EventReader(self._folder(job_id).events)

    def recover(self, *, adopt: bool) -> None:
        """Recover the jobs of processes that are gone; with `adopt`, this process makes them.

        Also writes the final states that could not be written before.
        """
        self._write_held()
        with self._transaction() as database:
            recover(database, self.outputs, self._owners, self._mine(), adopt=adopt)

    def _write_held(self) -> None:
        for job_id, held in list(self._held.items()):
            if held["state"] not in BEGUN:
                self.enter(job_id, **held)
                self.unhold(job_id)

    def sweep(self) -> None:
        """Remove the unfinished files of processes that are gone."""
        with self._transaction():
            sweep(self.outputs, self._owners, self._mine())

    def _folder(self, job_id: str) -> JobFolder:
        return JobFolder(self.outputs / job_id)

    @contextlib.contextmanager
    def _transaction(self) -> Generator[sqlite3.Connection, None, None]:
        """Exclude other threads and processes; the index gets all changes of the block or none."""
        with self._lock:
            if self._database.in_transaction:  # a caller has opened it
                yield self._database
                return
            if _identity(self._file) != self._identity:
                self._reopen()
            self._database.execute("BEGIN IMMEDIATE")
            try:
                yield self._database
                self._database.execute("COMMIT")
            except sqlite3.DatabaseError as error:
                if not isinstance(error, sqlite3.OperationalError):  # damaged, so the next one rebuilds it
                    self._identity = (-1, -1)
                raise
            finally:
                if self._database.in_transaction:
                    self._database.execute("ROLLBACK")

    def _reopen(self) -> None:
        """Rebuild an index that somebody has removed, unless the whole folder is missing."""
        if not self.outputs.is_dir() or any(not self._folder(job).path.exists() for job in self._locks):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self.outputs))
        self._database.close()
        self._open()


def _identity(file: Path) -> tuple[int, int] | None:
    """Return what tells a file from another one of the same name; None if it does not exist."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
