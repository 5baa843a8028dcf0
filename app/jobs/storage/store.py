"""The store of the jobs of one outputs folder: their folders, and the database of their states."""

import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from app.jobs.job import BEGUN, Command, Job, JobState, LostJob, NoSuchJob
from app.jobs.storage.commands import (
    COMMANDS_QUERY,
    LEAVE,
    apply_commands,
    carry_out_change,
    forget_commands,
    salvage,
)
from app.jobs.storage.database import DATABASE_FOLDER, Database
from app.jobs.storage.folders import sweep
from app.jobs.storage.importing import import_jobs
from app.jobs.storage.logs import append_event, change_by, time_of_last
from app.jobs.storage.owners import JobOwner, standing_of
from app.jobs.storage.rows import (
    Transition,
    enter_state,
    job_from_row,
    request_facts,
    row_of,
    update_row,
    words_of_damage,
)
from app.jobs.storage.trouble import TROUBLE, unwritable
from diffusers_helper.errors import InputError
from diffusers_helper.events import Event
from diffusers_helper.files import expanded_path, sync_folder
from diffusers_helper.library_errors import is_storage_trouble
from diffusers_helper.machine.file_locks import Lock, is_locked
from diffusers_helper.provenance.branch import num_finished_sections
from diffusers_helper.provenance.job_folder import JobFolder

_log = logging.getLogger(__name__)
_REMOVED = {"message": "The job's folder was removed.", "remedy": "Start the job again."}
Maker = TypeVar("Maker")


