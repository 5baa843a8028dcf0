"""The endpoints of the jobs, which have the names and the effects of the verbs of `python -m app jobs`."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache, lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from app.jobs.job import BEGUN, MOVABLE, Job, allows
from app.jobs.pace import PaceBook, seconds_left
from app.jobs.service import JobService
from app.jobs.view import Address, full_record, record, row_buttons, states_named, title_of, view
from app.ui.calls import cards
from app.ui.catalogue import Catalogue
from app.ui.errors import page_words
from app.ui.live.scene import Presenter, rounded_seconds, thumb_url
from app.ui.loras import with_lora_files, with_lora_names
from diffusers_helper.errors import InputError, short_repr
from diffusers_helper.models.added import ADDED_MODELS
from diffusers_helper.models.registry import plan_of
from diffusers_helper.request import PICTURES, SETTINGS, TIMED_PICTURES, GenerationRequest
from diffusers_helper.units import about, count_text

SMALL_PICTURE = "picture.webp"
"""The name by which the page serves a small copy of a job's start picture, beside the job's files."""
_MOST_LISTED = 200


class Records:
    """The records of one service's jobs. Addresses are relative to the page: `jobs/ID/video.mp4`."""

    def __init__(self, service: JobService, catalogue: Catalogue) -> None:
        self._service, self._catalogue = service, catalogue
        self._title = cache(self._find_title)

    def of(self, job: Job, turn: int = 0) -> dict[str, Any]:
        """Return the record and the view of a job, with the address of a small picture and a few words.

        `offered` is whether the page offers the job's model, so its form can take the settings. `turn` is the
        job's number among those that will begin, if it is known.
        """
        commands = self._service.commands(job)
        held, card = self._service.queue.is_paused, self._service.crew.why_waiting(job)
        shown = view(job, commands, is_paused=held, turn=turn, card=card)
        address, request = _address(job.folder.parent), job.request
        tells_card = self._service.engines > 1 or " on " in job.card  # or several cards have made it
        small = thumb_url(job, 1) or "" if request.is_from_words else address(job.folder / SMALL_PICTURE)
        order, length = SETTINGS["mode"].choices[request.mode], _length(request)
        return self._outward(record(job, address) | shown, job.folder.parent) | {
            "wishes": sorted(commands),
            "picture": small,
            "title": title_of(job),
            "offered": self._catalogue.name_of(request.model) in self._catalogue.names,
            "about": f"{order} · {length:.1f} s · {self._title(request.model, ADDED_MODELS.revision)}"
            + (f" · {job.card}" if job.card and tells_card else ""),
        }

    def _find_title(self, key: str, _revision: str) -> str:
        """Return the title of a job's model, which may change with the list of added models."""
        name = self._catalogue.name_of(key)
        return self._catalogue.info(name).title if name in self._catalogue.names else name

    def everything_of(self, job_id: str) -> dict[str, Any]:
        """Return everything about a job, as `python -m app jobs show --json` prints it."""
        outputs = self._service.job(job_id).folder.parent
        return self._outward(full_record(self._service, job_id, _address(outputs)), outputs)

    def _outward(self, made: dict[str, Any], outputs: Path) -> dict[str, Any]:
        made["request"] = with_lora_names(made["request"])
        made["request"]["model"] = self._catalogue.name_of(made["request"]["model"])
        for name in ("message", "remedy", "sentence"):
            made[name] = page_words(made[name], outputs)
        return made


@lru_cache(maxsize=1024)
def _length(request: GenerationRequest) -> float:
    return plan_of(request).seconds


def _address(outputs: Path) -> Address:
    return lambda path: f"jobs/{quote(path.relative_to(outputs).as_posix())}"


