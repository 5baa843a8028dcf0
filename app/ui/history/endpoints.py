"""The endpoints of the history, for the page's scripts and for programs. They take and return plain data."""

from __future__ import annotations

from typing import Any, get_args

from app.jobs.job import Job, JobState
from app.jobs.service import JobService
from app.several.batch import random_seed
from app.ui.catalogue import Catalogue
from app.ui.form.restore import Restored
from app.ui.history.cards import Shown, card, model_title
from app.ui.history.opened import opened
from diffusers_helper.errors import InputError, short_repr
from diffusers_helper.models.downloads import NotHere, absence_of
from diffusers_helper.models.registry import find_model
from diffusers_helper.output.branch import kept_words
from diffusers_helper.output.job_folder import JobFolder
from diffusers_helper.output.lineage import Lineage

MOST_CARDS = 200


class HistoryEndpoints:
    """The endpoints of one job service. Each raises InputError for what cannot be used."""

    def __init__(self, service: JobService, catalogue: Catalogue) -> None:
        self._service, self._catalogue = service, catalogue
        self.all = (
            self.history_search, self.history_open, self.history_favourite, self.history_settings,
            self.history_again, self.history_branch, self.history_extend,
        )  # fmt: skip

    def history_search(
        self,
        text: str = "",
        states: list[str] | None = None,
        model: str = "",
        min_seconds: float | None = None,
        max_seconds: float | None = None,
        favourites: bool = False,
        before: str = "",
        limit: int = 24,
    ) -> dict[str, Any]:
        """Return the videos that fit all of what is given, newest first.

        Args:
            text: Words that the prompt, the negative prompt or the seed must contain.
            states: The states to keep; none keeps all.
            model: The model to keep, by its title; empty for all.
            min_seconds: The shortest wanted length.
            max_seconds: The longest wanted length.
            favourites: Whether to keep only favourites.
            before: The `next` of the page before this one.
            limit: The most videos to return, up to 200.

        Returns:
            `cards`, `next` (empty on the last page), `total` and `models` (the titles of all models).
        """
        history = self._service.history
        models = history.models()
        found = history.search(
            text, states=_states(states), models=[one for one in models if model_title(one) == model],
            min_seconds=min_seconds, max_seconds=max_seconds, favourites=favourites, before=before,
            limit=max(1, min(MOST_CARDS, limit)),
        )  # fmt: skip
        titles = sorted({model_title(one) for one in models})
        cards = [card(job) for job in found.jobs]
        return {"cards": cards, "next": found.next, "total": found.total, "models": titles}

    def history_open(self, job: str) -> dict[str, Any]:
        """Return everything about one job: its settings, states, files, figures and family."""
        return opened(self._service, job)

    def history_favourite(self, job: str, favourite: bool = True) -> dict[str, Any]:
        """Mark a job as a favourite, which is never removed by itself, or take the mark away."""
        return card(self._service.history.set_favourite(job, favourite))

    def history_settings(self, job: str) -> dict[str, Any]:
        """Return the settings of a job, for the form, and the place of its picture."""
        found = self._service.job(job)
        return Restored.of_job(found, self._catalogue).to_dict()

    def history_again(self, job: str, seed: int | None = None) -> dict[str, Any]:
        """Queue a job like an earlier one, but with another seed; by default a random one."""
        parent = self._usable(job)
        made = self._service.queue.duplicate(parent.id, {"seed": random_seed() if seed is None else seed})
        return self._queued(made, f"The same again, with the seed {made.request.seed}.")

    def history_branch(
        self,
        job: str,
        keep: int,
        prompt: str | None = None,
        seed: int | None = None,
        seconds: float | None = None,
    ) -> dict[str, Any]:
        """Queue a job that keeps the first sections of another one, in the order of making.

        Args:
            job: The job to go on from; it stays as it is.
            keep: The number of sections to keep.
            prompt: Another prompt for the sections after them.
            seed: Another seed for them.
            seconds: Another length of the whole video.
        """
        parent = self._usable(job)
        changes = {"prompt": prompt, "seed": seed, "seconds": seconds}
        given = {name: value for name, value in changes.items() if value is not None}
        return self._branched(self._service.queue.branch(parent.id, keep, **given))

    def history_extend(self, job: str, seconds: float) -> dict[str, Any]:
        """Queue a job that makes a finished video longer: a forward one goes on after its end, and an
        inverted one gets a new beginning.

        Args:
            job: The job, which stays as it is.
            seconds: The time to add.
        """
        return self._branched(self._service.queue.extend(self._usable(job).id, seconds))

    def _usable(self, job_id: str) -> Job:
        """Return a job whose model is on this machine.

        Raises:
            NotHere: If it would have to be downloaded.
        """
        job = self._service.job(job_id)
        absence = absence_of(find_model(job.request.model, allow_folder=True))
        if absence is not None:
            raise NotHere(absence)
        return job

    def _branched(self, job: Job) -> Shown:
        kept = Lineage.read(JobFolder(job.folder).lineage).kept
        return self._queued(job, kept_words(job.request, kept))

    def _queued(self, job: Job, words: str) -> Shown:
        before = self._service.queue_position(job.id)
        turn = "It is next." if not before else f"{before} come first." if before > 1 else "1 comes first."
        return {"job": job.id, "words": f"{words} {turn}", "card": card(job)}


def _states(given: list[str] | None) -> list[JobState]:
    known = get_args(JobState)
    for state in given or ():
        if state not in known:
            raise InputError(
                f"{short_repr(state)} is no state of a job; expected some of {', '.join(known)}.",
                "Choose another one.",
            )
    return [state for state in known if state in (given or ())]