class JobStore:
    """The jobs of one folder, for any thread.

    The folder and its database are opened, and made if they are missing, when they are first needed; any
    method raises InputError if that fails then. Later, methods raise OSError or sqlite3.Error while they are
    out of reach. A change is on the disk before it is announced.

    Attributes:
        adopts: Whether this process makes all jobs, instead of only those that it has submitted or resumed.
        making: The jobs that this process is making.
        cancelled: Those of them that are to end although the database could not be told.
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
        self.submitted: set[str] = set()
        self.making: set[str] = set()
        self.cancelled: set[str] = set()
        self._ended: set[str] = set()  # those whose end is written, perhaps without its event
        self._longtake = self.outputs / DATABASE_FOLDER
        self._owner = JobOwner(self._longtake)

    @cached_property
    def _opened(self) -> Database:
        try:
            if not self.outputs.exists():
                self.outputs.mkdir(parents=True)
                sync_folder(self.outputs.parent)
            return Database(self.outputs, self._fill)
        except TROUBLE as error:
            raise unwritable(self.outputs, error) from error

    def _fill(self, database: sqlite3.Connection, is_new: bool, can_write: bool) -> None:
        import_jobs(database, self.outputs, is_new=is_new, can_write=can_write)

    @property
    def _database(self) -> Database:
        with self._opening:
            return self._opened

    def lock_card(self, card: str) -> Lock | None:
        with self.transaction():  # in which no other process looks whether it is locked
            is_alone = not self.has_maker
            try:
                lock = Lock(self._longtake / f"card-{card}")
            except BlockingIOError:
                return None
            self.on_failure.callback(lock.release)
            if is_alone:
                sweep(self.outputs, self._longtake)
            self.recover()
        return lock

    @property
    def has_maker(self) -> bool:
        return any(is_locked(file) for file in self._longtake.glob("card-*"))

    def is_out(self, card: str) -> bool:
        return (self._longtake / f"out-{card}").is_file()

    def set_out(self, card: str, is_out: bool) -> None:
        file = self._longtake / f"out-{card}"
        if is_out:
            file.touch()
        else:
            file.unlink(missing_ok=True)
        sync_folder(file.parent)

    def release(self) -> None:
        """End this process's ownership of jobs; another program may then take them over."""
        self.making.clear()
        self._owner.leave()

    def makes(self, job_id: str) -> bool:
        return self.adopts or job_id in self.submitted

    def has_work(self) -> bool:
        if self.adopts:
            return True
        rows = self.select("WHERE state IN ('queued', 'running', 'waiting', 'interrupted')", what="id")
        return any(row["id"] in self.submitted for row in rows)

    def end_position(self) -> float:
        """The present time, or one more than the last position in the queue if that is later."""
        ((last,),) = self._database.select("SELECT max(place) FROM jobs")  # also of those in the trash
        return max(time.time(), (last or 0.0) + 1.0)  # the gaps leave room for jobs that are moved

    @property
    def is_paused(self) -> bool:
        ((paused,),) = self._database.select("SELECT paused IS NOT NULL FROM folder")
        return bool(paused)

    def claim(self, choose: Callable[[Job], Maker | None]) -> tuple[Job, Maker] | None:
        """Mark the first queued job as running for which `choose` names a maker."""
        if self.is_paused or not self.select("WHERE state = 'queued' LIMIT 1", what="id"):
            return None
        with self.transaction() as database:
            queued = self.select("WHERE state = 'queued' ORDER BY place, id", what="id, model")
            for row in queued if not self.is_paused else ():  # another program may have paused it just now
                if not self.makes(row["id"]) or self._reason_to_wait(row["model"]):
                    continue
                job = self.job(row["id"])
                if (maker := choose(job)) is not None and self._take(database, job, str(maker)):
                    return self.job(job.id), maker
        return None

    def _take(self, database: sqlite3.Connection, job: Job, card: str) -> bool:
        """Mark a queued job as running; return False if its folder is damaged, or cannot be used now."""
        folder = self.folder(job.id)
        owner = self._owner.enter()
        try:
            request = request_facts(folder)  # the folder's is the one that is made
            done = time_of_last(folder) if job.started else 0.0
        except InputError as error:
            failure: dict[str, Any] = {"damage": "request", **words_of_damage(error)}
        except OSError as error:  # the other jobs must not wait for this one
            if not self._database.is_there:
                raise
            if is_storage_trouble(error):
                message = f"The folder of this video cannot be read ({error.strerror})."
                facts = {"message": message, "remedy": "It is tried again and again."}
                if job.message != message:  # it is looked at all the time
                    enter_state(database, job.id, "queued", **facts)
                return False
            words = f"The job's folder cannot be used ({error})."
            failure = {"message": words, "remedy": "Repair the folder, and resume the job."}
            failure = _REMOVED if self.is_removed(job.id) else failure
        else:
            enter_state(
                database, job.id, "running", reason="It is its turn.", message="", remedy="", owner=owner,
                card=_made_on(job.card, card, num_finished_sections(folder) + 1), ended=None,
                started=time.time() - done, **request,  # without pauses
            )  # fmt: skip
            self._ended.discard(job.id)
            self.making.add(job.id)
            self.on_failure.callback(self.making.discard, job.id)
            return True
        enter_state(database, job.id, "failed", ended=time.time(), **failure)
        return False

    def is_mine(self, job_id: str) -> bool:
        """Whether no other program has taken over a job that this one makes, as far as it can tell."""
        with suppress(*TROUBLE):
            rows = self.select("WHERE id = ?", job_id, what="owner")
            return [row["owner"] for row in rows] == [self._owner.name]
        return True

    def release_job(self, job_id: str) -> None:
        for jobs in (self.making, self.cancelled, self._ended):
            jobs.discard(job_id)

    def enter(self, job_id: str, state: JobState, *, reason: str = "", **facts: Any) -> Job:
        with self.transaction() as database:
            is_mine = row_of(database, job_id)["owner"] == self._owner.name
            if job_id in self.making - self._ended and not is_mine:
                raise LostJob(job_id)
            enter_state(database, job_id, state, reason=reason, **facts)
            if state not in (*BEGUN, "interrupted"):
                carry_out_change(database, self.folder(job_id))
                forget_commands(database, job_id)
            if state not in BEGUN:
                self._ended.add(job_id)
            return self.job(job_id)

    def add_facts(self, job_id: str, **facts: Any) -> Job:
        with self.transaction() as database:
            row_of(database, job_id)
            update_row(database, job_id, **facts)
            return self.job(job_id)

    def record(self, event: Event) -> None:
        folder = self.folder(event.job)
        if change := change_by(event, folder.path):
            if self.is_removed(event.job):
                self.enter(event.job, "failed", ended=time.time(), **_REMOVED)
                return
            if getattr(event, "video", None):  # the names have to be on the disk
                with suppress(FileNotFoundError):
                    for path in (folder.path, *filter(Path.is_dir, folder.path.iterdir())):
                        sync_folder(path)
            self.enter(event.job, change[0], **change[1])
        append_event(folder.events, event)

    def salvage(self, job_id: str) -> tuple[str | None, int]:
        try:
            ((video, frames),) = self.select("WHERE id = ?", job_id, what="video, frames")
        except (*TROUBLE, ValueError):
            return None, 0
        return salvage(self.folder(job_id), video, frames)

    def is_removed(self, job_id: str) -> bool:
        """Whether a job's folder was removed while the outputs folder still exists."""
        return self._database.is_there and not self.folder(job_id).path.exists()

    def concerns_one_job(self, error: BaseException) -> bool:
        """Whether an error concerns one job's own files, while the outputs folder is there."""
        is_passing = not isinstance(error, OSError) or is_storage_trouble(error)
        return not is_passing and os.access(self.outputs, os.W_OK) and self._database.is_there

    def leave_command(self, job_id: str, command: Command, content: str = "") -> None:
        with self.transaction() as database:
            database.execute(LEAVE, (job_id, command, content))

    def commands(self, job_id: str) -> set[Command]:
        commands: set[Command] = {"cancel"} if job_id in self.cancelled else set()
        with suppress(*TROUBLE):
            commands |= {row["command"] for row in self._database.select(COMMANDS_QUERY, job_id)}
        return commands

    def job(self, job_id: str) -> Job:
        for job in self.jobs("WHERE id = ?", job_id):
            return job
        raise NoSuchJob(job_id)

    def jobs(self, condition: str, *values: object) -> list[Job]:
        return self.jobs_of(self.select(condition, *values))

    def jobs_of(self, rows: list[sqlite3.Row]) -> list[Job]:
        jobs = (job_from_row(self.outputs, row) for row in rows)
        return [
            replace(job, **self._reason_to_wait(job.request.model)) if job.state == "queued" else job
            for job in jobs
        ]

    def select(self, condition: str, *values: object, what: str = "*") -> list[sqlite3.Row]:
        return self._database.select(f"SELECT {what} FROM listed {condition}", *values)

    def transitions(self, job_id: str) -> list[Transition]:
        query = "SELECT state, time, reason FROM transitions WHERE job = ? ORDER BY rowid"
        return [Transition(*row) for row in self._database.select(query, job_id)]

    def recover(self) -> None:
        with self.transaction():
            for row in self.select("WHERE state IN ('running', 'waiting', 'interrupted')", what="id"):
                try:
                    self.apply_commands(row["id"], adopt=self.makes(row["id"]))
                except OSError as error:  # one unreadable job must not hold up the others
                    _log.info("Job %s waits: %s", row["id"], error)

    def apply_commands(self, job_id: str, *, adopt: bool = False, by_person: bool = False) -> None:
        """Carry out the commands for a job unless a living program makes it.

        A person may take it from a program on another computer, which may have ended.
        """
        with self.transaction() as database:
            row = row_of(database, job_id)
            if row["owner"] == self._owner.name and row["owner"]:
                is_alive = job_id in self.making
            else:
                standing = standing_of(self._longtake, row["owner"]) if row["owner"] else "dead"
                is_alive = standing == "alive" or (standing == "unknown" and not by_person)
            if is_alive:
                return
            folder = self.folder(job_id)
            if folder.path.is_dir() or row["state"] not in BEGUN:
                apply_commands(database, folder, adopt=adopt)
            else:
                enter_state(database, job_id, "failed", ended=time.time(), **_REMOVED)

    @property
    def revision(self) -> int:
        ((revision,),) = self._database.select("SELECT revision FROM folder")
        return revision

    def folder(self, job_id: str) -> JobFolder:
        return JobFolder(self.outputs / job_id)

    def transaction(self) -> AbstractContextManager[sqlite3.Connection]:
        return self._database.transaction()

    @property
    def on_failure(self) -> ExitStack:
        """What undoes the changes of folders in the present transaction if it fails."""
        return self._database.on_failure

    @contextmanager
    def change(self) -> Generator[sqlite3.Connection, None, None]:
        try:
            with self.transaction() as database:
                yield database
        except TROUBLE as error:
            raise unwritable(self.outputs, error) from error
        finally:
            self.on_change()


def _made_on(cards: str, card: str, section: int) -> str:
    mark = f", from section {section} on "
    cards = cards.partition(mark)[0] if section > 1 else ""
    *_, last = cards.split(" on ")
    return cards if last == card else f"{cards}{mark}{card}" if cards else card
