"""Helios without torch: its shapes, its plan of sections, and what suits its models.

Each section is made of nine latent frames and decoded by itself, so that neighbours share no frame. diffusers
cuts the whole video to 4 n + 1 frames; here every section keeps its 33.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, cast

from diffusers_helper.families.packing import (
    MIN_SECONDS,
    Mode,
    Section,
    SectionPlan,
    frame_indices,
    frames_of,
)
from diffusers_helper.strangers.limited_json import read_json

FPS, WINDOW = 24, 9
SECTION_FRAMES = frames_of(WINDOW)
# The end of a video that is continued is encoded in so many sections, which fill the history.
TAIL_SECTIONS = 3
MAX_TEXT_TOKENS = 512
# The scheduler of the distilled models, which sample in a pyramid of sizes
DISTILLED = "HeliosDMDScheduler"
# The other caches need numbers that were measured for a model.
STEP_CACHES = ("first-block", "taylorseer", "easycache")
_SCHEDULER = "scheduler/scheduler_config.json"
# The size that Helios was trained in, as the side of a square of the same area, and the proportions to offer
SIDE = 496
_PROPORTIONS = ((5, 12), (9, 16), (3, 5), (3, 4), (1, 1), (4, 3), (5, 3), (16, 9), (12, 5))


def shapes(side: int, multiple: int) -> tuple[tuple[int, int], ...]:
    """Return the shapes (height, width) to offer, with about the area of a square and in whole multiples."""
    if multiple < 1 or side < multiple:
        raise ValueError(f"side is {side} and multiple is {multiple}; expected side >= multiple >= 1.")

    def edge(length: float) -> int:
        return max(multiple, round(length / multiple) * multiple)

    found = ((side * math.sqrt(h / w), side * math.sqrt(w / h)) for h, w in _PROPORTIONS)
    return tuple(dict.fromkeys((edge(height), edge(width)) for height, width in found))


def plan(seconds: float, mode: Mode) -> SectionPlan:
    """Return the sections that make a video of about `seconds`.

    Raises:
        ValueError: If the length is below one second or not finite, or the order is not forward.
    """
    if mode != "forward":
        raise ValueError(f"mode is {mode!r}; expected forward, the only order of Helios.")
    if not math.isfinite(seconds) or seconds < MIN_SECONDS:
        raise ValueError(f"seconds is {seconds}; expected a number of at least {MIN_SECONDS:g}.")
    count = max(1, round(seconds * FPS / SECTION_FRAMES))
    return SectionPlan(mode, WINDOW, tuple(_section(number) for number in range(1, count + 1)), FPS)


def _section(number: int) -> Section:
    return Section(
        number=number, padding=0, has_start=False, indices=frame_indices("forward", WINDOW),
        decode_latents=WINDOW, decoded_frames=SECTION_FRAMES, overlap_frames=0, final_frames=SECTION_FRAMES,
        pending_frames=0, total_frames=SECTION_FRAMES * number, video_position=number - 1,
        begin=WINDOW * (number - 1),
    )  # fmt: skip


def suits(folder: Path) -> dict[str, Any]:
    """Return the settings that suit a model, given the folder of its parts.

    Distilled models take two steps at each size of their pyramid, whose smallest is a quarter, without
    classifier-free guidance.
    """
    return settings_of(is_distilled=scheduler_in(folder) == DISTILLED)


def settings_of(*, is_distilled: bool) -> dict[str, Any]:
    """Return the settings that suit the published models."""
    shared = {"side": SIDE, "modes": ("forward",)}
    if is_distilled:
        return {**shared, "multiple": 64, "steps": 6, "cfg": 1.0, "step_caches": ()}
    return {**shared, "multiple": 32, "steps": 50, "cfg": 5.0, "step_caches": STEP_CACHES}


def scheduler_in(folder: Path) -> str:
    """Return the name of the scheduler's class in the folder of a model; "" if it cannot be read."""
    try:
        config = read_json(folder / _SCHEDULER)
    except (OSError, ValueError):
        return ""
    return str(cast(dict[str, Any], config).get("_class_name", "")) if isinstance(config, dict) else ""
