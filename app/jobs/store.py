"""The jobs of one outputs folder: the folders are the truth, SQLite is an index that can be made anew."""

from __future__ import annotations

import contextlib
import logging
import shutil
import sqlite3
import threading
import time
from collections.abc import Generator
from pathlib import Path

from app.jobs.event_log import EventReader, append_event
from app.jobs.index import changed_by, changes_by, insert, job_from_row, open_index, relative
from app.jobs.job import Job
from app.jobs.owner import Owner, is_alive
from diffusers_helper.errors import InputError
from diffusers_helper.events import Cancelled, Event, SectionFinished, Warned
from diffusers_helper.failures import interrupted_event
from diffusers_helper.files import write_atomic
from diffusers_helper.output.job_folder import JobFolder

_log = logging.getLogger(__name__)
INDEX_FOLDER = ".longtake"
TAKEN_OVER = "Longtake was ended while it made this video. It goes on; nothing that was finished is lost."
_MOST_TAKEOVERS = 3


class JobStore:
    """Safe from any thread. Several processes may open the same folder; each runs only jobs it owns.

    Args:
        outputs: the folder that holds one folder per job; made if it is missing.

    Raises:
        InputError: if nothing can be written there.
    """

    def __init__(self, outputs: Path) -> None:
        self.outputs = outputs.expanduser().absolute()
        self._lock = threading.RLock()
        self._owners = self.outputs / INDEX_FOLDER / "owners"
        self._unwritten: dict[str, Event] = {}  # final events that the index could not take
        try:
            self._owners.mkdir(parents=True, exist_ok=True)
            self._database = open_index(self.outputs / INDEX_FOLDER / "jobs.sqlite3")
            with self._transaction():
                self._owner = Owner(self._owners)
        except (OSError, sqlite3.OperationalError) as error:
            raise unwritable(outputs, error) from error

    def release(self) -> None:
        """Gives up this process's jobs; queued ones wait for the next process that adopts them."""
        with self._lock:
            self._owner.release()

    def add(self, job: Job) -> None:
        """Puts a job, whose folder exists, at the end of this process's queue, and writes its request."""
        with self._transaction() as database:
            insert(database, job, self._owner.name)
            write_atomic(JobFolder(job.folder).request, job.request.to_json().encode() + b"\n")

    def claim(self) -> Job | None:
        """The oldest queued job of this process, now running; None if there is none."""
        with self._transaction() as database:
            row = database.execute(
                "UPDATE jobs SET state = 'running', started = coalesce(started, ?) "
                "WHERE number = (SELECT number FROM jobs "
                "WHERE state = 'queued' AND owner = ? ORDER BY number LIMIT 1) RETURNING *",
                (time.time(), self._owner.name),
            ).fetchone()
        return None if row is None else job_from_row(self.outputs, row)

    def cancel_queued(self, job_id: str) -> bool:
        """Ends a job that has not begun; False if it has, or is unknown."""
        with self._lock:
            with self._transaction() as database:
                changed = database.execute(
                    "UPDATE jobs SET state = 'cancelled', ended = ? WHERE id = ? AND state = 'queued'",
                    (time.time(), job_id),
                ).rowcount
            if changed:
                last, shown = self._last_words(job_id)
                video, frames = self.salvage(job_id, shown)  # of an earlier program's work on it
                end = Cancelled(job=job_id, time=last.time if last else 0.0, video=video, frames=frames)
                self._index(end)
                self._append(end)
        return bool(changed)

    def record(self, event: Event) -> None:
        """Writes an event to its job's log, and what it changes to the index.

        The index goes first: who reads a final event from the log then finds the job ended. A final event
        that cannot be written is remembered, so that here at least the job is over.

        Raises:
            OSError, sqlite3.Error: if it cannot be written, as on a full disk.
        """
        with self._lock:
            if event.is_final:
                self._unwritten[event.job] = event
            self._index(event)
            self._unwritten.pop(event.job, None)
            self._append(event)

    def job(self, job_id: str) -> Job:
        """Raises InputError if there is no such job."""
        with self._lock:
            row = self._database.execute("SELECT * FROM jobs WHERE id = ?", (job_id,)).fetchone()
        if row is None:
            raise InputError(f"job is {job_id!r}; expected the id of a job here.", "Choose one of the list.")
        return self._as_known(job_from_row(self.outputs, row))

    def jobs(self, limit: int = 50) -> list[Job]:
        """Newest first."""
        with self._lock:
            rows = self._database.execute(
                "SELECT * FROM jobs ORDER BY number DESC LIMIT ?", (limit,)
            ).fetchall()
        return self._readable(rows)

    def open_jobs(self) -> list[Job]:
        """Those that run or wait, oldest first. The index on `state` finds them, however many are over."""
        with self._lock:
            rows = self._database.execute(
                "SELECT * FROM jobs WHERE state IN ('queued', 'running') ORDER BY number"
            ).fetchall()
        return [job for job in self._readable(rows) if not job.is_over]

    def finished_jobs(self, limit: int) -> list[Job]:
        """The last that were finished, newest first."""
        with self._lock:
            rows = self._database.execute(
                "SELECT * FROM jobs WHERE state = 'finished' ORDER BY number DESC LIMIT ?", (limit,)
            ).fetchall()
        return self._readable(rows)

    def _readable(self, rows: list[sqlite3.Row]) -> list[Job]:
        found: list[Job] = []
        for row in rows:
            try:
                found.append(self._as_known(job_from_row(self.outputs, row)))
            except InputError as error:  # of another version, whose settings were others
                _log.warning("Job %s is left out: %s", row["id"], error)
        return found

    def _as_known(self, job: Job) -> Job:
        """The job with an end that could not be written."""
        with self._lock:
            end = self._unwritten.get(job.id)
        return job if end is None else changed_by(job, end)

    def jobs_before(self, job_id: str) -> int:
        """How many jobs its process has to end before it begins this one; 0 if it does not wait."""
        with self._lock:
            (count,) = self._database.execute(
                "SELECT count(*) FROM jobs AS other JOIN jobs AS this USING (owner) "
                "WHERE this.id = ? AND this.state = 'queued' "
                "AND other.state IN ('queued', 'running') AND other.number < this.number",
                (job_id,),
            ).fetchone()
        return count

    def events(self, job_id: str) -> EventReader:
        """A reader of the job's log, from its beginning."""
        return EventReader(JobFolder(self.outputs / job_id).events)

    def recover(self, *, adopt: bool) -> None:
        """Ends what dead processes left running; with `adopt`, takes over that and what they left queued.

        A job that was taken over several times without a section being finished is ended all the same. Ends
        that could not be written before are written.
        """
        with self._lock:
            for end in list(self._unwritten.values()):
                self.record(end)
        with self._transaction() as database:
            rows = database.execute("SELECT * FROM jobs WHERE state IN ('queued', 'running')").fetchall()
            dead = {name for name in {row["owner"] for row in rows} if not is_alive(self._owners, name)}
            for row in rows:
                if row["owner"] not in dead:
                    continue
                if row["state"] == "running" and not (adopt and self._can_go_on(row["id"])):
                    self._bury(row["id"])
                elif adopt:
                    database.execute(
                        "UPDATE jobs SET owner = ?, state = 'queued' WHERE id = ?",
                        (self._owner.name, row["id"]),
                    )

    def salvage(self, job_id: str, shown: SectionFinished | None) -> tuple[str | None, int]:
        """Leaves the folder of a job whose engine died as if it had ended in order.

        Removes what was not yet whole and puts the last video shown where the finished one would be.

        Returns: that video and its number of frames.
        """
        folder = JobFolder(self.outputs / job_id)
        folder.remove_leftovers()
        if shown is None:
            return None, 0
        if not folder.video.exists() and Path(shown.video).exists():
            temporary = folder.video.with_name(f".{folder.video.name}.tmp")
            with contextlib.suppress(OSError):  # on a full disk it stays where it is
                shutil.copyfile(shown.video, temporary)
                temporary.replace(folder.video)
            temporary.unlink(missing_ok=True)
        return str(folder.video if folder.video.exists() else shown.video), shown.frames

    def _last_words(self, job_id: str) -> tuple[Event | None, SectionFinished | None]:
        """The last event in a job's log, and the last section that was shown."""
        last, shown = None, None
        for _, last in self.events(job_id).read():
            shown = last if isinstance(last, SectionFinished) else shown
        return last, shown

    def _can_go_on(self, job_id: str) -> bool:
        """Whether it is the process that is gone, and not the job itself, that kept it from its end."""
        taken_over = 0
        for _, event in self.events(job_id).read():
            if event.is_final:
                return False
            if isinstance(event, SectionFinished):
                taken_over = 0
            elif isinstance(event, Warned) and event.message == TAKEN_OVER:
                taken_over += 1
        return taken_over < _MOST_TAKEOVERS

    def _bury(self, job_id: str) -> None:
        """Ends a job whose process is gone: by its logged final event, else as interrupted."""
        last, shown = self._last_words(job_id)
        if last is not None and last.is_final:
            self._index(last)
            return
        video, frames = self.salvage(job_id, shown)
        end = interrupted_event(job_id, last.time if last else 0.0, video, frames)
        self._index(end)
        try:
            self._append(end)
        except OSError as error:  # a folder that was removed by hand
            _log.warning("The end of job %s cannot be written: %s", job_id, error)

    def _index(self, event: Event) -> None:
        changes = changes_by(event)
        if not changes:
            return
        if changes["video"] is not None:
            changes["video"] = relative(self.outputs / event.job, changes["video"])
        if event.is_final:
            changes["ended"] = time.time()
        assignments = ", ".join(f"{column} = ?" for column in changes)
        with self._lock:
            self._database.execute(
                f"UPDATE jobs SET {assignments} WHERE id = ?", (*changes.values(), event.job)
            )

    def _append(self, event: Event) -> None:
        append_event(JobFolder(self.outputs / event.job).events, event)

    @contextlib.contextmanager
    def _transaction(self) -> Generator[sqlite3.Connection, None, None]:
        """Alone against other threads and processes, all or nothing."""
        with self._lock, contextlib.ExitStack() as on_failure:
            self._database.execute("BEGIN IMMEDIATE")
            on_failure.callback(self._database.execute, "ROLLBACK")
            yield self._database
            on_failure.pop_all()
            self._database.execute("COMMIT")


def unwritable(outputs: Path, error: Exception) -> InputError:
    """What a person reads when the outputs folder takes no files."""
    reason = getattr(error, "strerror", None) or str(error)
    return InputError(
        f"outputs folder {outputs} cannot be written ({reason}); expected a writable folder.",
        "Choose another one with --out or --outputs.",
    )
