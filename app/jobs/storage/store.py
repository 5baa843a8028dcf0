"""The store of the jobs of one outputs folder: their folders, and an SQLite index that can be rebuilt."""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from app.jobs.job import BEGUN, Job, JobState, NoSuchJob
from app.jobs.storage.commands import carry_out_change, forget_commands, recover
from app.jobs.storage.folders import sweep
from app.jobs.storage.index import INDEX_FOLDER, OpenIndex
from app.jobs.storage.logs import StateLog, append_event, change_by, time_of_last
from app.jobs.storage.rows import COLUMNS, bury, job_from_row, put, stamp_of
from app.jobs.storage.trouble import TROUBLE, unwritable
from diffusers_helper.events import Event
from diffusers_helper.files import expanded_path, make_way, sync_folder
from diffusers_helper.library_errors import is_storage_trouble
from diffusers_helper.machine.file_locks import Lock, is_locked
from diffusers_helper.provenance.branch import num_finished_sections
from diffusers_helper.provenance.job_folder import JobFolder

_log = logging.getLogger(__name__)
Maker = TypeVar("Maker")


class JobStore:
    """The jobs of one folder, for any thread.

    The folder and its index are opened, and made if they are missing, when they are first needed; any method
    raises InputError if they cannot be written then. A change is on the disk, in the job's folder, before it
    is in the index and before it is announced.

    Args:
        outputs: The folder that holds one folder per job.
        reason_to_wait: Returns why a queued job with a certain model cannot begin yet, as the job's facts.
        on_change: Called after each change that a user has made.

    Attributes:
        adopts: Whether this process makes all jobs, instead of only those that it has submitted or resumed.
        own: The jobs that this process has submitted or resumed.
        held: The path of a file that keeps jobs from beginning. It lists the jobs that were paused.
        cancelled: The jobs that this process makes and that are to end although no file says so.
    """

    def __init__(
        self,
        outputs: Path,
        reason_to_wait: Callable[[str], Mapping[str, str]] = lambda model: {},
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self._reason_to_wait, self.on_change = reason_to_wait, on_change
        self.outputs = expanded_path(outputs, "outputs").absolute()
        self.adopts = False
        self._opening = threading.Lock()
        self.own: set[str] = set()
        self._locks: dict[str, Lock] = {}  # the locks of the jobs that this process is making
        self._changing_locks = threading.Lock()  # so that none is replaced after it was let go
        self._stamps: dict[str, str] = {}  # what their logs were like when they were last seen
        self.cancelled: set[str] = set()
        self._held: dict[str, dict[str, Any]] = {}  # changes that could not be written yet
        folder = self.outputs / INDEX_FOLDER
        self.held, self.trash = folder / "held", folder / "trash"

    @cached_property
    def _opened(self) -> OpenIndex:
        try:
            if not self.outputs.exists():
                self.outputs.mkdir(parents=True)
                sync_folder(self.outputs.parent)
            return OpenIndex(self.outputs)
        except TROUBLE as error:
            raise unwritable(self.outputs, error) from error

    @property
    def _index(self) -> OpenIndex:
        with self._opening:
            return self._opened

    def lead(self, card: str) -> Lock | None:
        """Take the lock for making jobs on a card, and tidy up after dead holders; None if it is taken."""
        file = self._index.folder / f"maker-{card}"
        with self.transaction():  # in which no other process looks whether it is locked
            is_alone = not self.has_maker
            make_way(file)
            try:
                lock = Lock(file)
            except BlockingIOError:
                return None
        with contextlib.ExitStack() as on_failure:
            on_failure.callback(lock.release)
            with self.transaction():
                if is_alone:
                    sweep(self.outputs, self._index.folder)
                self.recover()
            on_failure.pop_all()
        return lock

    @property
    def has_maker(self) -> bool:
        """Return whether any process holds a card's lock, with which it makes this folder's jobs."""
        return any(is_locked(file) for file in self.held.parent.glob("maker-*"))

    def is_out(self, card: str) -> bool:
        return (self.held.parent / f"out-{card}").is_file()

    def set_out(self, card: str, is_out: bool) -> None:
        """Take a card out of service or put it back."""
        file = self.held.parent / f"out-{card}"
        if is_out:
            make_way(file)
            file.touch()
        else:
            file.unlink(missing_ok=True)
        sync_folder(file.parent)

    def release(self) -> None:
        for job_id in self.making:
            self.let_go(job_id)

    def makes(self, job_id: str) -> bool:
        return self.adopts or job_id in self.own

    def has_work(self) -> bool:
        states = "('queued', 'running', 'waiting', 'interrupted')"
        return self.adopts or any(
            job in self.own for (job,) in self.select(f"WHERE state IN {states}", what="id")
        )

    def last_place(self) -> float:
        """Return the place at the end of the queue: the present time, or one more than the last place."""
        ((last,),) = self.select("", what="max(place)")
        return max(time.time(), (last or 0.0) + 1.0)  # the gaps leave places for jobs that are moved

    def claim(self, choose: Callable[[Job], Maker | None]) -> tuple[Job, Maker] | None:
        """Mark the first queued job that can begin here as running.

        Args:
            choose: Returns who makes a job; None if nobody who is free can.

        Returns:
            The job and its maker; None if there is no such job.
        """
        self.write_held()
        if self._index.is_current and not self.select("WHERE state = 'queued' LIMIT 1", what="id"):
            return None
        with self.transaction() as database:
            if self.held.is_file():
                return None
            queued = "SELECT id, model FROM jobs WHERE state = 'queued' ORDER BY place, id"
            for row in database.execute(queued).fetchall():
                if not self.makes(row["id"]) or self._reason_to_wait(row["model"]):
                    continue
                whole = database.execute(f"SELECT {COLUMNS} FROM jobs WHERE id = ?", (row["id"],)).fetchone()
                if (maker := choose(job_from_row(self.outputs, whole))) is None:
                    continue
                folder = self.folder(row["id"])
                try:
                    if put(database, folder)["state"] == "queued" and self._take(folder, str(maker)):
                        return job_from_row(self.outputs, put(database, folder)), maker
                except OSError as error:
                    if not self.concerns_one_job(error):
                        raise
                    words = f"The job's folder cannot be used ({error})."  # the others must not wait for it
                    bury(database, row["id"], words, "Repair the folder, and resume the job.")
        return None

    def _take(self, folder: JobFolder, card: str) -> bool:
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
            started = time.time() - (time_of_last(folder) if facts["started"] else 0)  # without pauses
            log.enter(
                "running", reason="It is its turn.", started=started, ended=None, message="", remedy="",
                card=_made_on(facts["card"], card, num_finished_sections(folder) + 1),
            )  # fmt: skip
            on_failure.pop_all()
        self._locks[folder.job] = lock
        return True

    @property
    def making(self) -> tuple[str, ...]:
        return tuple(self._locks)

    def keep(self, job_id: str) -> None:
        """Write the state of a job that this process makes anew if something else has changed its log."""
        folder = self.folder(job_id)
        if self._stamps.get(job_id) == stamp_of(folder):
            return
        with contextlib.suppress(*TROUBLE):
            log = StateLog(folder)
            facts = log.read()
            if facts["fault"] or facts["state"] not in BEGUN or not self._locks[job_id].holds():
                begun: list[JobState] = [one.state for one in log.transitions() if one.state in BEGUN]
                reason = "Its log was changed from outside while it was made."
                self.enter(job_id, begun[-1] if begun else "running", reason=reason)
            self._stamps[job_id] = stamp_of(folder)

    def let_go(self, job_id: str) -> None:
        with self._changing_locks:
            self._stamps.pop(job_id, None)
            self.cancelled.discard(job_id)
            if lock := self._locks.pop(job_id, None):
                lock.release()

    def enter(self, job_id: str, state: JobState, *, reason: str = "", **facts: Any) -> Job:
        """Write a job's state and facts to its folder, and then to the index.

        Raises:
            OSError, sqlite3.Error: If they cannot be written, for example on a full disk.
        """
        with self.transaction() as database:
            log = StateLog(folder := self.folder(job_id))
            log.enter(state, reason=reason, is_maker=job_id in self._locks, **facts)
            with self._changing_locks:
                lock = self._locks.get(job_id)
                if lock is not None and not lock.holds():  # the log was replaced
                    with contextlib.suppress(IsADirectoryError, FileNotFoundError):  # again; see `keep`
                        self._locks[job_id] = Lock(log.path)
                        lock.release()
            if state not in (*BEGUN, "interrupted"):
                carry_out_change(folder)
                forget_commands(folder)
            return job_from_row(self.outputs, put(database, folder))

    def add_facts(self, job_id: str, **facts: Any) -> Job:
        with self.transaction() as database:
            StateLog(self.folder(job_id)).add(**facts)
            return job_from_row(self.outputs, put(database, self.folder(job_id)))

    def hold(self, job_id: str, state: JobState, **facts: Any) -> bool:
        """Remember a state that cannot be written yet, for this process, and return whether it is new.

        The state is still written to the folder if possible, for example if only the index is locked.
        """
        held, self._held[job_id] = self._held.get(job_id), {"state": state, **facts}
        is_new = held != self._held[job_id]
        if is_new and state in BEGUN and job_id in self._locks:
            with contextlib.suppress(*TROUBLE):
                StateLog(self.folder(job_id)).enter(state, is_maker=True, **facts)
        return is_new

    def unhold(self, job_id: str) -> None:
        self._held.pop(job_id, None)

    def record(self, event: Event) -> None:
        """Write the state that follows from an event, and then the event to its job's log.

        In this order, a reader of a final event finds that the job has ended.
        """
        folder = self.folder(event.job)
        if change := change_by(event, folder.path):
            if self.is_removed(event.job):
                with self.transaction() as database:
                    bury(database, event.job, "The job's folder was removed.", "Start the job again.")
                return
            if video := getattr(event, "video", None):  # its name has to be on the disk
                for path in {folder.path, Path(video).parent}:
                    with contextlib.suppress(FileNotFoundError):
                        sync_folder(path)
            self.enter(event.job, change[0], **change[1])
        append_event(folder.events, event)

    def is_removed(self, job_id: str) -> bool:
        """Return whether a job's folder was removed while the outputs folder still exists."""
        return self._index.is_there and not self.folder(job_id).path.exists()

    def concerns_one_job(self, error: BaseException) -> bool:
        """Return whether an error concerns one job's own files, while the outputs folder is there."""
        is_passing = not isinstance(error, OSError) or is_storage_trouble(error)
        return not is_passing and os.access(self.outputs, os.W_OK) and self._index.is_there

    def job(self, job_id: str) -> Job:
        """Return a job; raise NoSuchJob if there is none with that id."""
        for job in self.jobs("WHERE id = ?", job_id):
            return job
        raise NoSuchJob(job_id)

    def jobs(self, condition: str, *values: object) -> list[Job]:
        rows = self.select(condition, *values)
        return [self._as_known(job_from_row(self.outputs, row)) for row in rows]

    def select(self, condition: str, *values: object, what: str = COLUMNS) -> list[sqlite3.Row]:
        return self._index.select(condition, *values, what=what)

    def _as_known(self, job: Job) -> Job:
        held = self._held.get(job.id)
        if held is None and job.state == "queued":
            held = self._reason_to_wait(job.request.model)
        facts = {name: value for name, value in (held or {}).items() if name in Job.__dataclass_fields__}
        if facts.get("video") is not None:
            facts["video"] = job.folder / facts["video"]
        return replace(job, **facts)

    def recover(self) -> None:
        """Write remembered final states, and recover the jobs whose process has ended."""
        self.write_held()
        with self.transaction() as database:
            recover(database, self.outputs, self.makes)

    def write_held(self) -> None:
        for job_id, held in list(self._held.items()):
            if held["state"] not in BEGUN:
                try:
                    self.enter(job_id, **held)
                except OSError as error:
                    if not self.concerns_one_job(error):
                        raise
                    continue
                except ValueError:  # another program has changed the state in the meantime
                    pass
                self.unhold(job_id)

    @property
    def revision(self) -> tuple[object, ...]:
        """Return a value that changes whenever a job's facts do, by whichever process."""
        return self._index.revision, tuple((one, held["state"]) for one, held in self._held.items())

    def folder(self, job_id: str) -> JobFolder:
        return JobFolder(self.outputs / job_id)

    def transaction(self) -> contextlib.AbstractContextManager[sqlite3.Connection]:
        """Lock the index for the block. The index gets all changes of the block or none."""
        return self._index.transaction()

    @contextlib.contextmanager
    def change(self) -> Generator[sqlite3.Connection, None, None]:
        """Make a user's change in a transaction, and tell of it.

        Raises:
            InputError: If the folder cannot be written.
        """
        try:
            with self.transaction() as database:
                yield database
        except TROUBLE as error:
            raise unwritable(self.outputs, error) from error
        finally:
            self.on_change()


def _made_on(before: str, card: str, section: int) -> str:
    """Return the cards of a job, given those so far, when a card goes on with a section."""
    mark = f", from section {section} on "
    before = before.partition(mark)[0] if section > 1 else ""
    *_, last = before.split(" on ")
    return before if last == card else f"{before}{mark}{card}" if before else card
