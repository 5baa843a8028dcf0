"""The calls of the History tab, and the plain data of its cards and of an opened video."""

from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import Field
from starlette.responses import StreamingResponse
from typing_extensions import TypedDict

from app.jobs.history import Stack, TreeNode
from app.jobs.job import Command, Job
from app.jobs.service import JobService
from app.jobs.view import GROUPS, WORDS, states_named, view
from app.ui.api import zip_answer
from app.ui.catalogue import Catalogue
from app.ui.errors import page_words
from app.ui.form.settings import Restored, RestoredForm, continuation_of
from app.ui.live.scene import Presenter, download, file_url, start_picture, thumb_url, video_url
from diffusers_helper.families.packing import MAX_SECONDS
from diffusers_helper.models.registry import find_model, model_family, model_names, plan_of
from diffusers_helper.provenance.branch import kept_words, max_kept_sections, num_finished_sections
from diffusers_helper.provenance.job_folder import JobFolder
from diffusers_helper.provenance.lineage import setting_names
from diffusers_helper.provenance.zips import file_entry, stored_zip
from diffusers_helper.request import SETTINGS
from diffusers_helper.units import count_text, size_text

# Characters of a prompt on a card and beneath a branch; the opened video shows all of them.
_MOST_WORDS, _MOST_TREE_WORDS = 300, 80
Shown = dict[str, Any]
MOST_CARDS = 200
_MOST_STATES = 20
_NO_VIDEO = "There is no video yet. Make one in the Create tab, and it appears here."


def card(job: Job, commands: Collection[Command], stack: Stack | None = None) -> Shown:
    """Gather the data of a job's card, which stands for all jobs of a stack."""
    named = download(job)
    length = f"{job.frames / plan_of(job.request).fps:.2f} s" if job.frames else ""
    return view(job, commands) | {
        "job": job.id,
        "state": job.state,
        "sentence": "" if job.state == "finished" else WORDS[job.state].label,
        "words": job.request.prompt[:_MOST_WORDS],
        "length": "Picture" if length and job.request.one_frame else length,
        "seed": str(job.request.seed),  # a browser's numbers have gaps above 2^53
        "created": job.created,
        "newest": stack.newest if stack else job.created,
        "root": stack.root if stack and stack.count > 1 else "",
        "versions": stack.count if stack else 1,
        "bytes": (named and _size(named[1])) or 0,
        "model": job.request.finishing.summary if job.request.finishing else model_title(job.request.model),
        "favourite": job.favourite,
        "still": _still(job),
        "video": video_url(job),
    }


def model_title(model: str) -> str:
    """Find a model's title by its name in a request. The title of a folder is its last part."""
    return find_model(model).title if model in model_names() else Path(model).name


def _still(job: Job) -> str:
    number = 1
    with suppress(OSError):
        number = num_finished_sections(JobFolder(job.folder)) if job.request.mode == "inverted" else 1
    return thumb_url(job, number) or start_picture(job) or ""


# The settings of a branch that have separate fields in its form.
_OWN_FIELDS = ("prompt", "seconds", "seed")


def files(job: Job) -> list[Shown]:
    folder = JobFolder(job.folder)
    paths = [folder.input, folder.first, folder.log, *([job.video] if job.video else [])]
    listed = [
        {"name": file.name, "size": size_text(size), "url": file_url(job, file.name)}
        for file in paths
        if (size := _size(file)) is not None
    ]
    rest = sum(_size(file) or 0 for file in folder.path.rglob("*") if file not in paths)
    return [*listed, {"name": "latents, segments and records", "size": size_text(rest), "url": None}]


def _size(file: Path) -> int | None:
    try:
        return file.stat().st_size if file.is_file() else None
    except OSError:
        return None


def _control(name: str, value: Any) -> Shown:
    setting = SETTINGS[name]
    return {
        "name": name, "label": setting.label, "value": value, "choices": list(setting.choices.items()),
        "low": setting.low, "high": setting.high, "step": setting.step,
    }  # fmt: skip


_NONE_KEPT = "No section of this video was finished, so there is nothing to continue from."
_ONE_SECTION = (
    "This video has one section, which begins with the picture, and its order makes the end first, so "
    "nothing can come before it. Make the video in forward order to continue it."
)

_ONE_PICTURE = "This is one picture. To make a video of it, take it into the form."


def branch_facts(job: Job) -> Shown:
    folder, request = JobFolder(job.folder), job.request
    sections, num_sections = len(plan_of(request)), num_finished_sections(folder)
    most = min(num_sections, max_kept_sections(request))
    family = model_family(request.model)
    plan = family.plain_sections(request)
    longest, each = len(family.plain_sections(request, MAX_SECONDS)) - len(plan), plan.section_seconds
    kept_by_longer = f"Adds time at the start; the last {most * each:.1f} s stay."
    if request.mode == "forward":
        kept_by_longer = "Adds time after the end; the video stays."
    unit = _ONE_PICTURE if request.one_frame else _ONE_SECTION
    why_not_longer = unit if most < 1 else "" if longest else f"A video can have at most {MAX_SECONDS:g} s."
    if num_sections < sections:
        why_not_longer = "Only a video whose sections are all finished can be made longer."
    further = [name for name in setting_names("section") if name not in _OWN_FIELDS]
    return {
        "whyNot": "" if most > 0 else _NONE_KEPT if not num_sections else unit,
        "whyNotLonger": why_not_longer,
        "kept": [kept_words(request, keep) for keep in range(1, most + 1)],
        "prompt": request.prompt,
        "seed": str(request.seed),  # a browser's numbers have gaps above 2^53
        "seconds": request.seconds,
        "further": [_control(name, getattr(request, name)) for name in further],
        "section": each,
        "longer": round(longest * each, 1) if num_sections >= sections and most else 0,
        "keptByLonger": kept_by_longer,
    }


