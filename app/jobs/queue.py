"""The queue of an outputs folder, with everything that a user can do to its jobs from any process."""

from __future__ import annotations

import contextlib
import json
import math
import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from app.jobs.job import ALLOWED, BEGUN, MOVABLE, OVER, TRANSITIONS, Command, Job, allows
from app.jobs.storage.commands import commands_of, forget_commands, leave_command, settle
from app.jobs.storage.folders import bring_back, discard, new_folder
from app.jobs.storage.logs import StateLog, append_event, time_of_last
from app.jobs.storage.rows import agree, job_from_row, put
from app.jobs.storage.store import JobStore
from diffusers_helper.conditions.pictures import (
    NO_PICTURES,
    Contents,
    picture_paths,
    read_pictures,
    store_request,
    stored_pictures,
)
from diffusers_helper.conditions.prompts import check_prompt
from diffusers_helper.errors import InputError
from diffusers_helper.events import Warned
from diffusers_helper.files import make_way, read_file, sync_folder, write_atomic
from diffusers_helper.machine.file_locks import is_locked
from diffusers_helper.models.registry import find_model, model_names
from diffusers_helper.provenance.branch import Branch, branch, check_changes, extension
from diffusers_helper.provenance.job_folder import JobFolder
from diffusers_helper.provenance.lineage import Lineage
from diffusers_helper.request import SETTINGS, GenerationRequest
from diffusers_helper.untrusted.limited_json import plain_json

RESUMED = "The job was resumed; finished work is not repeated."
# Places are seconds since the epoch, which a float resolves to 2.4e-7. With less room, those behind move.
_LEAST_ROOM, _NEW_ROOM = 2.0**-20, 2.0**-6
_OPEN = f"state IN {tuple(state for state in TRANSITIONS if state not in OVER)}"


