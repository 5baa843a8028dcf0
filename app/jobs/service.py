"""The service by which page, API and command line submit, follow and cancel jobs."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from app.jobs.engine_client import Engine, EngineProcess
from app.jobs.index import final_event
from app.jobs.job import BEGUN, Job
from app.jobs.patience import Patience, card_in_use
from app.jobs.store import INDEX_FOLDER, JobStore
from app.jobs.trouble import TROUBLE, unwritable
from app.jobs.worker import Worker
from diffusers_helper.errors import LongtakeError
from diffusers_helper.events import Event
from diffusers_helper.files import given_path
from diffusers_helper.framepack.prompts import check_prompt
from diffusers_helper.models.registry import find_model, model_names
from diffusers_helper.output.branch import Branch, branch, extension
from diffusers_helper.output.job_folder import JobFolder
from diffusers_helper.output.lineage import Lineage
from diffusers_helper.picture import load_picture, plain_png
from diffusers_helper.request import GenerationRequest

_SILENCE_SECONDS = 1.0


class ServiceStopped(LongtakeError):
    """The end of a service before a job that is followed came to its own."""


class JobService:
    """The jobs of one outputs folder and the worker that makes this process's share of them.

    Creating the object touches nothing. All methods may be called from any thread.

    Args:
        outputs: The folder that holds one folder per job.
        engine: The maker of the videos; a child process by default.
        patience: The limits of its silence; by default those learned from this folder's jobs.
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
        """Begin to make jobs.

        Args:
            warm: Whether to start the engine now, so that its libraries load while a person still chooses.
            adopt: Whether to make also the jobs that ended processes leave, now and later.

        Raises:
            InputError: If the outputs folder cannot be written, or for a value in the environment that
                cannot be used.
        """
        self._stopped = False
        try:
            self._store.sweep()
            self._store.recover(adopt=adopt)
        except TROUBLE as error:
            raise unwritable(self._outputs, error) from error
        patience = self._patience or Patience(
            self._store.outputs / INDEX_FOLDER / "patience.json", card_in_use(os.environ)
        )
        self._worker = Worker(self._store, self._engine, patience, self._notify, adopts=adopt)
        self._worker.start(warm=warm)

    def stop(self, timeout: float = 4.0) -> None:
        """Interrupt the running job, which the next program continues, and leave no process behind.

        Waits at most `timeout` seconds for a job that was asked to end. Queued jobs stay queued.
        """
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.stop(timeout)
        with self._opening:
            if self._opened is not None:
                self._opened.release()
        self._stopped = True
        self._notify()

    def hurry(self) -> None:
        """End the engine at once, and with it a job that was asked to end."""
        self._engine.kill()

    def submit(
        self,
        request: GenerationRequest,
        *,
        allow_folder: bool = False,
        picture: bytes | None = None,
        lineage: Lineage | None = None,
        fill: Callable[[JobFolder], None] | None = None,
    ) -> Job:
        """Check everything that can be checked without a model, and queue the job.

        Args:
            request: The settings of the video; their picture is copied into the job's folder.
            allow_folder: Whether `request.model` may be a local folder.
            picture: The start picture as a plain PNG file, if a separate process has decoded it.
            lineage: The origin of the first sections, as a recipe has it.
            fill: Puts the files that a branch keeps, and its lineage, into the job's folder.

        Raises:
            InputError: For anything that cannot be used; then no job was made.
        """
        info = find_model(request.model, allow_folder=allow_folder)
        info.check_mode(request.mode)
        lineage = lineage or Lineage()
        lineage.sections(request)
        for one in lineage.requests(request):
            check_prompt(one, info)
        if picture is None:
            picture = plain_png(load_picture(given_path(request.image, "image")))
        model = request.model if request.model in model_names() else str(info.folder)
        try:
            fill = fill or (lambda folder: lineage.write(folder.lineage))
            job = self._store.add(replace(request, model=model), picture, fill)
        except TROUBLE as error:
            raise unwritable(self._outputs, error) from error
        self._wake()
        return job

    def branch(self, job_id: str, keep: int, **changes: Any) -> Job:
        """Queue a job that keeps the first sections of another one, which stays as it is.

        Args:
            job_id: The other job, in any state.
            keep: The number of sections to keep, in the order of making.
            changes: The settings of the sections after them; `branch.MAY_DIFFER` names those that may change.

        Raises:
            InputError: For anything that cannot be used; then no job was made.
        """
        parent = self._store.job(job_id)
        return self._submit(branch(JobFolder(parent.folder), parent.request, keep, changes))

    def extend(self, job_id: str, seconds: float, **changes: Any) -> Job:
        """Queue a job that makes a finished video longer, as `branch.extension` says.

        Raises:
            InputError: For anything that cannot be used; then no job was made.
        """
        parent = self._store.job(job_id)
        return self._submit(extension(JobFolder(parent.folder), parent.request, seconds, changes))

    def _submit(self, made: Branch) -> Job:
        try:
            picture = made.picture
        except OSError as error:
            raise unwritable(self._outputs, error) from error
        return self.submit(
            made.request, allow_folder=True, picture=picture, lineage=made.lineage, fill=made.fill
        )

    def resume(self, job_id: str) -> Job:
        """Put a job that was interrupted, has failed or was cancelled back into the queue.

        It continues from the work that is already done. A finished job stays as it is.

        Raises:
            InputError: If there is no such job, if another program makes it, or if it cannot be written.
        """
        try:
            job = self._store.resume(job_id)
        except TROUBLE as error:
            raise unwritable(self._outputs, error) from error
        self._wake()
        return job

    def _wake(self) -> None:
        if self._worker is not None:
            self._worker.wake()
        self._notify()

    def cancel(self, job_id: str) -> bool:
        """Take a job out of the queue, or ask it to end within a step.

        Returns:
            False if it is over, or runs in another process.
        """
        asked = False
        with contextlib.suppress(*TROUBLE):  # a queued job then stays queued
            asked = self._store.cancel_queued(job_id)
        if not asked and self._worker is not None and self._worker.cancel(job_id):
            self._store.mark_ending(job_id)
            asked = True
        self._notify()
        return asked

    def is_ending(self, job_id: str) -> bool:
        """Return whether a job that runs in this process has been asked to end and has not done so yet."""
        worker = self._worker
        return worker is not None and worker.is_ending(job_id)

    def job(self, job_id: str) -> Job:
        """Return a job.

        Raises:
            InputError: If there is none of that id.
        """
        return self._store.job(job_id)

    def jobs(self, limit: int = 50) -> list[Job]:
        """Return the last jobs, newest first, those of other processes included."""
        return self._store.jobs(limit)

    def open_jobs(self) -> tuple[Job | None, tuple[Job, ...]]:
        """Return the running job (the first if several programs run one) and those that come after it."""
        jobs = self._store.open_jobs()
        running = [job for job in jobs if job.state in BEGUN]
        return (running[0] if running else None), tuple(job for job in jobs if job.state == "queued")

    def finished_jobs(self, limit: int) -> list[Job]:
        """Return the last finished jobs, newest first."""
        return self._store.finished_jobs(limit)

    def queue_position(self, job_id: str) -> int:
        """Return how many jobs have to end before this one begins: 0 if it runs or is over."""
        return self._store.jobs_before(job_id)

    def events(self, job_id: str) -> list[Event]:
        """Return the events of a job so far.

        Raises:
            InputError: If there is no such job.
        """
        self._store.job(job_id)
        return [event for _, event in self._store.events(job_id).read()]

    def follow(self, job_id: str, after: int = 0) -> Iterator[tuple[int, Event] | None]:
        """Yield a job's events with their sequence numbers, from number `after` + 1 until the final one.

        A resumed job has final events in between. Yields None at least once a second while nothing is new, so
        that the caller can do something else.

        Raises:
            InputError: If there is no such job.
            ServiceStopped: If the service was stopped, so that nobody here will finish the job.
        """
        reader = self._store.events(job_id)
        last_round = ended = False
        while True:
            seen, stopped = self._changes, self._stopped
            over = self._store.job(job_id).is_over
            nothing_new = True
            for sequence, event in reader.read():
                nothing_new = False
                if sequence > after:
                    yield sequence, event
                ended = event.is_final
            if ended and (over or self._store.job(job_id).is_over):
                return
            if nothing_new:
                if over and last_round:  # its log lacks a final event, as after a full disk
                    yield reader.sequence + 1, final_event(self._store.job(job_id))
                    return
                if stopped and not over:
                    raise ServiceStopped(
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
