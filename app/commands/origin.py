"""The origin of the jobs that `generate` makes: settings, a recipe, a batch file, or another job."""

import argparse
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from app.batch import is_table, read_batch, variants
from app.commands.arguments import (
    argument,
    check_proxies,
    command_for,
    command_words,
    exclusive,
    settings_from,
    switch,
    with_lora_paths,
)
from app.commands.plan import check_plan, tell_times
from app.commands.terminal import download
from app.jobs.job import Job
from app.jobs.service import JobService
from app.jobs.stdio import complain, say
from app.machine import this_machine
from app.presets import load_preset, presets_folder, save_preset
from diffusers_helper.conditions.picture_file import load_picture, plain_png
from diffusers_helper.conditions.pictures import NO_PICTURES, Contents, read_pictures
from diffusers_helper.errors import InputError, in_words
from diffusers_helper.files import expanded_path
from diffusers_helper.models.downloads import NotHere, absence_of
from diffusers_helper.models.registry import DEFAULT_MODEL, find_model
from diffusers_helper.picture_names import paths_in
from diffusers_helper.provenance.branch import kept_words
from diffusers_helper.provenance.job_folder import JobFolder
from diffusers_helper.provenance.lineage import Lineage
from diffusers_helper.provenance.recipe import Recipe, read_recipe
from diffusers_helper.request import PICTURES, START_PICTURE, GenerationRequest
from diffusers_helper.units import count_text

Origin = tuple[Callable[[JobService], list[Job]], Sequence[GenerationRequest]]
"""What queues the jobs that a command asks for, and their requests, as far as they are known beforehand."""


# The arguments for jobs that do not begin with new settings, for several videos at once, and for presets.
ORIGINS = (
    exclusive(
        argument(
            "--resume", metavar="JOB",
            help="continue a job of --outputs that was interrupted, failed or was cancelled, instead of "
            "making a new video; the job keeps its picture, prompt and settings",
        ),
        argument(
            "--recipe", metavar="FILE",
            help="make again the video whose recipe is in FILE: an MP4 or PNG that Longtake wrote, or a "
            "job's request.json; settings on the command line replace those of the recipe",
        ),
        argument(
            "--branch", metavar="JOB",
            help="make a video that begins with sections of a job of --outputs, with --keep or --longer; "
            "settings on the command line apply to the new sections",
        ),
        argument(
            "--batch", metavar="FILE",
            help="make all videos of FILE: one JSON object of settings per line, or CSV with their names in "
            "the first line; settings on the command line apply to all videos that do not set their own",
        ),
        required=False,
    ),
    argument("--keep", type=int, metavar="N", help="the branch keeps the N sections that were made first"),
    argument(
        "--longer", type=float, metavar="SECONDS",
        help="make the finished video of --branch longer: a forward video continues after its end, and an "
        "inverted one gets a new beginning",
    ),
    argument(
        "--variants", type=int, metavar="N",
        help="make N videos, whose seeds are the given one and those that follow it",
    ),
    switch("--dry-run", "check everything, print what would be made, and exit"),
    argument("--preset", metavar="NAME", help="begin with the settings saved under NAME"),
    argument("--save-preset", metavar="NAME", help="save the given settings under NAME, and exit"),
)  # fmt: skip


def chosen_origin(arguments: argparse.Namespace) -> Origin:
    if arguments.branch is None and (arguments.keep is not None or arguments.longer is not None):
        raise InputError("--keep and --longer need --branch, which is missing.", "Give --branch JOB.")
    if (arguments.resume or arguments.branch) and (arguments.variants or arguments.dry_run):
        raise InputError(
            "--variants and --dry-run cannot be used with --resume or --branch; expected a new video.",
            "Leave them out.",
        )
    if arguments.resume is not None:
        if arguments.resume and (arguments.preset is not None or settings_from(arguments)):
            change = command_for(arguments.outputs, "jobs", "change", arguments.resume)
            raise InputError(
                "Settings are given beside --resume; expected none, as the job continues with its own.",
                f"Leave them out. To change what comes next: {change} SETTINGS",
            )
        return partial(_resume_job, arguments.resume, arguments.wait), ()
    if arguments.branch is not None:
        return _origin_of_branch(arguments)
    if arguments.batch is not None:
        return _origin_of_batch(arguments)
    if arguments.recipe is not None:
        return _origin_of_recipe(arguments)
    return _origin_of_requests(arguments, [request_of(arguments)])


def _chosen_settings(arguments: argparse.Namespace) -> dict[str, Any]:
    settings = dict[str, Any]()
    if getattr(arguments, "preset", None) is not None:
        preset = load_preset(presets_folder(), arguments.preset)
        _report(preset)
        settings = dict(preset.settings)
    return with_lora_paths(settings | settings_from(arguments))


def save_arguments_as_preset(arguments: argparse.Namespace) -> int:
    file = str(save_preset(presets_folder(), arguments.save_preset, _chosen_settings(arguments)))
    say(json.dumps({"preset": file}) if arguments.json else file)
    return 0


def _report(recipe: Recipe) -> None:
    for notice in recipe.notices_on(this_machine(os.environ).card):
        complain(command_words(notice))


def request_of(arguments: argparse.Namespace) -> GenerationRequest:
    settings = _chosen_settings(arguments)
    if "prompt" not in settings:
        raise InputError("`prompt` is missing.", "Give it. See --help.", setting="prompt")
    model = find_model(settings.get("model", DEFAULT_MODEL), allow_folder=True)
    request = GenerationRequest.from_dict({**model.default_settings, **settings})
    check_plan(request)
    provide_model(request.model, arguments)
    return request


