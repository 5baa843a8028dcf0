"""What page, API and command line use: hand in a request, follow its events, cancel it."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import sqlite3
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from app.jobs.engine_client import Engine, EngineProcess
from app.jobs.index import final_event
from app.jobs.job import Job
from app.jobs.patience import Patience, card_in_use
from app.jobs.store import INDEX_FOLDER, JobStore, unwritable
from app.jobs.worker import Worker
from diffusers_helper.errors import LongtakeError
from diffusers_helper.events import Event
from diffusers_helper.files import write_atomic
from diffusers_helper.framepack.prompts import check_prompt
from diffusers_helper.models.registry import find_model, model_names
from diffusers_helper.output.job_folder import JobFolder
from diffusers_helper.picture import load_picture
from diffusers_helper.request import GenerationRequest

_SILENCE_SECONDS = 1.0


class JobService:
    """The jobs of one outputs folder and the worker that makes this process's share of them.

    Creating the object touches nothing. All methods may be called from any thread.

    Args:
        outputs: the folder that holds one folder per job.
        engine: what makes the videos; a child process unless told otherwise.
        patience: how long it may be silent; learned from this folder's jobs unless told otherwise.
    """

    def __init__(self, outputs: Path, engine: Engine | None = None, patience: Patience | None = None) -> None:
        self._outputs = outputs
        self._engine: Engine = EngineProcess() if engine is None else engine
        self._patience = patience
        self._changed = threading.Condition()
        self._changes = 0
        self._opening = threading.Lock()
        self._opened: JobStore | None = None
        self._worker: Worker | None = None
        self._stopped = False

    def start(self, *, warm: bool = False, adopt: bool = True) -> None:
        """Begins to run jobs.

        Args:
            warm: start the engine now, so that it loads its libraries while a person still chooses.
            adopt: also run what a process that is gone left in the queue.

        Raises:
            InputError: if the outputs folder cannot be written, or for a value in the environment that
                cannot be used.
        """
        self._stopped = False
        self._store.recover(adopt=adopt)
        patience = self._patience or Patience(
            self._store.outputs / INDEX_FOLDER / "patience.json", card_in_use(os.environ)
        )
        self._worker = Worker(self._store, self._engine, patience, self._notify)
        self._worker.start(warm=warm)

    def stop(self, timeout: float = 4.0) -> None:
        """Cancels the running job, which keeps its video so far, and leaves no process behind.

        Takes at most `timeout` seconds, then the engine is killed. Queued jobs wait for the next program.
        """
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.stop(timeout)
        with self._opening:
            if self._opened is not None:
                self._opened.release()
        self._stopped = True
        self._notify()

    def submit(self, request: GenerationRequest, *, allow_folder: bool = False) -> Job:
        """Checks everything that can be checked without a model, and queues the job.

        Args:
            request: what to make; its picture is copied into the job's folder.
            allow_folder: whether `request.model` may be a local folder.

        Raises:
            InputError: for anything that cannot be used; then no job was made.
        """
        info = find_model(request.model, allow_folder=allow_folder)
        info.check_mode(request.mode)
        check_prompt(request, info)
        picture = io.BytesIO()
        load_picture(Path(request.image).expanduser()).save(picture, "PNG", compress_level=1)
        folder = JobFolder.create(self._outputs)
        try:
            with contextlib.ExitStack() as on_failure:
                on_failure.callback(shutil.rmtree, folder.path, ignore_errors=True)
                write_atomic(folder.input, picture.getvalue())
                model = request.model if request.model in model_names() else str(info.folder)
                job = Job(
                    id=folder.job,
                    state="queued",
                    request=replace(request, image=str(folder.input), model=model),
                    folder=folder.path,
                    created=time.time(),
                )
                self._store.add(job)
                on_failure.pop_all()
        except (OSError, sqlite3.OperationalError) as error:
            raise unwritable(self._outputs, error) from error
        if self._worker is not None:
            self._worker.wake()
        return job

    def cancel(self, job_id: str) -> bool:
        """Takes a job out of the queue, or asks it to end within a step.

        Returns: False if it is over, or runs in another process.
        """
        if self._store.cancel_queued(job_id):
            self._notify()
            return True
        asked = self._worker is not None and self._worker.cancel(job_id)
        self._notify()
        return asked

    def is_ending(self, job_id: str) -> bool:
        """Whether a job that runs in this process has been asked to end and has not done so yet."""
        worker = self._worker
        return worker is not None and worker.is_ending(job_id)

    def job(self, job_id: str) -> Job:
        """Raises InputError if there is no such job."""
        return self._store.job(job_id)

    def jobs(self, limit: int = 50) -> list[Job]:
        """Newest first, those of other processes included."""
        return self._store.jobs(limit)

    def open_jobs(self) -> tuple[Job | None, tuple[Job, ...]]:
        """The running job, the oldest if several programs run one, and those that wait, oldest first."""
        jobs = self._store.open_jobs()
        running = [job for job in jobs if job.state == "running"]
        return (running[0] if running else None), tuple(job for job in jobs if job.state == "queued")

    def finished_jobs(self, limit: int) -> list[Job]:
        """The last that were finished, newest first."""
        return self._store.finished_jobs(limit)

    def queue_position(self, job_id: str) -> int:
        """How many jobs have to end before this one begins: 0 if it runs or is over."""
        return self._store.jobs_before(job_id)

    def events(self, job_id: str) -> list[Event]:
        """What a job has said so far. Raises InputError if there is no such job."""
        self._store.job(job_id)
        return [event for _, event in self._store.events(job_id).read()]

    def follow(self, job_id: str, after: int = 0) -> Iterator[tuple[int, Event] | None]:
        """A job's events with their sequence numbers, from number `after` + 1 until the final one.

        Yields None at least once a second while nothing is new, so that a caller can look around.

        Raises:
            InputError: if there is no such job.
            LongtakeError: if the service was stopped and nobody here will bring the job to its end.
        """
        reader = self._store.events(job_id)
        last_round = False
        while True:
            seen, stopped = self._changes, self._stopped
            over = self._store.job(job_id).is_over
            nothing_new = True
            for sequence, event in reader.read():
                nothing_new = False
                if sequence > after:
                    yield sequence, event
                if event.is_final:
                    return
            if nothing_new:
                if over and last_round:  # its log lacks a final event, as after a full disk
                    yield reader.sequence + 1, final_event(self._store.job(job_id))
                    return
                if stopped and not over:
                    raise LongtakeError(
                        f"Longtake was stopped before job {job_id} came to its end.",
                        "Start Longtake again on the same folder; nothing that was finished is lost.",
                    )
                last_round = over
                yield None
                with self._changed:
                    self._changed.wait_for(lambda seen=seen: self._changes != seen, _SILENCE_SECONDS)

    @property
    def _store(self) -> JobStore:
        with self._opening:
            if self._opened is None:
                self._opened = JobStore(self._outputs)
            return self._opened

    def _notify(self) -> None:
        with self._changed:
            self._changes += 1
            self._changed.notify_all()
