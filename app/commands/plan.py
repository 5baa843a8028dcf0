"""The command `plan`, which shows the device memory that a video would need, stage by stage."""

import argparse
import json
import logging
import os
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from app.commands.arguments import (
    EXIT_BAD_INPUT,
    Commands,
    add_command,
    add_settings,
    aligned,
    argument,
    command_words,
    error_line,
    flag,
    settings_from,
    switch,
)
from app.jobs.stdio import complain, say
from app.machine import machine_of_card, this_local, this_machine, this_profile
from diffusers_helper.conditions.picture_file import load_picture
from diffusers_helper.conditions.pictures import load_named, picture_warning
from diffusers_helper.conditions.times import time_notes
from diffusers_helper.errors import InputError, LongtakeError
from diffusers_helper.events import STAGES
from diffusers_helper.machine.local import DiskSpeeds, Local
from diffusers_helper.machine.sysfs import host_memory
from diffusers_helper.models.registry import ModelInfo, find_model
from diffusers_helper.planning.budget import DoesNotFit
from diffusers_helper.planning.cards.speeds import MEASURED
from diffusers_helper.planning.profiles import FAMILIES, Profile, profile_in_force
from diffusers_helper.planning.set_ups import recommend
from diffusers_helper.planning.times import expected_times, forecast
from diffusers_helper.planning.video import VideoPlan, plan_video
from diffusers_helper.request import GenerationRequest
from diffusers_helper.units import compared_gb, count_text, gb_text

_log = logging.getLogger(__name__)
_UNKNOWN_SHAPE = (
    "Without --image and --shape, the plan is for {}x{} pixels, the shape that needs the most memory."
)
_HEADER = ("stage", "model", "runs", "resident", "streamed", "peak", "copied in total")


def add_plan(commands: Commands) -> None:
    add_command(
        commands, "plan", print_plan,
        lambda parser: add_settings(parser, excluded=("seed",)),
        argument(
            "--card", metavar="FAMILY:GB",
            help=f"plan for another machine, such as gfx1100:24; families: {', '.join(FAMILIES)}",
        ),
        switch(
            "--recommended",
            "choose resolution, weight type and preserved memory for the card, and plan with them",
        ),
        switch("--json", "print the plan as one JSON object"),
        description="Show which weights stay on the device, which are streamed, and the predicted peak of\n"
        "each stage. Nothing is loaded, so neither a GPU nor the model's files are needed.",
        epilog="exit codes: 0 the video fits, 1 failed, 2 the video does not fit or the command is invalid.",
    )  # fmt: skip


def print_plan(arguments: argparse.Namespace) -> int:
    info = find_model(arguments.model, allow_folder=True)
    settings = {**info.default_settings, **settings_from(arguments)}
    request = GenerationRequest.from_dict({**settings, "image": arguments.image or "none"})
    is_elsewhere = arguments.card is not None
    # The main memory and the measurements of another machine are not known.
    local = Local(os.environ) if is_elsewhere else this_local(os.environ)
    machine = machine_of_card(arguments.card) if is_elsewhere else this_machine(os.environ)
    profile = profile_in_force(machine, local)
    free_ram_bytes = None if is_elsewhere else host_memory().available or None
    plan_here = planner_of(profile, local, free_ram_bytes)
    is_shape_known = bool(arguments.image or arguments.shape)

    def plan_of(request: GenerationRequest, info: ModelInfo, **options: Any) -> VideoPlan:
        shape = _shape(arguments.image or "", request, info) if is_shape_known else None
        return plan_here(request, info, shape=shape, **options)

    try:
        recommendation = recommend(request, info, plan_of) if arguments.recommended else None
        plan = recommendation.set_up.plan if recommendation else plan_of(request, info)
        warning = picture_warning(request.mode, info) if request.end_image else ""
        shape_note = "" if is_shape_known else _UNKNOWN_SHAPE.format(plan.width, plan.height)
        has_picture = not request.is_from_words
        remark = info.remark(plan.height, plan.width, has_picture=has_picture, sections=plan.sections)
        notes = *plan.notes, shape_note, *time_notes(request, info.family), warning, remark
        plan = replace(plan, notes=tuple(filter(None, notes)))
    except DoesNotFit as error:
        if arguments.json:
            refusal = {
                "fits": False, "message": command_words(error.message),
                "remedies": [*map(command_words, error.remedies)],
                "stage": error.stage, "smallest_cap_bytes": error.smallest_cap_bytes,
            }  # fmt: skip
            say(json.dumps(refusal))
        complain(error_line(error))
        return EXIT_BAD_INPUT
    used_info = recommendation.set_up.info if recommendation else info
    if arguments.json:
        recommended = {}
        if recommendation is not None:
            recommended = {
                "recommended": recommendation.set_up.settings, "recommended_words": recommendation.words,
            }  # fmt: skip
        say(json.dumps(_as_json(plan, profile, used_info) | recommended))
        return 0
    if recommendation is not None:
        settings = recommendation.set_up.settings.items()
        words = " ".join(f"{flag(name)} {value}" for name, value in settings if value is not None)
        say(recommendation.words, f"As arguments: {words}", "")
    say(*_as_lines(plan, profile, used_info))
    return 0


def planner_of(profile: Profile, local: Local, free_ram_bytes: int | None) -> Callable[..., VideoPlan]:
    speed = DiskSpeeds(local.disks).measure
    return partial(plan_video, profile=profile, local=local, free_ram_bytes=free_ram_bytes, disk_speed=speed)


