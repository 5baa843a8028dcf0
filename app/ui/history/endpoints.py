"""The endpoints of the History tab, for the page's scripts and for programs. They return plain data."""

from __future__ import annotations

from typing import Any

from app.jobs.service import JobService
from app.jobs.view import states_named
from app.ui.catalogue import Catalogue
from app.ui.form.restore import Restored
from app.ui.history.cards import model_title
from app.ui.history.opened import Opener

MOST_CARDS = 200


class HistoryCalls:
    """The endpoints for one job service. Each raises InputError if an argument cannot be used."""

    def __init__(self, service: JobService, catalogue: Catalogue) -> None:
        self._service, self._catalogue = service, catalogue
        self._opener = Opener(service)

    @property
    def all(self) -> tuple[Any, ...]:
        """Return all endpoints."""
        return self.history_search, self.history_open, self.history_settings

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
        """Return the videos that meet all given conditions, newest first, as the page's cards show them.

        `cards` has at most `limit` of them, `next` is the argument `before` for the next page, `total` is
        their number on all pages, and `models` are the possible values of `model`.
        """
        history = self._service.history
        models = history.models()
        wanted = [one for one in models if model_title(one) == model] or [model]
        found = history.search(
            text, states=states_named(states), models=wanted if model else [], min_seconds=min_seconds,
            max_seconds=max_seconds, favourites=favourites, before=before,
            limit=max(1, min(MOST_CARDS, limit)),
        )  # fmt: skip
        return {
            "cards": [self._opener.card(job) for job in found.jobs],
            "next": found.next,
            "total": found.total,
            "models": sorted({model_title(one) for one in models}),
        }

    def history_open(self, job: str) -> dict[str, Any]:
        """Return everything that the page shows of one video, with its states, files and family."""
        return self._opener.open(job)

    def history_settings(self, job: str) -> dict[str, Any]:
        """Return the settings of a video for the form, and the path of its picture among the uploads."""
        return Restored.of_job(self._service.job(job), self._catalogue).to_dict()