def _origin_of_requests(
    arguments: argparse.Namespace, requests: Sequence[GenerationRequest], pictures: Contents = NO_PICTURES,
    lineage: Lineage | None = None,
) -> Origin:  # fmt: skip
    """Queue the variants of all requests, or none of them if one is refused.

    For a dry run, the pictures are read here, and otherwise when the jobs are queued.
    """
    for request in requests if arguments.dry_run else ():
        read_pictures(request, pictures)
        if arguments.batch is None:
            tell_times(request)
    count = 1 if arguments.variants is None else arguments.variants
    all_requests = tuple(variant for request in requests for variant in variants(request, count))

    def queue(service: JobService) -> list[Job]:
        options = {"allow_folder": True, "pictures": pictures, "lineage": lineage, "waits": arguments.wait}
        add = partial(service.queue.add, **options)
        return service.all_or_none(map(add, all_requests))

    return queue, all_requests


def _origin_of_batch(arguments: argparse.Namespace) -> Origin:
    file = expanded_path(arguments.batch, "batch")
    entries = read_batch(file, _chosen_settings(arguments), check_plan, allow_folder=True)
    problems = {line: entry for line, entry in entries.items() if isinstance(entry, str)}
    words = in_words if is_table(file) else command_words  # a table has the names of settings as its columns
    for line, problem in problems.items():
        complain(f"{file.name}, line {line}: {words(problem)}")
    if problems:
        raise InputError(
            f"{count_text(len(problems), 'line')} of {file.name} cannot be used; nothing was started.",
            "Correct what was named.",
        )
    requests = {line: entry for line, entry in entries.items() if not isinstance(entry, str)}
    for line, request in requests.items():
        tell_times(request, f"{file.name}, line {line}: ")
    for model in dict.fromkeys(request.model for request in requests.values()):
        provide_model(model, arguments)
    return _origin_of_requests(arguments, [*requests.values()])


def _resume_job(job_id: str, waits: bool, service: JobService) -> list[Job]:
    job = service.steering.resume(job_id)
    return [service.steering.wait(job_id) if waits else job]


def _origin_of_recipe(arguments: argparse.Namespace) -> Origin:
    file = expanded_path(arguments.recipe, "recipe")
    recipe = read_recipe(file)
    settings = _chosen_settings(arguments)
    _report(recipe)
    paths = paths_in(settings)
    settings = {name: value for name, value in settings.items() if name not in PICTURES}
    recipe = replace(recipe, settings=with_lora_paths({**recipe.settings, **settings}))
    pictures = _pictures_of(recipe, file, replaced=paths)
    request = recipe.request(dict.fromkeys(pictures, str(file)) | paths)
    check_plan(request, pictures.get(START_PICTURE))
    provide_model(request.model, arguments)
    return _origin_of_requests(arguments, [request], pictures, recipe.lineage)


def _pictures_of(recipe: Recipe, file: Path, replaced: Mapping[str, str]) -> dict[str, bytes]:
    """Read the pictures in a recipe, or those beside a `request.json`, which no argument replaces."""
    folder = JobFolder(file.parent)
    names = (*PICTURES, *paths_in(recipe.settings))
    files = {name: folder.picture(name) for name in names if folder.picture(name).is_file()}
    sources = {name: source for name, source in (recipe.pictures or files).items() if name not in replaced}
    if START_PICTURE not in {*sources, *replaced} and recipe.settings.get(START_PICTURE) != "":
        raise InputError(
            f"{file.name} carries no start picture; expected `image`.", "Give the picture, too.",
            setting="image",
        )  # fmt: skip
    return {name: plain_png(load_picture(source)) for name, source in sources.items()}


def _origin_of_branch(arguments: argparse.Namespace) -> Origin:
    settings = _chosen_settings(arguments)
    if (arguments.keep is None) == (arguments.longer is None):
        raise InputError("--branch needs either --keep or --longer.", "Give one of them. See --help.")

    def queue(service: JobService) -> list[Job]:
        job, message = queue_branch(service, arguments.branch, arguments, settings, waits=arguments.wait)
        complain(message)
        return [job]

    return queue, ()


def queue_branch(
    service: JobService, job_id: str, arguments: argparse.Namespace, changes: Mapping[str, Any], *,
    waits: bool,
) -> tuple[Job, str]:  # fmt: skip
    check_changes_of(service, job_id, changes)
    if arguments.keep is not None:
        job = service.queue.branch(job_id, arguments.keep, waits=waits, **changes)
    else:
        job = service.queue.extend(job_id, arguments.longer, waits=waits, **changes)
    return job, kept_words(job.request, Lineage.read(JobFolder(job.folder).lineage).kept)


def check_changes_of(service: JobService, job_id: str, changes: Mapping[str, Any] | None = None) -> None:
    request = GenerationRequest.from_dict({**asdict(service.job(job_id).request), **(changes or {})})
    check_plan(request)
    if changes:
        tell_times(request)


def provide_model(name: str, arguments: argparse.Namespace) -> None:
    model = find_model(name, allow_folder=True)
    absence = absence_of(model)
    if absence is not None:
        check_proxies()
        if not (arguments.yes and absence.has_room):
            raise NotHere(absence)
        if not getattr(arguments, "dry_run", False):  # `jobs add` has none
            download(model, as_json=False)
