"""The steering of a video while it grows: other words for what comes next, a wait for the user, and takes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from app.batch import random_seed
from app.jobs.job import BEGUN, Action, Job, allows
from app.jobs.queue import Queue
from app.jobs.storage.commands import forget_commands, leave_command, pending_change, settle
from app.jobs.storage.trouble import changing
from diffusers_helper.conditions.prompts import check_prompt
from diffusers_helper.errors import InputError
from diffusers_helper.models.registry import find_model, plan_of
from diffusers_helper.provenance.branch import changed_from_here, count_kept

MOST_TAKES = 8


class Steering:
    """The ways to steer the jobs of a queue. Any thread may call any method, from any process."""

    def __init__(self, queue: Queue) -> None:
        self._queue, self.store, self.on_change = queue, queue.store, queue.on_change

    @changing
    def change(self, job_id: str, changes: Mapping[str, Any]) -> Job:
        """Give the sections that are not made yet other settings.

        A section that is being made is finished first. The finished ones keep their settings, so the recipe
        of the video has both and makes the same bytes.

        Args:
            changes: New settings, out of those in `branch.may_differ`.

        Raises:
            InputError: If the job has finished, or a change is not possible.
        """
        with self.store.transaction() as database:
            job, folder = self._queue.whole(job_id), self.store.folder(job_id)
            self._allowed(job, "change")
            wanted = {**pending_change(folder), **changes}  # an earlier change may not be carried out yet
            changed, lineage = changed_from_here(folder, job.request, wanted)
            if job.state in BEGUN and count_kept(folder) + 1 >= len(plan_of(changed)):
                raise InputError(
                    f"The last section of job {job_id} is being made; expected one with sections after it.",
                    "Change the video from one of its sections, or make it longer.",
                )
            info = find_model(changed.model, allow_folder=True)
            for one in lineage.requests(changed):
                check_prompt(one, info)
            leave_command(folder, "change", json.dumps(wanted, ensure_ascii=False).encode())
            settle(database, folder)
        return self.store.job(job_id)

    @changing
    def wait(self, job_id: str, on: bool = True) -> Job:
        """Have a job wait for the user after each section, with the device free, or go on by itself.

        A job that waits already goes on with `Queue.resume`.

        Raises:
            InputError: If the job has ended.
        """
        with self.store.transaction():
            self._allowed(self.store.job(job_id), "wait")
            folder = self.store.folder(job_id)
            if on:
                leave_command(folder, "wait")
            else:
                forget_commands(folder, "wait")
        return self.store.job(job_id)

    def takes(self, job_id: str, count: int = 3, keep: int | None = None) -> list[Job]:
        """Queue branches of a job that make its next section with other seeds, and then wait for the user.

        The one that is resumed goes on; the others stay as they are.

        Args:
            job_id: A job with at least one finished section.
            keep: The finished sections to keep; None for all. With one less, the last is made again.

        Raises:
            InputError: If the number cannot be used, or there is nothing to keep or to make.
        """
        if not 1 <= count <= MOST_TAKES:
            raise InputError(f"{count} takes; expected 1 to {MOST_TAKES}.", "Ask for fewer.")
        job = self.store.job(job_id)
        keep = count_kept(self.store.folder(job_id)) if keep is None else keep
        if job.state in BEGUN:
            self._queue.pause(job_id)  # its takes come first, and it may go on as one of them
        return [self._queue.branch(job_id, keep, waits=True, seed=random_seed()) for _ in range(count)]

    def _allowed(self, job: Job, action: Action) -> None:
        if not allows(job, action):
            raise InputError(
                f"Job {job.id} is {job.state}; expected one that is not over.",
                "Make it longer, or change it from one of its sections.",
            )