def _tree(twigs: list[TreeNode], opened: str) -> Shown | None:
    """Lay out the tree with a row for each job, which has the sections of its own; None for a single job."""
    if len(twigs) < 2:
        return None
    rows = [_tree_row(twig, twigs[twig.parent].job, opened) for twig in twigs]
    return {
        "columns": max(row["begin"] + len(row["cells"]) - 1 for row in rows),
        "isInverted": twigs[0].job.request.mode == "inverted",  # then the end of the video comes first
        "rows": rows,
    }


def _tree_row(twig: TreeNode, parent: Job, opened: str) -> Shown:
    job, kept = twig.job, twig.num_kept_sections
    try:
        made = num_finished_sections(JobFolder(job.folder))
    except OSError:  # this folder cannot be read now, but the others can
        made = 0
    finishing = job.request.finishing
    sections = max(made if job.is_over or finishing else len(plan_of(job.request)), kept + 1)
    facts = [
        finishing.summary if finishing else f"seed {job.request.seed}",
        WORDS[job.state].label,
        job.request.prompt[:_MOST_TREE_WORDS] or "No prompt",
    ]
    origin = f"from section {kept} of seed {parent.request.seed}, " if kept else ""
    return {
        "job": job.id,
        "parent": twig.parent,
        "begin": kept + 1,
        "cells": [thumb_url(job, number) for number in range(kept + 1, sections + 1)],
        "words": " · ".join(facts),
        "spoken": f"{origin}{', '.join(facts)}, {count_text(made, 'section')}",
        "isOpened": job.id == opened,
    }  # fmt: skip


class CardsPage(TypedDict):
    cards: list[Shown]
    next: str
    total: int
    say: str
    none: str
    models: list[str]


class HistoryCalls:
    def __init__(self, service: JobService, catalogue: Catalogue) -> None:
        self._service, self._catalogue = service, catalogue
        self._presenter = Presenter(service)

    def history_search(
        self,
        text: str = "",
        states: Annotated[list[str] | None, Field(max_length=_MOST_STATES)] = None,
        model: str = "",
        min_seconds: float | None = None,
        max_seconds: float | None = None,
        favourites: bool = False,
        before: str = "",
        limit: int = 24,
        stacked: bool = False,
        root: str = "",
    ) -> CardsPage:
        """List the videos that meet all given conditions, newest first, as the page's cards show them.

        `cards` has at most `limit` of them, `next` is the argument `before` for the next page, `total` is
        their number on all pages, `say` and `none` are sentences about it, and `models` are the possible
        values of `model`. With `stacked`, one card stands for a video and its branches, of which there are
        `versions`; these are listed if its `root` is passed.
        """
        history = self._service.history
        models = history.models()
        wanted = [key for key in models if model_title(key) == model] or [model]
        result = history.search(
            text, states=states_named(states), models=wanted if model else [], min_seconds=min_seconds,
            max_seconds=max_seconds, favourites=favourites, stacked=stacked, root=root, before=before,
            limit=max(1, min(MOST_CARDS, limit)),
        )  # fmt: skip
        usual = not states or tuple(states) == GROUPS["All videos"]
        is_narrowed = bool(text.strip() or model or min_seconds or max_seconds or favourites) or not usual
        none = "No video matches this search." if is_narrowed else _NO_VIDEO
        return {
            "cards": [
                card(job, self._service.commands(job), result.stacks.get(job.id)) for job in result.jobs
            ],
            "next": result.next,
            "total": result.total,
            "say": f"{result.total:,} {'video' if result.total == 1 else 'videos'}" if result.total else "",
            "none": "" if result.total else none,
            "models": sorted({model_title(key) for key in models}),
        }

    def jobs_scene(self, job: str) -> Shown:
        """Tell what the page's stage shows of a job: video, sections, figures, settings and memory."""
        return self._presenter.show_job(job)

    def history_open(self, job: str) -> Shown:
        """Gather everything that the page shows of one video, with its states, files and tree of branches."""
        record = self._service.job(job)
        data = self._presenter.show_job(job)
        states = [
            {
                "state": transition.state,
                "label": WORDS[transition.state].label,
                "time": transition.time or None,
                "reason": page_words(transition.reason, record.folder.parent),
            }
            for transition in self._service.history.transitions(job)
        ]
        return data | {
            "preview": None,  # only the stage shows it
            "plays": True,
            "words": "beside",  # this tab has the whole width
            "card": card(record, self._service.commands(record)),
            "states": states,
            "files": files(record),
            "tree": _tree(self._service.history.tree(job), job),
            "branch": branch_facts(record),
        }

    def history_settings(self, job: str) -> RestoredForm:
        """Give the settings of a video for the form, and the names of its pictures among the uploads."""
        return Restored.of_job(self._service.job(job), self._catalogue).to_dict()

    def history_continue(self, job: str) -> RestoredForm:
        """Return settings for the form that continue a finished video after its end."""
        return continuation_of(self._service.job(job), self._catalogue).to_dict()


def add_zip(router: APIRouter, service: JobService) -> None:
    @router.get("/history/zip")
    def history_zip(jobs: Annotated[list[str], Query(max_length=MOST_CARDS)]) -> StreamingResponse:
        """Send the files of finished or unfinished videos as one ZIP file."""
        files = [file_entry(*named) for job in jobs if (named := download(service.job(job)))]
        return zip_answer("longtake.zip", stored_zip(files))
