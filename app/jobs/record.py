"""The facts of a job as plain data, as the command line prints them and the endpoints return them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from app.jobs.job import Job
from app.jobs.service import JobService
from app.jobs.view import view
from diffusers_helper.conditions.pictures import named_pictures

Address = Callable[[Path], str]


def record(job: Job, address: Address = str) -> dict[str, Any]:
    """Return a job as plain data.

    Args:
        job: The job.
        address: Returns the text that stands for a path.
    """
    pictures = {name: address(Path(path)) for name, path in named_pictures(job.request).items()}
    return {
        "id": job.id, "state": job.state, "place": job.place, "created": job.created, "started": job.started,
        "ended": job.ended, "video": None if job.video is None else address(job.video), "frames": job.frames,
        "message": job.message, "remedy": job.remedy, "favourite": job.favourite,
        "damage": job.damage, "folder": address(job.folder),
        "request": json.loads(job.request.to_json()) | pictures,
    }  # fmt: skip


def full_record(service: JobService, job_id: str, address: Address = str) -> dict[str, Any]:
    """Return everything about a job: its record, its view, its place in the queue, and its states.

    Raises:
        NoSuchJob: If there is no job with that id.
    """
    job, states = service.job(job_id), service.history.transitions(job_id)
    more = {
        "jobs_before": service.queue_position(job_id),
        "wishes": sorted(service.commands(job_id)),
        "states": [{"state": one.state, "time": one.time, "reason": one.reason} for one in states],
    }
    held, commands = service.queue.is_held, service.commands_in_force(job)
    return record(job, address) | view(job, commands, held=held) | more
