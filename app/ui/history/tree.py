"""The tree of a video's branches, as plain data for the page."""

from __future__ import annotations

from typing import Any

from app.jobs.history import Twig
from app.jobs.job import Job
from app.jobs.view import WORDS
from app.ui.live.scene import file_url
from diffusers_helper.models.registry import plan_of
from diffusers_helper.provenance.branch import count_kept
from diffusers_helper.provenance.job_folder import JobFolder
from diffusers_helper.units import count_text

Shown = dict[str, Any]
_MOST_WORDS = 80  # characters of a prompt beneath a branch


def tree(twigs: list[Twig], opened: str) -> Shown | None:
    """Return the tree with a row for each job, which has the sections of its own; None for a single job.

    Args:
        twigs: The jobs, each after the one that it was branched from.
        opened: The id of the job that is opened.
    """
    if len(twigs) < 2:
        return None
    rows = [_row(twig, twigs[twig.parent].job, opened) for twig in twigs]
    return {
        "columns": max(row["begin"] + len(row["cells"]) - 1 for row in rows),
        "isInverted": twigs[0].job.request.mode == "inverted",  # then the end of the video comes first
        "rows": rows,
    }


def _row(twig: Twig, parent: Job, opened: str) -> Shown:
    job, kept = twig.job, twig.kept
    folder = JobFolder(job.folder)
    made = count_kept(folder)
    sections = max(made if job.is_over else len(plan_of(job.request)), kept + 1)
    thumbs = [folder.thumbs / f"{number:04}.webp" for number in range(kept + 1, sections + 1)]
    cells = [file_url(job, f"{one.parent.name}/{one.name}") if one.is_file() else None for one in thumbs]
    facts = [
        f"seed {job.request.seed}",
        WORDS[job.state].label,
        job.request.prompt[:_MOST_WORDS] or "No prompt",
    ]
    origin = f"from section {kept} of seed {parent.request.seed}, " if kept else ""
    return {
        "job": job.id,
        "parent": twig.parent,
        "begin": kept + 1,
        "cells": cells,
        "words": " · ".join(facts),
        "spoken": f"{origin}{', '.join(facts)}, {count_text(made, 'section')}",
        "isOpened": job.id == opened,
    }  # fmt: skip
