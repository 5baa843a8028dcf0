"""The time that the jobs of a queue will take at this machine's pace."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from app.jobs.job import Job
from app.jobs.pace import Effort, Pace, PaceBook, passes
from app.jobs.view import share_done
from diffusers_helper.errors import InputError
from diffusers_helper.models.registry import find_model
from diffusers_helper.request import GenerationRequest


def seconds_left(jobs: Iterable[Job], paces: PaceBook) -> list[float | None]:
    """Return the time left for each job; None if this machine has not made a video with its model yet.

    Only the area of the video counts, not its shape, so no picture has to be opened.
    """
    known: dict[str, Pace | None] = {}
    found: list[float | None] = []
    for job in jobs:
        model = job.request.model
        if model not in known:
            known[model] = paces.pace(model)
        pace, work = known[model], _work(job.request)
        rest = 1.0 - share_done(job)
        found.append(None if pace is None or work is None else rest * pace.seconds(work))
    return found


@lru_cache(maxsize=8192)
def _work(request: GenerationRequest) -> Effort | None:
    """Return the work of a request; None if its model is gone."""
    try:
        info = find_model(request.model, allow_folder=True)
    except InputError:
        return None
    plan, side = info.family.plan(request.seconds, request.mode), request.resolution or info.side
    return Effort(plan, request.steps, side * side, passes(request.cfg), request.vae_chunk)
