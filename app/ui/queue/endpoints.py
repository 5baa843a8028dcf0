"""The calls of the queue. Those with the name of a verb of `longtake jobs` have its effect."""

import json
from collections.abc import Callable
from typing import Any

from typing_extensions import TypedDict

from app.jobs.job import BEGUN, MOVABLE, Job, allows
from app.jobs.pace import PaceBook, seconds_left
from app.jobs.service import JobService
from app.jobs.view import row_buttons, states_named, title_of
from app.ui.api import Jobs
from app.ui.catalogue import Catalogue
from app.ui.live.scene import rounded_seconds
from app.ui.loras import with_lora_files
from app.ui.queue.records import CardLine, Record, Records, card_lines
from diffusers_helper.errors import InputError, short_repr
from diffusers_helper.request import FILES, FINISHING, SETTINGS, TIMED_PICTURES, GenerationRequest
from diffusers_helper.units import about, count_text, size_text

_MOST_LISTED = 200


class JobsPage(TypedDict):
    """Jobs of any state; `next` is the argument `before` for the following ones."""

    jobs: list[Record]
    next: str


class QueuePage(TypedDict):
    """A part of the queue; see `jobs_queue`."""

    total: int
    first: int
    held: bool
    left: float | None
    say: str
    cards: list[CardLine]
    jobs: list[Record]