class JobCalls:
    """The endpoints for one service's jobs. The docstring of a method is what programs read about it."""

    def __init__(self, service: JobService, catalogue: Catalogue) -> None:
        self._service, self._queue, self._catalogue = service, service.queue, catalogue
        self._records, self._presenter = Records(service, catalogue), Presenter(service)
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
    ) -> dict[str, Any]:
        """Return `jobs`, newest first, and `next`, the argument `before` for the next page."""
        keys = {self._catalogue.name_of(key): key for key in self._service.history.models()}
        found = self._service.history.search(
            text, states=states_named(states),
            models=[keys.get(name, name) for name in models or ()], min_seconds=min_seconds,
            max_seconds=max_seconds, favourites=favourites, before=before, limit=_bounded(limit),
        )  # fmt: skip
        return {"jobs": [self._records.of(job) for job in found.jobs], "next": found.next}

    def jobs_queue(self, first: int = 0, limit: int = 50) -> dict[str, Any]:
        """Return the jobs that are not over, in the order of the queue, from number `first` on.

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
        shown = range(first, min(len(jobs), first + _bounded(limit)))
        whole = max(free) if is_known else None
        return {
            "total": len(jobs), "first": first, "held": held, "left": rounded_seconds(whole),
            "say": _say(len(jobs), whole, held=held), "cards": cards.lines(self._service),
            "jobs": [self._row(jobs[n], turns[n], left[n], begins[n]) for n in shown],
        }  # fmt: skip

    def _row(self, job: Job, turn: int, left: float | None, begins: float | None) -> dict[str, Any]:
        made, has_reason = self._records.of(job, turn), job.waits or job.state not in ("queued", "running")
        return made | {
            "turn": turn, "left": rounded_seconds(left), "begins_in": rounded_seconds(begins),
            "reason": f"{made['message']} {made['remedy']}".strip() if has_reason else "",
            "now": f"{made['sentence']}{f', begins in {about(begins)}' if begins else ''}",
            "time": f"takes {about(left)}" if left is not None and job.state in MOVABLE else "",
            "buttons": row_buttons(made["actions"]),
        }  # fmt: skip

    def jobs_show(self, job: str) -> dict[str, Any]:
        """Return everything about a job, with the states that it went through."""
        return self._records.everything_of(job)

    def jobs_scene(self, job: str) -> dict[str, Any]:
        """Return what the page's stage shows of a job: video, sections, figures, settings and memory."""
        return self._presenter.show_job(job)

    def jobs_cancel(self, jobs: list[str], after_section: bool = False) -> list[dict[str, Any]]:
        """End jobs, at once or after the current section. `asked` is false for jobs that cannot be ended."""
        return self._each(jobs, self._queue.stop_after_section if after_section else self._queue.cancel)

    def jobs_pause(self, jobs: list[str]) -> list[dict[str, Any]]:
        """Pause jobs until they are resumed, and free the device."""
        return self._each(jobs, self._queue.pause)

    def jobs_resume(self, jobs: list[str]) -> list[dict[str, Any]]:
        """Resume jobs that were paused or interrupted."""

        def resume(job_id: str) -> bool:
            was = allows(self._service.job(job_id), "resume")
            self._service.steering.resume(job_id)
            return was

        return self._each(jobs, resume)

    def jobs_retry(self, jobs: list[str]) -> list[dict[str, Any]]:
        """Resume jobs that failed or were cancelled."""
        return self.jobs_resume(jobs)

    def jobs_hold(self) -> dict[str, Any]:
        """Pause the whole queue: the job that is being made, and all that would follow."""
        self._queue.pause_queue()
        return {"held": True}

    def jobs_go_on(self) -> dict[str, Any]:
        """Resume the whole queue."""
        self._queue.resume_queue()
        return {"held": False}

    def jobs_reorder(
        self, job: str, before: str = "", after: str = "", first: bool = False
    ) -> dict[str, Any]:
        """Move a job before or after another one, to the front, or, if none is given, to the end."""
        if first:
            return self._records.of(self._queue.move_first(job))
        return self._records.of(self._queue.move(job, before=before or None, after=after or None))

    def jobs_remove(self, jobs: list[str]) -> list[dict[str, Any]]:
        """Remove jobs with their files; for a week they can be brought back."""
        removed = [self._records.of(self._service.job(job_id)) for job_id in jobs]
        for job_id in jobs:
            self._queue.remove(job_id)
        return removed

    def jobs_restore(self, jobs: list[str]) -> list[dict[str, Any]]:
        """Bring removed jobs back, in the state and at the place that they had."""
        return [self._records.of(self._queue.restore(job_id)) for job_id in jobs]

    def jobs_duplicate(self, job: str, changes: dict[str, Any] | None = None) -> dict[str, Any]:
        """Queue a new job like an earlier one, with other values for the settings in `changes`."""
        if changes:
            self._request(job, changes)
        return self._records.of(self._queue.duplicate(job, self._inward(changes)))

    def jobs_edit(self, job: str, changes: dict[str, Any]) -> dict[str, Any]:
        """Change settings of a job that has not begun."""
        return self._records.of(self._queue.edit(job, self._request(job, changes)))

    def jobs_branch(
        self,
        job: str,
        keep: int | None = None,
        longer: float | None = None,
        changes: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Queue a job that keeps the first sections of another one, or makes a finished one longer."""
        if (keep is None) == (longer is None):
            raise InputError("A branch needs either keep or longer.", "Give one of them.")
        given = self._inward(changes)
        if keep is not None:
            return self._records.of(self._queue.branch(job, keep, **given))
        return self._records.of(self._queue.extend(job, longer or 0.0, **given))

    def jobs_change(self, job: str, changes: dict[str, Any]) -> dict[str, Any]:
        """Change settings, such as the words, for the sections of a job that are not made yet."""
        return self._records.of(self._service.steering.change(job, self._inward(changes)))

    def jobs_wait(self, jobs: list[str], wait: bool = True) -> list[dict[str, Any]]:
        """Have jobs wait for a user after each section, with the device free, or go on by themselves."""
        return [self._records.of(self._service.steering.wait(job_id, wait)) for job_id in jobs]

    def jobs_takes(self, job: str, count: int = 3, keep: int | None = None) -> list[dict[str, Any]]:
        """Queue takes of a job's next section with other seeds; the one that is resumed goes on.

        They keep `keep` finished sections, by default all. With one less, the last section is made again.
        """
        return [self._records.of(one) for one in self._service.steering.takes(job, count, keep)]

    def jobs_favourite(self, jobs: list[str], favourite: bool = True) -> list[dict[str, Any]]:
        """Mark jobs as favourites, which are never removed automatically, or remove the mark."""
        return [self._records.of(self._service.history.set_favourite(job_id, favourite)) for job_id in jobs]

    def _each(self, jobs: list[str], ask: Callable[[str], bool]) -> list[dict[str, Any]]:
        for job_id in jobs:
            self._service.job(job_id)
        asked = [ask(job_id) for job_id in jobs]
        found = [self._service.job(job_id) for job_id in jobs]
        return [self._records.of(job) | {"asked": one} for job, one in zip(found, asked, strict=True)]

    def _inward(self, changes: dict[str, Any] | None) -> dict[str, Any]:
        """Return changed settings as requests take them. A picture, which could be any file, is refused."""
        given = dict(changes or {})
        fixed = (*PICTURES, TIMED_PICTURES)
        if unknown := next((name for name in given if name in fixed or name not in SETTINGS), None):
            raise InputError(f"{short_repr(unknown)} cannot be changed here.", "Leave it out.")
        if "model" in given:
            given["model"] = self._catalogue.key(given["model"])
        return with_lora_files(given)

    def _request(self, job_id: str, changes: dict[str, Any] | None) -> GenerationRequest:
        data = json.loads(self._service.job(job_id).request.to_json())
        request = GenerationRequest.from_dict(data | self._inward(changes))
        name = self._catalogue.name_of(request.model)
        if name in self._catalogue.names:
            self._catalogue.planner.check(request, self._catalogue.info(name))
        return request


def _say(total: int, left: float | None, *, held: bool) -> str:
    time = ". The time is unknown until the first one is made" if left is None else ""
    words = f"{count_text(total, 'video')}{f', {about(left)} in all' if left else time}." if total else ""
    pause = "The queue is paused: no video is made until you resume it." if held else ""
    return f"{words} {pause}".strip()


def _bounded(limit: int) -> int:
    return max(1, min(limit, _MOST_LISTED))
