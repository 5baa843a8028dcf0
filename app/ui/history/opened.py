"""The plain data of one video of the history: its records, and the branches that it can have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from app.jobs.job import Job, allows
from app.jobs.service import JobService
from app.jobs.view import WORDS
from app.ui.errors import page_words
from app.ui.history.cards import card
from app.ui.live.present import Presenter
from app.ui.live.scene import file_url
from diffusers_helper.families.packing import MAX_SECONDS
from diffusers_helper.models.registry import family_of, plan_of
from diffusers_helper.provenance.branch import count_kept, keepable, kept_words, why_fixed
from diffusers_helper.provenance.job_folder import JobFolder
from diffusers_helper.provenance.recorded import names_of
from diffusers_helper.request import SETTINGS, GenerationRequest
from diffusers_helper.units import size_text

Shown = dict[str, Any]


class Opener:
    """A source of data about single videos of one service."""

    def __init__(self, service: JobService) -> None:
        self._service, self._presenter = service, Presenter(service)

    def open(self, job_id: str) -> Shown:
        """Return everything that the page shows of one video.

        Raises:
            NoSuchJob: If there is no job with that id.
        """
        job, family = self._service.job(job_id), self._service.history.family(job_id)
        shown = self._presenter.show_job(job_id)
        sentences = filter(None, (shown["headline"], shown["remark"]))
        return shown | {
            "preview": None,  # only the stage shows it
            "plays": True,
            "words": "beside",  # this tab has the whole width
            "cells": [_with_thumbnail(job, cell) for cell in shown["cells"]],
            "card": self.card(job),
            "isResumable": allows(job, "resume"),
            # A finished video speaks for itself, and the words about a queued one are about the stage.
            "note": "" if job.state in ("finished", "queued") else ". ".join(sentences),
            "states": self._states(job),
            "files": files(job),
            "parent": family.parent and self.card(family.parent),
            "children": [self.card(child) for child in family.children],
            "branch": branch_facts(job),
        }

    def card(self, job: Job) -> Shown:
        """Return the data of a job's card."""
        return card(job, self._service.commands(job))

    def _states(self, job: Job) -> list[Shown]:
        return [
            {
                "state": one.state,
                "label": WORDS[one.state].label,
                "time": one.time or None,
                "reason": page_words(one.reason, job.folder.parent),
            }
            for one in self._service.history.transitions(job.id)
        ]


# The settings of a branch that have separate fields in its form.
_OWN_FIELDS = ("prompt", "seconds", "seed")


def _with_thumbnail(job: Job, cell: Shown) -> Shown:
    """Return a section with its thumbnail. No event names the thumbnail of a section that a branch kept."""
    thumb = JobFolder(job.folder).thumbs / f"{cell['number']:04}.webp"
    if cell["thumb"] or not cell["isDone"] or not thumb.is_file():
        return cell
    return cell | {"thumb": file_url(job, f"{thumb.parent.name}/{thumb.name}")}


def files(job: Job) -> list[Shown]:
    """Return the files of a job that a user may want, and the total size of the others."""
    folder = JobFolder(job.folder)
    own = [folder.input, folder.first, folder.log, *([job.video] if job.video else [])]
    listed = [
        {"name": file.name, "size": size_text(size), "url": file_url(job, file.name)}
        for file in own
        if (size := _size(file)) is not None
    ]
    rest = sum(_size(file) or 0 for file in folder.path.rglob("*") if file not in own)
    return [*listed, {"name": "latents, segments and records", "size": size_text(rest), "url": None}]


def _size(file: Path) -> int | None:
    try:
        return file.stat().st_size if file.is_file() else None
    except OSError:
        return None


def _control(name: str, value: Any) -> Shown:
    """Return the data for the field of a setting that a branch may change."""
    setting = SETTINGS[name]
    numeric = {"low": setting.low, "high": setting.high, "step": setting.step} if setting.is_number else {}
    return {
        "name": name,
        "label": setting.label,
        "value": value,
        "choices": list(setting.choices.items()),
        **numeric,
    }


_NONE_KEPT = "No section of this video was finished, so there is nothing to continue from."
_ONE_SECTION = (
    "This video has one section, which begins with the picture, and its order makes the end first, so "
    "nothing can come before it. Make the video in forward order to continue it."
)


def _why_not_longer(most: int, *, is_whole: bool, has_room: bool) -> str:
    """Return why a video cannot be made longer, or "" if it can."""
    if not is_whole:
        return "Only a video whose sections are all finished can be made longer."
    if most < 1:
        return _ONE_SECTION
    return "" if has_room else f"A video can have at most {MAX_SECONDS:g} s."


def _longer_words(request: GenerationRequest, keep: int) -> str:
    """Return a sentence about where the new part of a longer video comes."""
    if request.mode == "forward":
        return "The video is kept, and continues after its end."
    return f"{kept_words(request, keep)} Only forward order continues after the end."


def branch_facts(job: Job) -> Shown:
    """Return what a branch of a job can keep and change, and why its other settings are fixed."""
    folder, request = JobFolder(job.folder), job.request
    sections, found = len(plan_of(request)), count_kept(folder)
    most = min(found, keepable(request))
    fixed = {name: reason for name in SETTINGS if (reason := why_fixed(name))}
    reasons: dict[str, list[str]] = {}
    for name, reason in fixed.items():
        reasons.setdefault(reason, []).append(SETTINGS[name].short_label)
    family = family_of(request.model)
    longest, plain = (len(family.plan(seconds, request.mode)) for seconds in (MAX_SECONDS, request.seconds))
    longest, each = longest - plain, family.section_seconds
    further = [name for name in names_of("section") if name not in _OWN_FIELDS]
    return {
        "whyNot": "" if most > 0 else _NONE_KEPT if not found else _ONE_SECTION,
        "whyNotLonger": _why_not_longer(most, is_whole=found >= sections, has_room=longest > 0),
        "isInverted": request.mode == "inverted",
        "kept": [kept_words(request, keep) for keep in range(1, most + 1)],
        "prompt": request.prompt,
        "seed": str(request.seed),  # a browser's numbers have gaps above 2^53
        "seconds": request.seconds,
        "further": [_control(name, getattr(request, name)) for name in further],
        "section": each,
        "longer": round(longest * each, 1) if found >= sections and most else 0,
        "keptByLonger": _longer_words(request, most) if most > 0 else "",
        "fixed": [f"{', '.join(labels)}: {reason}" for reason, labels in reasons.items()],
    }
