"""The origin of the job that `generate` makes: settings, a recipe, sections of a job, or a job itself."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from app.commands.arguments import check_proxies, command_words, given_settings
from app.jobs.job import Job
from app.jobs.service import JobService
from diffusers_helper.errors import InputError
from diffusers_helper.files import given_path
from diffusers_helper.models.hub_cache import network_folder
from diffusers_helper.models.registry import DEFAULT_MODEL, ModelInfo, find_model
from diffusers_helper.output.branch import kept_words
from diffusers_helper.output.job_folder import JobFolder
from diffusers_helper.output.lineage import Lineage
from diffusers_helper.output.recipe import Recipe, read_recipe
from diffusers_helper.picture import load_picture, plain_png
from diffusers_helper.request import GenerationRequest

Origin = Callable[[JobService], Job]


def add_origins(group: argparse._ActionsContainer) -> None:
    """Add the arguments that take a job from somewhere else than new settings."""
    group.add_argument(
        "--resume",
        metavar="JOB",
        help="continue a job of --out that was interrupted, has failed or was cancelled, instead of making a "
        "new video; the job keeps its picture, prompt and settings",
    )
    group.add_argument(
        "--recipe",
        metavar="FILE",
        help="make the video again whose recipe is in FILE, an MP4 or PNG that Longtake wrote, or a job's "
        "request.json; settings that are given replace those of the recipe",
    )
    group.add_argument(
        "--branch",
        metavar="JOB",
        help="make a video that begins with sections of a job of --out, with --keep or --longer; settings "
        "that are given are those of the new sections",
    )
    group.add_argument(
        "--keep", type=int, metavar="N", help="the number of sections that a branch keeps, in order of making"
    )
    group.add_argument(
        "--longer",
        type=float,
        metavar="SECONDS",
        help="make the finished video of --branch longer: a forward video goes on, and an inverted one gets "
        "a new beginning",
    )


def chosen_origin(arguments: argparse.Namespace) -> Origin:
    """Return a function that queues the job which the arguments describe, or that puts it back.

    Raises:
        InputError: If the arguments contradict each other, or cannot be used.
    """
    given = [name for name in ("resume", "recipe", "branch") if getattr(arguments, name)]
    if len(given) > 1:
        raise InputError(
            f"--{given[0]} and --{given[1]} are both given; expected one of them.", "Leave one out."
        )
    if not arguments.branch and (arguments.keep is not None or arguments.longer is not None):
        raise InputError("--keep and --longer belong to --branch, which is missing.", "Give it. See --help.")
    if arguments.resume:
        return lambda service: service.resume(arguments.resume)
    if arguments.branch:
        return _branched(arguments)
    if arguments.recipe:
        return _restored(arguments)
    return _new(arguments)


def _new(arguments: argparse.Namespace) -> Origin:
    for name in ("image", "prompt"):
        if getattr(arguments, name) is None:
            raise InputError(f"`{name}` is missing.", "Give it, or --resume. See --help.", setting=name)
    given = given_settings(arguments)
    model = _model(given)
    given.setdefault("mode", model.modes[0])
    request = GenerationRequest.from_dict(given)
    return lambda service: service.submit(request, allow_folder=True)


def _restored(arguments: argparse.Namespace) -> Origin:
    file = given_path(arguments.recipe, "recipe")
    recipe, given = read_recipe(file), given_settings(arguments)
    for notice in recipe.notices:
        sys.stderr.write(command_words(notice) + "\n")
    image = given.pop("image", None)
    request = recipe.request(image or str(file), **given)
    _model({"model": request.model})
    picture = None if image else _picture_of(recipe, file)
    return lambda service: service.submit(request, allow_folder=True, picture=picture, lineage=recipe.lineage)


def _picture_of(recipe: Recipe, file: Path) -> bytes:
    """Return the start picture of a recipe, or of the job whose `request.json` it is."""
    beside = file.with_name("input.png")
    if recipe.picture is None and not beside.is_file():
        raise InputError(
            f"{file.name} carries no start picture; expected `image`.", "Give the picture too.",
            setting="image",
        )  # fmt: skip
    return plain_png(load_picture(beside if recipe.picture is None else recipe.picture))


def _branched(arguments: argparse.Namespace) -> Origin:
    given = given_settings(arguments)
    keep: int | None = arguments.keep
    longer: float | None = arguments.longer
    if (keep is None) == (longer is None):
        raise InputError("--branch needs either --keep or --longer.", "Give one of them. See --help.")

    def queue(service: JobService) -> Job:
        if keep is not None:
            job = service.branch(arguments.branch, keep, **given)
        else:
            job = service.extend(arguments.branch, longer or 0.0, **given)
        kept = Lineage.read(JobFolder(job.folder).lineage).kept
        sys.stderr.write(kept_words(job.request, kept) + "\n")
        return job

    return queue


def _model(given: dict[str, Any]) -> ModelInfo:
    """Return the model, after a check that it can be downloaded where it is not on this machine."""
    model = find_model(given.get("model", DEFAULT_MODEL), allow_folder=True)
    if network_folder(model.parts["transformer"]) is None:
        check_proxies(os.environ)
    return model