class JobCalls:
    """The calls for one service's jobs. The docstring of a method is what programs read about it."""

    def __init__(self, service: JobService, catalogue: Catalogue) -> None:
        self._service, self._queue, self._catalogue = service, service.queue, catalogue
        self._records = Records(service, catalogue)
        self._paces = PaceBook(service)

    def jobs_list(
        self,
        text: str = "",
        states: list[str] | None = None,
        models: list[str] | None = None,
        min_seconds: float | None = None,
        max_seconds: float | None = None,
        favourites: bool = False,
        before: str = "",
        limit: int = 50,
    ) -> JobsPage:
        """Give `jobs`, newest first, and `next`, the argument `before` for the next page."""
        keys = {self._catalogue.name_of(key): key for key in self._service.history.models()}
        result = self._service.history.search(
            text, states=states_named(states),
            models=[keys.get(name, name) for name in models or ()], min_seconds=min_seconds,
            max_seconds=max_seconds, favourites=favourites, before=before, limit=_bounded(limit),
        )  # fmt: skip
        return {"jobs": [self._records.of(job) for job in result.jobs], "next": result.next}

    def jobs_queue(self, first: int = 0, limit: int = 50) -> QueuePage:
        """List the jobs that are not over, in the order of the queue, from number `first` on.

        `total` is the number of all such jobs, `left` the seconds for those that will be made, and `held` is
        true while the whole queue is paused. Each of `jobs` has `percent`, `left` in seconds and, if it is
        queued, `turn` (1 for the next one) and, unless the queue is paused, `begins_in` in seconds; and what
        the page shows of it: `now`, `time` and `buttons`. `say` is a sentence on the whole queue, and `cards`
        are those of `cards_list`.
        """
        jobs = self._queue.jobs(limit=1_000_000)
        left = seconds_left(jobs, self._paces)
        begins, turns = list[float | None](), list[int]()
        turn, is_known, held = 0, True, self._queue.is_paused
        free = [0.0] * self._service.engines  # the times at which the engines are free, in seconds from now
        for job, seconds in zip(jobs, left, strict=True):
            is_queued = job.state == "queued" and not job.waits
            will_be_made = is_queued or job.state in BEGUN
            turn += is_queued
            turns.append(turn if is_queued else 0)
            able = self._service.crew.indices_for(job) or range(len(free)) if will_be_made else [0]
            engine = min(able, key=free.__getitem__)
            begins.append(free[engine] if is_queued and is_known and not held else None)
            is_known = is_known and not (will_be_made and seconds is None)
            if will_be_made:
                free[engine] += seconds or 0.0
        first = min(max(0, first), len(jobs))
        indices = range(first, min(len(jobs), first + _bounded(limit)))
        whole = max(free) if is_known else None
        return {
            "total": len(jobs), "first": first, "held": held, "left": rounded_seconds(whole),
            "say": _say(len(jobs), whole, held=held), "cards": card_lines(self._service),
            "jobs": [self._row(jobs[n], turns[n], left[n], begins[n], is_paused=held) for n in indices],
        }  # fmt: skip

    def _row(
        self, job: Job, turn: int, left: float | None, begins: float | None, *, is_paused: bool
    ) -> Record:
        made = self._records.of(job, turn, is_paused=is_paused)
        has_reason = job.waits or job.state not in ("queued", "running")
        return made | {
            "turn": turn, "left": rounded_seconds(left), "begins_in": rounded_seconds(begins),
            "reason": f"{made['message']} {made['remedy']}".strip() if has_reason else "",
            "now": f"{made['sentence']}{f', begins in {about(begins)}' if begins else ''}",
            "time": f"takes {about(left)}" if left is not None and job.state in MOVABLE else "",
            "buttons": row_buttons(made["actions"]),
        }  # fmt: skip

    def jobs_show(self, job: str) -> Record:
        """Gather everything about a job, with the states that it went through."""
        return self._records.everything_of(job)

    def jobs_cancel(self, jobs: Jobs, after_section: bool = False) -> list[Record]:
        """End jobs, at once or after the current section. `asked` is false for jobs that cannot be ended."""
        return self._each(jobs, self._queue.stop_after_section if after_section else self._queue.cancel)

    def jobs_pause(self, jobs: Jobs) -> list[Record]:
        """Pause jobs until they are resumed, and free the device."""
        return self._each(jobs, self._queue.pause)

    def jobs_resume(self, jobs: Jobs) -> list[Record]:
        """Resume jobs that were paused or interrupted."""

        def resume(job_id: str) -> bool:
            was = allows(self._service.job(job_id), "resume")
            self._service.steering.resume(job_id)
            return was

        return self._each(jobs, resume)

    def jobs_retry(self, jobs: Jobs) -> list[Record]:
        """Resume jobs that failed or were cancelled."""
        return self.jobs_resume(jobs)

    def jobs_hold(self) -> dict[str, bool]:
        """Pause the whole queue: the job that is being made, and all that would follow."""
        self._queue.pause_queue()
        return {"held": True}

    def jobs_go_on(self) -> dict[str, bool]:
        """Resume the whole queue."""
        self._queue.resume_queue()
        return {"held": False}

    def jobs_reorder(self, job: str, before: str = "", after: str = "", first: bool = False) -> Record:
        """Move a job before or after another one, to the front, or, if none is given, to the end."""
        if first:
            return self._records.of(self._queue.move_first(job))
        return self._records.of(self._queue.move(job, before=before or None, after=after or None))

    def jobs_remove(self, jobs: Jobs) -> list[Record]:
        """Remove jobs with their files; for a week they can be brought back."""
        removed = [self._records.of(self._service.job(job_id)) for job_id in jobs]
        for job_id in jobs:
            self._queue.remove(job_id)
        return removed

    def jobs_restore(self, jobs: Jobs) -> list[Record]:
        """Bring removed jobs back, in the state and at the place that they had."""
        return [self._records.of(self._queue.restore(job_id)) for job_id in jobs]

    def jobs_delete(self, jobs: Jobs) -> list[str]:
        """Delete jobs for good, removed ones included, which frees their space, and return their ids."""
        for job_id in jobs:
            self._queue.delete(job_id)
        return jobs

    def jobs_empty_trash(self) -> list[str]:
        """Delete all removed jobs for good, and return their ids."""
        return self._queue.empty_trash()

    def jobs_usage(self) -> dict[str, Any]:
        """Return the jobs that take the most space, the largest first, and what removed ones take, in bytes.

        `say` is a sentence about it.
        """
        usage = self._service.history.usage()
        total = sum(size for _, size in usage.jobs)
        return {
            "jobs": [
                {"id": job.id, "title": title_of(job), "bytes": size, "size": size_text(size)}
                for job, size in usage.jobs[:_MOST_LISTED]
            ],
            "bytes": total, "removed_bytes": usage.removed_bytes, "free_bytes": usage.free_bytes,
            "say": f"The videos take {size_text(total)}, and those that were removed within a week "
            f"{size_text(usage.removed_bytes)}. {size_text(usage.free_bytes)} of the disk are free.",
        }  # fmt: skip

    def jobs_duplicate(self, job: str, changes: dict[str, Any] | None = None) -> Record:
        """Queue a new job like an earlier one, with other values for the settings in `changes`."""
        if changes:
            self._request(job, changes)
        return self._records.of(self._queue.duplicate(job, self._inward(changes)))

    def jobs_edit(self, job: str, changes: dict[str, Any]) -> Record:
        """Change settings of a job that has not begun."""
        return self._records.of(self._queue.edit(job, self._request(job, changes)))

    def jobs_branch(
        self,
        job: str,
        keep: int | None = None,
        longer: float | None = None,
        changes: dict[str, Any] | None = None,
    ) -> Record:
        """Queue a job that keeps the first sections of another one, or makes a finished one longer."""
        if (keep is None) == (longer is None):
            raise InputError("A branch needs either keep or longer.", "Give one of them.")
        settings = self._inward(changes)
        if keep is not None:
            return self._records.of(self._queue.branch(job, keep, **settings))
        return self._records.of(self._queue.extend(job, longer or 0.0, **settings))

    def jobs_change(self, job: str, changes: dict[str, Any]) -> Record:
        """Change settings, such as the words, for the sections of a job that are not made yet."""
        return self._records.of(self._service.steering.change(job, self._inward(changes)))

    def jobs_wait(self, jobs: Jobs, wait: bool = True) -> list[Record]:
        """Have jobs wait for a user after each section, with the device free, or go on by themselves."""
        return [self._records.of(self._service.steering.wait(job_id, wait)) for job_id in jobs]

    def jobs_takes(self, job: str, count: int = 3, keep: int | None = None) -> list[Record]:
        """Queue takes of a job's next section with other seeds; the one that is resumed goes on.

        They keep `keep` finished sections, by default all. With one less, the last section is made again.
        """
        return [self._records.of(take) for take in self._service.steering.takes(job, count, keep)]

    def jobs_favourite(self, jobs: Jobs, favourite: bool = True) -> list[Record]:
        """Mark jobs as favourites, which are never removed automatically, or remove the mark."""
        return [self._records.of(self._service.history.set_favourite(job_id, favourite)) for job_id in jobs]

    def cards_list(self) -> list[CardLine]:
        """List the cards, if there are several: `card`, `name`, `memory`, `job`, and what it does `now`."""
        return card_lines(self._service)

    def cards_leave(self, card: str) -> list[CardLine]:
        """Take a card out of service after the video that it makes, until `cards_return`."""
        self._service.crew.serve(card, leaves=True)
        return card_lines(self._service)

    def cards_pause(self, card: str) -> list[CardLine]:
        """Free a card at once, until `cards_return`; another card goes on with its video."""
        self._service.crew.serve(card, leaves=True, now=True)
        return card_lines(self._service)

    def cards_return(self, card: str) -> list[CardLine]:
        """Put a card back into service."""
        self._service.crew.serve(card)
        return card_lines(self._service)

    def _each(self, jobs: list[str], ask: Callable[[str], bool]) -> list[Record]:
        for job_id in jobs:
            self._service.job(job_id)  # none is changed if one does not exist
        asked = [ask(job_id) for job_id in jobs]
        changed_jobs = [self._service.job(job_id) for job_id in jobs]
        return [
            self._records.of(job) | {"asked": answer} for job, answer in zip(changed_jobs, asked, strict=True)
        ]

    def _inward(self, changes: dict[str, Any] | None) -> dict[str, Any]:
        """Turn changed settings into those of a request. A file, which could be any, is refused."""
        settings = dict(changes or {})
        fixed = (*FILES, TIMED_PICTURES, *FINISHING)
        if unknown := next((name for name in settings if name in fixed or name not in SETTINGS), None):
            raise InputError(f"{short_repr(unknown)} cannot be changed here.", "Leave it out.")
        if "model" in settings:
            settings["model"] = self._catalogue.key(settings["model"])
        return with_lora_files(settings)

    def _request(self, job_id: str, changes: dict[str, Any] | None) -> GenerationRequest:
        data = json.loads(self._service.job(job_id).request.to_json())
        request = GenerationRequest.from_dict(data | self._inward(changes))
        name = self._catalogue.name_of(request.model)
        if name in self._catalogue.names and not request.finish:
            self._catalogue.planner.check(request, self._catalogue.info(name))
        return request


def _say(total: int, left: float | None, *, held: bool) -> str:
    time = ". The time is unknown until the first one is made" if left is None else ""
    words = f"{count_text(total, 'video')}{f', {about(left)} in all' if left else time}." if total else ""
    pause = "The queue is paused: no video is made until you resume it." if held else ""
    return f"{words} {pause}".strip()


def _bounded(limit: int) -> int:
    return max(1, min(limit, _MOST_LISTED))
