"""The command `tune`, which finds the fastest rung of the convolution ladder for a VAE on this card."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from app.commands.arguments import (
    EXIT_FAILED,
    Parser,
    add_command,
    add_find_mode,
    add_setting,
    apply_engine_environment,
    apply_find_mode,
    argument,
    single_run,
    switch,
)
from app.jobs.stdio import say
from app.machine import this_profile
from app.miopen import routes_folder
from app.starting import EXIT_CANCELLED
from app.trials import try_candidates
from diffusers_helper.errors import InputError
from diffusers_helper.families.packing import plan_sections
from diffusers_helper.machine.routes import Case, RouteStore, Task
from diffusers_helper.machine.terminal import one_line
from diffusers_helper.models.registry import find_model
from diffusers_helper.request import SETTINGS
from diffusers_helper.units import count_text

if TYPE_CHECKING:
    import torch

    from cache.conv_rungs import ConvCase
    from diffusers_helper.loading.loaders import Models

_DESCRIPTION = """\
Time the ways to compute each convolution of a model's VAE, and remember the fastest one that gives the
right result. Videos made from then on use it. Ctrl-C stops; the same command continues where it stopped.
"""
# A video of this length has sections of every length.
_SECONDS = 8.0


def add_tune(commands: argparse._SubParsersAction[Parser]) -> None:
    add_command(
        commands, "tune", tune,
        lambda parser: add_setting(parser, "model"),
        lambda parser: add_setting(parser, "resolution"),
        argument("--aspect", default="1:1", metavar="W:H", help="shape of the picture (default: 1:1)"),
        switch("--again", "measure everything again, including ways that ended a process"),
        switch("--json", "print only one JSON object"),
        add_find_mode,
        help="find the fastest convolutions for this card", description=_DESCRIPTION,
    )  # fmt: skip


def tune(arguments: argparse.Namespace) -> int:
    info = find_model(arguments.model, allow_folder=True)
    side = SETTINGS["resolution"].check(arguments.resolution) or info.side
    width, height = _aspect(arguments.aspect)
    height, width = info.family.nearest_bucket(height, width, side, info.multiple)
    with single_run("tune", routes_folder(), "Set XDG_CACHE_HOME to another place."):
        apply_find_mode(arguments)
        apply_engine_environment()  # so that the timed convolutions are those that an engine runs
        try:
            _say(f"Loading the VAE of {info.name}; videos of {width}x{height} pixels")
            from diffusers_helper.loading.loaders import load_models  # importing torch takes seconds

            models = load_models(info)
            cases = _cases(models, height, width)
            results = _measure_all(cases, models.device, arguments.again)
        except KeyboardInterrupt:
            _say("Stopped. The measurements so far are kept, and tune without --again continues from here.")
            return EXIT_CANCELLED
    facts = {"model": info.name, "height": height, "width": width}
    _report(results, arguments.json, facts, cases[0])
    return 0 if all(result["rung"] for result in results) else EXIT_FAILED


def _cases(models: Models, height: int, width: int) -> list[ConvCase]:
    """List the distinct convolutions of encoding a picture and decoding sections of every length.

    They have the dtype and the tile that the profile selects.
    """
    from diffusers_helper.families.packing import DEFAULT_CHUNK, window_sizes
    from diffusers_helper.vae.convolutions import conv_cases
    from diffusers_helper.vae.passes import DTYPES

    profile = this_profile(os.environ)
    chosen_dtype = DTYPES.get(profile.vae_dtype.value)
    dtype = chosen_dtype or models.compute_dtype("vae") or models.stored_dtype("vae")
    lengths = {
        (section.decoded_frames + 3) // 4
        for mode in ("inverted", "forward")
        for section in plan_sections(_SECONDS, mode=mode)
    }
    windows = {size for n in lengths for size in window_sizes(n, DEFAULT_CHUNK).values()}
    vae, device = models.component("vae"), models.device
    return list(conv_cases(vae, dtype, device, height, width, windows, profile.vae_tile.value))


def _measure_all(cases: list[ConvCase], device: torch.device, again: bool) -> list[dict[str, Any]]:
    from cache.conv_probe import trials

    routes = RouteStore(routes_folder())
    tasks = trials(cases, routes, again=again)
    if len(tasks) < len(cases):
        _say(f"{len(cases) - len(tasks)} of {len(cases)} shapes have been measured before")
    bar = tqdm(
        total=len(tasks), file=sys.stderr, disable=None, dynamic_ncols=True,
        bar_format="{desc} {percentage:3.0f}%|{bar}| {elapsed} so far, {remaining} to go",
    )  # fmt: skip
    num_measured = 0

    def on_result(task: Task, candidate: str, result: Mapping[str, Any]) -> None:
        nonlocal num_measured
        if result.get("is_deadly"):
            _say(_in_words(f"{candidate} ended the process at {task.case} ({result['failed']}).", task.case))
        if candidate == task.candidates[-1]:
            num_measured += 1
            bar.update()
            bar.set_description_str(text := f"shape {num_measured} of {len(tasks)}")
            if bar.disable:
                _say(f"{text}: {_in_words(routes.get(task.case).reason, task.case)}")

    with bar:
        try_candidates(tasks, routes, environ=os.environ, device=str(device), on_result=on_result)
    measured = [(case, routes.get(case)) for case in cases]
    return [
        {"case": str(case), "rung": route.rung, "reason": route.reason, "milliseconds": route.measured,
         "failed": route.failed, "deadly": route.deadly}
        for case, route in measured
    ]  # fmt: skip


def _in_words(text: str, case: Case) -> str:
    """Replace "miopen" by "the plain way" on cards without ROCm, which have no MIOpen."""
    return text.replace("miopen", "the plain way") if "rocm=none" in str(case) else text


def _report(results: list[dict[str, Any]], as_json: bool, facts: dict[str, Any], case: ConvCase) -> None:
    if as_json:
        say(json.dumps({**facts, "routes": str(routes_folder()), "results": results}))
        return
    counts = Counter(_in_words(result["rung"], case) or "none of them" for result in results)
    times = [
        (milliseconds["miopen"], milliseconds[result["rung"]])
        for result in results
        if {"miopen", result["rung"]} <= (milliseconds := result["milliseconds"]).keys()
    ]
    fastest = ", ".join(f"{count} by {name}" for name, count in counts.items())
    lines = [f"{count_text(len(results), 'shape')}: {fastest}"]
    if times:
        plain_ms, chosen_ms = map(sum, zip(*times, strict=True))
        lines.append(
            f"One call of each shape that the plain way supports: {chosen_ms:.0f} ms instead of "
            f"{plain_ms:.0f} ms ({plain_ms / chosen_ms:.2f} times as fast)"
        )
    say(*lines, f"Kept in {routes_folder()}")


def _aspect(text: str) -> tuple[int, int]:
    try:
        width, height = (int(side) for side in text.split(":"))
    except ValueError:
        width = height = 0
    if not (0 < width < 10_000 and 0 < height < 10_000):
        raise InputError(f"aspect is {text!r}; expected a ratio like 16:9.", "Choose another.")
    return width, height


def _say(text: str) -> None:
    tqdm.write(one_line(text), file=sys.stderr)
