"""The presenter, which turns scenes, and single jobs of any age, into the data that pages show."""

from __future__ import annotations

import time
from functools import cache

from app.jobs.service import JobService
from app.report_text import report_text
from app.ui.live import scene
from app.ui.live.progress import LiveJob
from app.ui.live.watch import Scene, size_of
from diffusers_helper.errors import InputError
from diffusers_helper.models.registry import ModelInfo, find_model


class Presenter:
    """A presenter of one service's jobs, which caches facts about models and reports of failures."""

    def __init__(self, service: JobService) -> None:
        self._service = service
        self._find_model = cache(_find_model)
        self._report = cache(lambda job_id: report_text(service, job_id))

    def show(self, seen: Scene) -> scene.Shown:
        """Return the data that pages show for a scene."""
        return scene.show(seen, time.time(), find_model=self._find_model, report=self._report)

    def show_job(self, job_id: str) -> scene.Shown:
        """Return the data that pages show for one job, according to its log.

        Raises:
            NoSuchJob: If there is no job with that id.
        """
        job = self._service.job(job_id)
        live = LiveJob(job, None, *size_of(job))
        for event in self._service.events(job_id):
            live.apply(event)
        return self.show(Scene(live, None, (), frozenset(self._service.commands(job))))


def _find_model(name: str) -> ModelInfo | None:
    try:
        return find_model(name, allow_folder=True)
    except InputError:  # the folder is gone
        return None
