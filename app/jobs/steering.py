"""The steering of a video while it grows: other words for what comes next, a wait for the user, and takes."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from app.batch import random_seed
from app.jobs.job import BEGUN, Action, Job, NotAllowed, allows, check_generated
from app.jobs.queue import Queue
from app.jobs.storage.commands import forget_commands, pending_change
from diffusers_helper.conditions.prompts import check_prompt
from diffusers_helper.errors import InputError
from diffusers_helper.models.registry import find_model, plan_of
from diffusers_helper.provenance.branch import change_remaining, num_finished_sections
from diffusers_helper.provenance.job_folder import JobFolder

MOST_TAKES = 8


@dataclass(frozen=True, slots=True)
class TakeChoice:
    """The takes of the section of a job after the first `keep`, of which a user keeps one.

    Attributes:
        takes: The jobs that make it or wait after it, with their numbers; 0 is the parent's own section.
        waits: Whether the parent waits after each section, and not only its takes.
    """

    parent: str
    keep: int
    takes: tuple[tuple[int, Job], ...]
    waits: bool


class Steering:
    """The ways to steer the jobs of a queue. Any thread may call any method, from any process."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self.store = queue.store

    def change(self, job_id: str, changes: Mapping[str, Any]) -> Job:
        with self.store.change() as database:
            job = self._queue.job_with_request(job_id)
            check_generated(job)
            folder = self.store.folder(job_id)
            self._check_allowed(job, "change")
            # An earlier change may not be carried out yet.
            settings = {**pending_change(database, job_id), **changes}
            changed, lineage = change_remaining(folder, job.request, settings)
            if job.state in BEGUN and num_finished_sections(folder) + 1 >= len(plan_of(changed)):
                raise InputError(
                    f"The last section of job {job_id} is being made; expected one with sections after it.",
                    "Change the video from one of its sections, or make it longer.",
                )
            info = find_model(changed.model, allow_folder=True)
            for section_request in lineage.requests(changed):
                check_prompt(section_request, info)
            self.store.leave_command(job_id, "change", json.dumps(settings, ensure_ascii=False))
            self.store.apply_commands(job_id)
        return self.store.job(job_id)

    def wait(self, job_id: str, on: bool = True) -> Job:
        """Have a job wait for the user after each section; one that waits already goes on with `resume`."""
        with self.store.change() as database:
            self._check_allowed(self.store.job(job_id), "wait")
            if on:
                self.store.leave_command(job_id, "wait")
            else:
                forget_commands(database, job_id, "wait")
        return self.store.job(job_id)

    def takes(self, job_id: str, count: int = 3, keep: int | None = None) -> list[Job]:
        """Queue branches of a job that make its next section with other seeds, and then wait for the user.

        They keep `keep` sections, by default all. With one less, the last is made again.
        """
        if not 1 <= count <= MOST_TAKES:
            raise InputError(
                f"The number of takes is {count}; expected one from 1 to {MOST_TAKES}.",
                "Choose another number.",
            )
        job = self.store.job(job_id)
        keep = num_finished_sections(self.store.folder(job_id)) if keep is None else keep
        if job.state in BEGUN:
            self._queue.pause(job_id)  # its takes come first, and it may go on as one of them
        return [self._queue.branch(job_id, keep, waits=True, seed=random_seed()) for _ in range(count)]

    def resume(self, job_id: str) -> Job:
        """Put a job back into the queue; see `Queue.resume`.

        If it is one of several takes, the choice is made: the others end, and so does the video that they
        were made from, if it is paused. They stay in the history, where each can be resumed.
        """
        others = self._not_chosen(job_id)
        job = self._queue.resume(job_id)
        for other in others:
            self._queue.cancel(other)
        return job

    def _not_chosen(self, job_id: str) -> list[str]:
        """Find the jobs that end if a job goes on; none unless it is paused after a section with takes."""
        job = self.store.job(job_id)
        finished = num_finished_sections(self.store.folder(job_id))
        for parent, keep in ((job_id, finished - 1), (job.parent, job.kept)):
            if job.state != "paused" or not 0 < keep == finished - 1:
                continue
            if others := [take.id for _, take in self._takes(parent, keep) if take.id != job_id]:
                paused = self.store.jobs("WHERE id = ? AND id != ? AND state = 'paused'", parent, job_id)
                return [*others, *(job.id for job in paused)]
        return []

    def choice(self, job_id: str) -> TakeChoice | None:
        chosen = self.store.job(job_id)
        finished = num_finished_sections(self.store.folder(job_id))
        for parent, keep in ((job_id, finished), (job_id, finished - 1), (chosen.parent, chosen.kept)):
            takes = self._takes(parent, keep) if keep > 0 else []
            if takes and (parent == job_id or any(job.id == job_id for _, job in takes)):
                first = [(0, chosen)] if (parent, keep) == (job_id, finished - 1) else []
                waits = "wait" in self.store.commands(parent)
                return TakeChoice(parent, keep, (*first, *takes), waits)
        return None

    def _takes(self, parent: str, keep: int) -> list[tuple[int, Job]]:
        """Find the takes of a section that may still be chosen, with their numbers."""
        jobs = self.store.jobs("WHERE parent = ? AND kept = ? ORDER BY created, id", parent, keep)
        return [
            (number, job)
            for number, job in enumerate(jobs, 1)
            if "wait" in self.store.commands(job.id) and _is_open(job, keep)
        ]

    def _check_allowed(self, job: Job, action: Action) -> None:
        if not allows(job, action):
            raise NotAllowed(
                job, "one that is not over", "Make it longer, or change it from one of its sections."
            )


def _is_open(job: Job, keep: int) -> bool:
    finished = num_finished_sections(JobFolder(job.folder))
    if finished <= keep:
        return not job.is_over
    return finished == keep + 1 and job.state in ("paused", "finished")
