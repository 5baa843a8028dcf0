"""The queue of an outputs folder, with everything that a user can do to its jobs from any process."""

import contextlib
import json
import math
import os
import sqlite3
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from app.jobs.job import (
    ALLOWED,
    BEGUN,
    MOVABLE,
    OVER,
    Command,
    Job,
    NoSuchJob,
    NotAllowed,
    allows,
    check_generated,
)
from app.jobs.storage.commands import forget_commands
from app.jobs.storage.folders import new_folder
from app.jobs.storage.importing import import_jobs, mark_for_old_versions
from app.jobs.storage.logs import append_event, time_of_last
from app.jobs.storage.rows import add_transition, insert_row, request_facts, update_row, words_of_damage
from app.jobs.storage.store import JobStore
from app.jobs.storage.trash import delete_job, remove_job, removed_jobs, restore_job
from diffusers_helper.conditions.pictures import (
    NO_PICTURES,
    Contents,
    picture_paths,
    read_pictures,
    store_request,
    stored_pictures,
)
from diffusers_helper.conditions.prompts import check_prompt
from diffusers_helper.conditions.sources import with_sources
from diffusers_helper.errors import InputError
from diffusers_helper.events import Warned
from diffusers_helper.files import sync_folder
from diffusers_helper.finish.upscale_models import upscale_folder
from diffusers_helper.models.registry import find_model, model_names
from diffusers_helper.provenance.branch import Branch, branch, check_changes, extension
from diffusers_helper.provenance.job_folder import JobFolder
from diffusers_helper.provenance.lineage import Lineage
from diffusers_helper.request import SETTINGS, GenerationRequest

RESUMED = "The job was resumed; finished work is not repeated."
_OPEN = f"state IN {tuple(state for state in ALLOWED if state not in OVER)}"


