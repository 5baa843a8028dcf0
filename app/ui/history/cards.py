"""The plain data of the history's cards, one per video. The browser inserts it as text only."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

from app.jobs.job import Command, Job
from app.jobs.view import WORDS, view
from app.ui.live.scene import download_name, file_url
from diffusers_helper.models.registry import family_of, find_model, model_names
from diffusers_helper.provenance.job_folder import JobFolder

_MOST_WORDS = 300  # characters of a prompt on a card; the opened video shows all of them
_THUMB = re.compile(r"\d{4,9}\.webp")

Shown = dict[str, Any]


def card(job: Job, commands: Collection[Command] = ()) -> Shown:
    """Return the data of a job's card, given the commands for it if it is being made."""
    seconds = job.frames / family_of(job.request.model).fps
    return view(job, commands) | {
        "job": job.id,
        "state": job.state,
        "sentence": "" if job.state == "finished" else WORDS[job.state].label,
        "words": job.request.prompt[:_MOST_WORDS],
        "seconds": round(seconds, 2) if job.frames else None,
        "seed": str(job.request.seed),  # a browser's numbers have gaps above 2^53
        "created": job.created,
        "model": model_title(job.request.model),
        "favourite": job.favourite,
        "still": _still(job),
        "video": None if job.video is None else f"{file_url(job, job.video.name)}?v={job.frames}",
        "name": download_name(
            job.request.prompt, job.id, 0 if job.state == "finished" else job.frames
        ),
    }  # fmt: skip


def model_title(model: str) -> str:
    """Return a model's title, given its name in a request. The title of a folder is its last part."""
    return find_model(model).title if model in model_names() else Path(model).name


def _still(job: Job) -> str:
    """Return the address of the thumbnail of the video's first section, or of the start picture, or ""."""
    folder = JobFolder(job.folder)
    try:
        names = sorted(path.name for path in folder.thumbs.iterdir() if _THUMB.fullmatch(path.name))
    except OSError:  # no section has been finished yet
        names = []
    if not names:
        return "" if job.request.is_from_words else file_url(job, folder.input.name)
    name = names[-1 if job.request.mode == "inverted" else 0]
    return file_url(job, f"{folder.thumbs.name}/{name}")