def check_plan(request: GenerationRequest, image: str | bytes | None = None) -> None:
    """Refuse a request that this machine cannot carry out, before a folder is made for it.

    The check is that of the command `plan` and of the page. Requests that cannot be planned here are left to
    the engine: those for a card whose size only its driver knows, and for a model whose files cannot be read.

    Args:
        image: The picture, or its path, if it is not that of the request.
    """
    info = find_model(request.model, allow_folder=True)
    shape = _shape(image or request.image, request, info)
    try:
        plan_video(request, info, this_profile(os.environ), shape=shape, local=this_local(os.environ))
    except InputError:
        raise
    except LongtakeError as error:
        _log.info("the plan is left to the engine: %s", error)


def tell_times(request: GenerationRequest, place: str = "") -> None:
    """Tell of times in a request that do not do what was written, before anything starts."""
    for note in time_notes(request, find_model(request.model, allow_folder=True).family):
        complain(f"{place}{note}")


def _shape(image: str | bytes, request: GenerationRequest, info: ModelInfo) -> tuple[int, int]:
    if not image:
        return info.shape_of(request, None)
    picture = load_named(request, "image", image) if isinstance(image, str) else load_picture(image)
    return info.shape_of(request, (picture.height, picture.width))


def _as_json(plan: VideoPlan, profile: Profile, info: ModelInfo) -> dict[str, Any]:
    times = forecast(plan, profile, info)
    stages = expected_times(plan, profile, info, is_first=True)
    job = plan.job
    fewest = plan.fewest_copies and plan.fewest_copies.budget.preserved_bytes
    saved = plan.fewest_copies and plan.saved_bytes
    return {
        "fits": True,
        "profile": profile.family,
        "device": profile.machine.name,
        **{name: getattr(plan, name) for name in ("height", "width", "sections", "frames")},
        "total_bytes": job.budget.total_bytes,
        "cap_bytes": job.budget.cap_bytes,
        "preserved_bytes": job.preserved_bytes,
        "reserve_bytes": job.budget.reserve_bytes,
        "peak_bytes": job.peak_bytes,
        "smallest_cap_bytes": job.smallest_cap_bytes,
        "vae_tile_px": job.vae_tile_px,
        "keep_all_resident": job.keep_all_resident,
        "weight_dtype": plan.weight_dtype,
        "attention": plan.attention.value,
        "attention_reason": plan.attention.reason,
        "times": times and asdict(times) | {"is_measured": times.step.source == MEASURED},
        "first_job_stages": {name: asdict(expected) for name, expected in stages.items()},
        "seconds_per_step": plan.seconds_per_step,
        "streamed_bytes_per_step": plan.step_bytes,
        "disk_bytes_per_step": plan.disk_bytes,
        "copy_seconds_per_step": plan.copy_seconds if plan.bus else None,
        "bus": asdict(plan.bus) if plan.bus else None,
        "copies": asdict(plan.copies) if plan.copies else None,
        "notes": list(plan.notes),
        "fewest_copies_preserved_bytes": fewest,
        "fewest_copies_save_bytes": saved,
        # The names in earlier versions
        "automatic_preserved_bytes": fewest,
        "automatic_saves_bytes": saved,
        "stages": [  # in earlier versions, a model could leave for another one ("evict")
            {**asdict(stage), **asdict(cost), "evict": [], "on_second_card": job.of(stage.stage) is not job}
            for stage, cost in zip(job.all_stages, plan.costs, strict=True)
        ],
    }


def _as_lines(plan: VideoPlan, profile: Profile, info: ModelInfo) -> list[str]:
    job = plan.job
    budget = plan.job.budget
    rows: list[tuple[str, ...]] = [_HEADER]
    for stage, cost in zip(job.all_stages, plan.costs, strict=True):
        streamed = f"{gb_text(stage.streamed_bytes)} per pass" if stage.streamed_bytes else "-"
        rows.append(
            (
                stage.stage, stage.model, str(cost.runs), gb_text(stage.resident_bytes), streamed,
                gb_text(stage.peak_bytes), gb_text(cost.copied_bytes),
            )
        )  # fmt: skip
    table = aligned(rows)
    cap, smallest_cap = compared_gb(budget.cap_bytes, job.smallest_cap_bytes)
    head = [
        f"{info.title}: {plan.width}x{plan.height}, {count_text(plan.sections, 'section')}, "
        f"{count_text(plan.frames, 'frame')}, on {profile.machine.name} (profile {profile.family}).",
        f"Cap {cap} of {gb_text(budget.total_bytes)} GB, preserved "
        f"{gb_text(job.preserved_bytes)} GB, reserve {gb_text(budget.reserve_bytes)} GB, VAE tiles of "
        f"{job.vae_tile_px} pixels. All figures are in GB.",
    ]
    reasons = [
        f"{STAGES[stage.stage].network}: {stage.reason}" for stage in job.all_stages if stage.streamed_blocks
    ]
    attention = plan.attention
    times = forecast(plan, profile, info)
    tail = [
        f"Attention: {attention.value} ({attention.reason}; {attention.source}).",
        f"Predicted peak {gb_text(job.peak_bytes)} GB; the smallest cap that works is {smallest_cap} GB.",
        *reasons,
        times.text if times else "How long a step takes here is not known before the first job.",
        *([plan.streaming] if plan.streaming else []),
        *([plan.preserved_text] if plan.preserved_text else []),
        *plan.notes,
    ]
    return [*head, "", *table, "", *tail]