class Queue:
    """The jobs of one outputs folder, and the ways to change them. Any thread may call any method.

    All methods except `cancel` raise InputError if something is invalid or cannot be written; then nothing
    has changed. Methods that take the id of a job raise its subclass NoSuchJob if there is no such job.
    """

    def __init__(self, store: JobStore) -> None:
        self.store = store

    def jobs(self, limit: int = 1000) -> list[Job]:
        return self.store.jobs(f"WHERE {_OPEN} ORDER BY place, id LIMIT ?", limit)

    def add(
        self,
        request: GenerationRequest,
        *,
        allow_folder: bool = False,
        pictures: Contents = NO_PICTURES,
        lineage: Lineage | None = None,
        press: str = "",
        waits: bool = False,
    ) -> Job:
        """Check everything that can be checked without a model, and queue a job.

        Args:
            allow_folder: Whether `request.model` may be a local folder.
            pictures: The contents of those that a separate process has decoded.
            press: The id of the press of a button that asks for the job; see `History.made_by`.
            waits: Whether it waits for a user after each section, from the first on.
        """
        lineage = lineage or Lineage()
        checked = _checked(request, pictures, allow_folder=allow_folder, lineage=lineage)
        return self._add(*checked, lambda folder: lineage.write(folder.lineage), press=press, waits=waits)

    def _add(
        self,
        request: GenerationRequest,
        pictures: Contents,
        fill: Callable[[JobFolder], object],
        *,
        press: str = "",
        waits: bool,
    ) -> Job:
        store = self.store
        created = time.time()

        def fill_all(temporary: JobFolder, folder: JobFolder) -> None:
            fill(temporary)
            store_request(request, pictures, temporary, final_folder=folder)
            mark_for_old_versions(temporary, created=created, place=position, press=press)

        with store.change() as database:
            position = store.end_position()
            folder = new_folder(store.outputs, fill_all, store.on_failure)
            facts = {"id": folder.job, "state": "queued", "created": created, "place": position}
            insert_row(database, {**facts, "press": press, **request_facts(folder)})
            add_transition(database, folder.job, "queued", "You started it.")
            if waits:
                store.leave_command(folder.job, "wait")
        store.submitted.add(folder.job)
        return store.job(folder.job)

    def branch(self, job_id: str, keep: int, *, waits: bool = False, **changes: Any) -> Job:
        """Queue a job that keeps the first sections of another one. The other job may be in any state.

        Args:
            keep: The number of sections to keep, in the order in which they were made.
            waits: Whether it waits for a user after each section, as one of an unfinished job that does.
        """
        job = self.job_with_request(job_id)
        check_generated(job)
        folder = self.store.folder(job.id)
        waits = waits or (not job.is_over and "wait" in self.store.commands(job.id))
        return self._add_branch(job, branch(folder, job.request, keep, changes), waits)

    def extend(self, job_id: str, seconds: float, *, waits: bool = False, **changes: Any) -> Job:
        job = self.job_with_request(job_id)
        check_generated(job)
        new_branch = extension(self.store.folder(job.id), job.request, seconds, changes)
        return self._add_branch(job, new_branch, waits)

    def _add_branch(self, job: Job, new_branch: Branch, waits: bool) -> Job:
        pictures = self._pictures(job, new_branch.request)
        checked = _checked(new_branch.request, pictures, allow_folder=True, lineage=new_branch.lineage)
        return self._add(*checked, new_branch.fill, waits=waits)

    def duplicate(self, job_id: str, changes: Mapping[str, Any] | None = None) -> Job:
        job = self.job_with_request(job_id)
        request = GenerationRequest.from_dict({**json.loads(job.request.to_json()), **(changes or {})})
        pictures = self._pictures(job, request)
        lineage = Lineage(Lineage.read(self.store.folder(job.id).lineage).spans)  # its sections are made anew
        allow_folder = request.model == job.request.model
        return self.add(request, allow_folder=allow_folder, pictures=pictures, lineage=lineage)

    def job_with_request(self, job_id: str) -> Job:
        job = self.store.job(job_id)
        try:
            facts = request_facts(self.store.folder(job_id))
        except InputError as error:
            raise InputError(*words_of_damage(error).values()) from error
        except FileNotFoundError as error:
            raise InputError("The job's folder is missing.", "Put it back, or remove the job.") from error
        is_same = facts["request"] == job.request.to_json() and not job.damage
        return job if is_same else self.store.add_facts(job_id, **facts)

    def _pictures(
        self, job: Job, request: GenerationRequest, excluded: Contents = NO_PICTURES
    ) -> dict[str, bytes]:
        """Read the pictures of a job that a request names by the same path, except for `excluded`."""
        shared = picture_paths(job.request).items() & picture_paths(request).items()
        try:
            return stored_pictures(self.store.folder(job.id), dict(shared).keys() - excluded)
        except OSError as error:
            message = f"A picture of job {job.id} cannot be read ({error.strerror})."
            raise InputError(message, "Give the pictures anew.") from error

    def edit(
        self,
        job_id: str,
        request: GenerationRequest,
        *,
        allow_folder: bool = False,
        pictures: Contents = NO_PICTURES,
    ) -> Job:
        """Replace the request of a job that has not begun, with the checks and the arguments of `add`.

        A picture of the job that the new request names stays.
        """
        job = self.store.job(job_id)
        check_generated(job)
        pictures = {**self._pictures(job, request, excluded=pictures), **pictures}
        allow_folder = allow_folder or request.model == job.request.model
        lineage = Lineage.read(self.store.folder(job_id).lineage)
        if lineage.kept:
            check_changes(job.request, {name: getattr(request, name) for name in SETTINGS})
        request, pictures = _checked(request, pictures, allow_folder=allow_folder, lineage=lineage)
        with self.store.change():
            job = self.job_with_request(job_id)
            folder = self.store.folder(job_id)
            if not allows(job, "edit"):
                raise InputError(
                    f"Job {job_id} has begun; expected one that has not.", "Duplicate it with other settings."
                )
            store_request(request, pictures, folder, final_folder=folder)
            sync_folder(folder.path)
            return self.store.add_facts(job_id, **request_facts(folder))

    def move(self, job_id: str, *, before: str | None = None, after: str | None = None) -> Job:
        with self.store.change() as database:
            job = self.store.job(job_id)
            if not allows(job, "reorder"):
                raise NotAllowed(job, "one that waits in the queue")
            others = self._open_rows(job_id)
            ids = [row["id"] for row in others]
            index = len(ids)
            if neighbour := before or after:
                if neighbour not in ids:
                    raise InputError(f"Job {neighbour} is not in the queue; expected one that is.")
                index = ids.index(neighbour) + (before is None)
            ids.insert(index, job_id)
            # The same positions in another order, so later jobs come behind them.
            positions = sorted([job.position, *(row["place"] for row in others)])
            last = -math.inf
            for moved_id, position in zip(ids, positions, strict=True):
                last = max(position, math.nextafter(last, math.inf))  # two imported jobs may share one
                update_row(database, moved_id, place=last)
        return self.store.job(job_id)

    def move_first(self, job_id: str) -> Job:
        waiting = [row["id"] for row in self._open_rows(job_id) if row["state"] in MOVABLE]
        return self.move(job_id, before=waiting[0] if waiting else None)

    def _open_rows(self, job_id: str) -> list[sqlite3.Row]:
        condition = f"WHERE {_OPEN} AND id != ? ORDER BY place, id"
        return self.store.select(condition, job_id, what="id, place, state")

    def cancel(self, job_id: str) -> bool:
        """End a job, at once or within a step of its maker; return False if it is over or unknown."""
        asked = False
        with contextlib.suppress(InputError):  # on a full disk, a job of another process cannot be cancelled
            asked = self._send_command(job_id, "cancel")
        if not asked and job_id in self.store.making:
            self.store.cancelled.add(job_id)
            asked = True
        return asked

    def pause(self, job_id: str) -> bool:
        """Pause a job, which frees the device's memory; return False if it is over, paused or unknown."""
        return self._send_command(job_id, "pause")

    def stop_after_section(self, job_id: str) -> bool:
        return self._send_command(job_id, "stop_after_section")

    def _send_command(self, job_id: str, command: Command) -> bool:
        """Leave a command for a job, which its worker obeys (`Worker._obey`), or else this call carries out.

        A second command takes the job from a program on another computer that has not obeyed the first.
        """
        with self.store.change():
            rows = self.store.select("WHERE id = ?", job_id, what="state")
            if not rows or command not in ALLOWED[rows[0]["state"]]:
                return False
            by_person = bool(self.store.commands(job_id) & {"cancel", "pause"})
            self.store.leave_command(job_id, command)
            self.store.apply_commands(job_id, by_person=by_person)
        return True

    def resume(self, job_id: str) -> Job:
        """Put a paused, interrupted, failed or cancelled job back into the queue.

        It continues from the work that is already done. A paused or interrupted job keeps its position, and
        the others go to the end. For a job that is being made, only a requested pause is withdrawn; it is
        taken over from a program on another computer.
        """
        with self.store.change() as database:
            self.store.submitted.add(job_id)
            self.store.apply_commands(job_id, by_person=True)
            job = self.store.job(job_id)
            if not allows(replace(job, damage=""), "resume"):
                forget_commands(database, job_id, "pause")
                return job
            job = self.job_with_request(job_id)
            position = self.store.end_position() if job.state in OVER else job.position
            job = self.store.enter(
                job_id, "queued", reason="You resumed it.", place=position, ended=None, message="",
                remedy="", deaths=0, death="",
            )  # fmt: skip
            folder = self.store.folder(job_id)
            with contextlib.suppress(OSError):  # the log may be unreadable, and only the state matters
                append_event(folder.events, Warned(job=job_id, time=time_of_last(folder), message=RESUMED))
        return job

    def remove(self, job_id: str) -> None:
        """Remove a job that is not being made, with its files. `restore` brings it back for a week."""
        with self.store.change():
            self._check_idle(job_id)
            remove_job(self.store, job_id)

    def _check_idle(self, job_id: str) -> None:
        if self.store.job(job_id).state in BEGUN:
            self.store.apply_commands(job_id)
        if self.store.job(job_id).state in BEGUN:
            raise InputError(
                f"Job {job_id} is being made; expected one that is not.", "Cancel it first, or pause it."
            )

    def restore(self, job_id: str) -> Job:
        with self.store.change() as database:
            restore_job(self.store, job_id)
            import_jobs(database, self.store.outputs)
        return self.store.job(job_id)

    def delete(self, job_id: str) -> None:
        """Delete a job for good, whether it was removed before or not. A full disk does not prevent this."""
        outputs = self.store.outputs
        with self.store.change():
            removed = next((folder for folder in removed_jobs(outputs) if folder.name == job_id), None)
            if removed is None:
                self._check_idle(job_id)
            delete_job(self.store, removed or outputs / job_id)

    def empty_trash(self) -> list[str]:
        job_ids = [folder.name for folder in removed_jobs(self.store.outputs)]
        for job_id in job_ids:
            with contextlib.suppress(NoSuchJob):  # another program has deleted it
                self.delete(job_id)
        return job_ids

    def rebuild(self) -> None:
        with self.store.change() as database:
            import_jobs(database, self.store.outputs, anew=True)

    @property
    def is_paused(self) -> bool:
        return self.store.is_paused

    def pause_queue(self) -> None:
        with self.store.change() as database:
            if not self.is_paused:
                running = [row["id"] for row in self._open_rows("") if row["state"] in BEGUN]
                database.execute("UPDATE folder SET paused = ?", (json.dumps(running),))
        for job_id in self._paused_jobs():
            self.pause(job_id)

    def resume_queue(self) -> None:
        for job_id in self._paused_jobs():
            with contextlib.suppress(InputError):  # a user has removed it
                if self.store.job(job_id).state in ("paused", *BEGUN):
                    self.resume(job_id)
        with self.store.change() as database:
            database.execute("UPDATE folder SET paused = NULL")

    def _paused_jobs(self) -> list[str]:
        with self.store.change() as database:
            ((paused,),) = database.execute("SELECT paused FROM folder")
        return json.loads(paused or "[]")


def _checked(
    request: GenerationRequest, pictures: Contents, *, allow_folder: bool, lineage: Lineage
) -> tuple[GenerationRequest, dict[str, bytes]]:
    if request.finishing:
        return with_sources(request, [upscale_folder(os.environ)]), read_pictures(request, pictures)
    info = find_model(request.model, allow_folder=allow_folder)
    info.check(request)
    lineage.sections(request, info.family)
    for section_request in lineage.requests(request):
        check_prompt(section_request, info)
    contents = read_pictures(request, pictures)
    model = request.model if request.model in model_names() else str(info.folder)
    return replace(request, model=model), contents