class Queue:
    """The jobs of one outputs folder, and the ways to change them. Any thread may call any method.

    All methods except `cancel` raise InputError if something is invalid or cannot be written; then nothing
    has changed. Methods that take the id of a job raise its subclass NoSuchJob if there is no such job.
    """

    def __init__(self, store: JobStore) -> None:
        self.store = store

    def jobs(self, limit: int = 1000, after: float = -math.inf) -> list[Job]:
        """Return the jobs that are not over, in the order of the queue, of those behind the place `after`."""
        return self.store.jobs(f"WHERE {_OPEN} AND place > ? ORDER BY place, id LIMIT ?", after, limit)

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
            request: The settings of the video; their pictures are copied into the job's folder.
            allow_folder: Whether `request.model` may be a local folder.
            pictures: The contents of those that a separate process has decoded.
            lineage: The origin of the first sections, as stored in a recipe.
            press: The id of the press of a button that asks for the job; see `History.made_by`.
            waits: Whether it waits for a user after each section, from the first on.
        """
        lineage = lineage or Lineage()
        checked = _checked(request, pictures, allow_folder=allow_folder, lineage=lineage)
        return self._add(
            *checked, lambda folder: (lineage.write(folder.lineage), folder.write_press(press)), waits
        )

    def _add(
        self,
        request: GenerationRequest,
        pictures: Contents,
        fill: Callable[[JobFolder], object],
        waits: bool,
    ) -> Job:
        def fill_all(new: JobFolder, folder: JobFolder) -> None:
            fill(new)
            store_request(request, pictures, new, final_folder=folder)
            if waits:
                leave_command(new, "wait")

        store = self.store
        with (
            store.change() as database,
            new_folder(store.outputs, store.last_place(), fill_all) as folder,
        ):
            row = put(database, folder)
        store.own.add(folder.job)
        return job_from_row(store.outputs, row)

    def branch(self, job_id: str, keep: int, *, waits: bool = False, **changes: Any) -> Job:
        """Queue a job that keeps the first sections of another one. The other job may be in any state.

        Args:
            keep: The number of sections to keep, in the order in which they were made.
            waits: Whether it waits for a user after each section, as one of an unfinished job that does.
            changes: New settings for the other sections, out of those in `branch.MAY_DIFFER`.
        """
        job = self.whole(job_id)
        folder = self.store.folder(job.id)
        waits = waits or (not job.is_over and "wait" in commands_of(folder))
        return self._add_branch(job, branch(folder, job.request, keep, changes), waits)

    def extend(self, job_id: str, seconds: float, *, waits: bool = False, **changes: Any) -> Job:
        """Queue a job that makes a finished video longer; see `branch.extension`."""
        job = self.whole(job_id)
        made = extension(self.store.folder(job.id), job.request, seconds, changes)
        return self._add_branch(job, made, waits)

    def _add_branch(self, job: Job, made: Branch, waits: bool) -> Job:
        pictures = self._pictures(job, made.request)
        checked = _checked(made.request, pictures, allow_folder=True, lineage=made.lineage)
        return self._add(*checked, made.fill, waits)

    def duplicate(self, job_id: str, changes: Mapping[str, Any] | None = None) -> Job:
        """Queue a new job with the settings of an earlier one, in any state, except for `changes`."""
        job = self.whole(job_id)
        request = GenerationRequest.from_dict({**json.loads(job.request.to_json()), **(changes or {})})
        pictures = self._pictures(job, request)
        lineage = Lineage(self._lineage(job).spans)  # its sections are made anew
        allow_folder = request.model == job.request.model
        return self.add(request, allow_folder=allow_folder, pictures=pictures, lineage=lineage)

    def _lineage(self, job: Job) -> Lineage:
        return Lineage.read(self.store.folder(job.id).lineage)

    def whole(self, job_id: str) -> Job:
        """Return a job; raise InputError if its request cannot be read."""
        job = self.store.job(job_id)
        if job.damage == "request":
            raise InputError(job.message, job.remedy)
        return job

    def _pictures(
        self, job: Job, request: GenerationRequest, besides: Contents = NO_PICTURES
    ) -> dict[str, bytes]:
        """Return the pictures of a job that a request names by the same path, without others at hand."""
        same = picture_paths(job.request).items() & picture_paths(request).items()
        try:
            return stored_pictures(self.store.folder(job.id), dict(same).keys() - besides)
        except OSError as error:
            words = f"A picture of job {job.id} cannot be read ({error.strerror})."
            raise InputError(words, "Give the pictures anew.") from error

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
        pictures = {**self._pictures(job, request, besides=pictures), **pictures}
        allow_folder = allow_folder or request.model == job.request.model
        lineage = self._lineage(job)
        if lineage.kept:
            check_changes(job.request, {name: getattr(request, name) for name in SETTINGS})
        request, pictures = _checked(request, pictures, allow_folder=allow_folder, lineage=lineage)
        with self.store.change():
            job, folder = self.whole(job_id), self.store.folder(job_id)
            if not allows(job, "edit"):
                raise InputError(
                    f"Job {job_id} has begun; expected one that has not.", "Duplicate it with other settings."
                )
            store_request(request, pictures, folder, final_folder=folder)
            sync_folder(folder.path)
            edits = StateLog(folder).read()["edits"] + 1
            return self.store.enter(job_id, job.state, reason="A user changed its settings.", edits=edits)

    def move(self, job_id: str, *, before: str | None = None, after: str | None = None) -> Job:
        with self.store.change():
            job = self.store.job(job_id)
            if not allows(job, "reorder"):
                raise InputError(f"Job {job_id} is {job.state}; expected one that waits in the queue.")
            others = self._others(job_id)
            number = len(others)
            if neighbour := before or after:
                ids = [row["id"] for row in others]
                if neighbour not in ids:
                    raise InputError(f"Job {neighbour} is not in the queue; expected one that is.")
                number = ids.index(neighbour) + (before is None)
            low = others[number - 1]["place"] if number else (others[0]["place"] if others else job.place) - 2
            high = others[number]["place"] if number < len(others) else low + 2
            place = (low + high) / 2 if high - low > _LEAST_ROOM else low + _NEW_ROOM
            reason = "A user changed the order."
            self.store.enter(job_id, job.state, reason=reason, place=place)
            for row in others[number:]:
                if row["place"] > place:
                    break
                place += _NEW_ROOM
                self.store.enter(row["id"], row["state"], reason=reason, place=place)
        return self.store.job(job_id)

    def move_first(self, job_id: str) -> Job:
        waiting = [row["id"] for row in self._others(job_id) if row["state"] in MOVABLE]
        return self.move(job_id, before=waiting[0] if waiting else None)

    def _others(self, job_id: str) -> list[sqlite3.Row]:
        """Return the id, place and state of the other jobs that are not over, in the order of the queue."""
        condition = f"WHERE {_OPEN} AND id != ? ORDER BY place, id"
        return self.store.select(condition, job_id, what="id, place, state")

    def cancel(self, job_id: str) -> bool:
        """End a job, at once or within a step of its maker; return False if it is over or unknown."""
        asked = False
        with contextlib.suppress(InputError):  # on a full disk, a job of another process cannot be cancelled
            asked = self._command(job_id, "cancel")
        if not asked and job_id in self.store.making:
            self.store.cancelled.add(job_id)
            asked = True
        return asked

    def pause(self, job_id: str) -> bool:
        """Pause a job, which frees the device's memory; return False if it is over, paused or unknown."""
        return self._command(job_id, "pause")

    def stop_after_section(self, job_id: str) -> bool:
        """End a job after its current section; return False if it is not being made."""
        return self._command(job_id, "stop_after_section")

    def _command(self, job_id: str, command: Command) -> bool:
        """Leave a command for a job; whoever makes it carries the command out, and otherwise this call."""
        with self.store.change() as database:
            folder = self.store.folder(job_id)
            if not self.store.select("WHERE id = ?", job_id, what="id") or not folder.path.exists():
                return False
            facts = StateLog(folder).read()
            is_damaged = facts["fault"] and not is_locked(folder.states)
            if is_damaged or command not in ALLOWED[facts["state"]]:
                return False
            leave_command(folder, command)
            settle(database, folder)
        return True

    def resume(self, job_id: str) -> Job:
        """Put a paused, interrupted, failed or cancelled job back into the queue.

        It continues from the work that is already done. A paused or interrupted job keeps its place, and the
        others go to the end. For a job in any other state, only a requested pause is withdrawn.
        """
        with self.store.change():
            self.store.write_held()
        with self.store.change():
            job, folder = self.whole(job_id), self.store.folder(job_id)
            self.store.own.add(job_id)
            if not allows(job, "resume"):
                forget_commands(folder, "pause")
                return job
            place = self.store.last_place() if job.state in OVER else job.place
            job = self.store.enter(
                job_id, "queued", reason="A user resumed it.", place=place, ended=None, message="",
                remedy="", deaths=0, death="",
            )  # fmt: skip
            with contextlib.suppress(OSError):  # the log may be unreadable, and only the state matters
                append_event(folder.events, Warned(job=job_id, time=time_of_last(folder), message=RESUMED))
        return job

    def remove(self, job_id: str) -> None:
        """Remove a job that is not being made, with its files. `restore` brings it back for a week."""
        with self.store.change() as database:
            self.store.job(job_id)
            discard(database, self.store.folder(job_id), self.store.trash)

    def restore(self, job_id: str) -> Job:
        with self.store.change() as database:
            put(database, bring_back(self.store.outputs, job_id, self.store.trash))
        return self.store.job(job_id)

    def rebuild(self) -> None:
        """Read all jobs anew from their folders, for example after a manual change."""
        with self.store.change() as database:
            database.execute("DELETE FROM jobs")
            agree(database, self.store.outputs)

    @property
    def is_held(self) -> bool:
        return self.store.held.is_file()

    def hold(self) -> None:
        """Pause the jobs that are being made and begin no others, which frees the device for other work."""
        with self.store.change():
            if not self.is_held:
                running = [row["id"] for row in self._others("") if row["state"] in BEGUN]
                make_way(self.store.held)
                write_atomic(self.store.held, json.dumps(running).encode())
                sync_folder(self.store.held.parent)
        for job_id in _paused_jobs(self.store.held):
            self.pause(job_id)

    def go_on(self) -> None:
        """End the effect of `hold`, and resume the jobs that it paused."""
        for job_id in _paused_jobs(self.store.held):
            with contextlib.suppress(InputError):  # a user has removed it
                if self.store.job(job_id).state in ("paused", *BEGUN):
                    self.resume(job_id)
        with self.store.change():
            make_way(self.store.held)
            self.store.held.unlink(missing_ok=True)
            sync_folder(self.store.held.parent)


def _checked(
    request: GenerationRequest, pictures: Contents, *, allow_folder: bool, lineage: Lineage
) -> tuple[GenerationRequest, dict[str, bytes]]:
    info = find_model(request.model, allow_folder=allow_folder)
    info.check(request)
    lineage.sections(request, info.family)
    for one in lineage.requests(request):
        check_prompt(one, info)
    found = read_pictures(request, pictures)
    model = request.model if request.model in model_names() else str(info.folder)
    return replace(request, model=model), found


def _paused_jobs(held: Path) -> list[str]:
    try:
        found: Any = plain_json(read_file(held))
    except (OSError, ValueError):
        return []
    jobs = cast(list[object], found) if isinstance(found, list) else []
    return [one for one in jobs if isinstance(one, str)]
