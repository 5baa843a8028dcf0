"""The form's values: what they are at first, what a browser kept of them, and the request they make."""

from __future__ import annotations

import json
import math
from typing import Any

from app.ui.catalogue import Catalogue
from app.ui.planner import Planner
from diffusers_helper.errors import InputError
from diffusers_helper.models.registry import ModelInfo
from diffusers_helper.request import (
    MAX_PROMPT_CHARACTERS,
    MAX_RESOLUTION,
    MIN_RESOLUTION,
    RANGES,
    GenerationRequest,
)

# Above this a browser's numbers have gaps, so that it could send another seed than it shows.
MAX_PAGE_SEED = 2**53 - 1
DEFAULT_SEED = 31337
_TEXTS = ("prompt", "negative")


def defaults(info: ModelInfo, planner: Planner) -> dict[str, Any]:
    """Every setting but picture and prompt, as a model and the machine want them."""
    return {
        "mode": info.modes[0],
        "seconds": GenerationRequest.__dataclass_fields__["seconds"].default,
        "seed": DEFAULT_SEED,
        "steps": info.steps,
        "guidance": info.guidance,
        "negative": "",
        "cfg": 1.0,
        "cfg_rescale": 0.0,
        "resolution": info.side,
        "crf": 16,
        **planner.defaults,
    }


def to_request(settings: dict[str, Any], info: ModelInfo, planner: Planner) -> dict[str, Any]:
    """The form's values as those of a request, with resolution and memory only where they were changed.

    Raises:
        InputError: for a picture that was not uploaded, or a seed that a browser cannot hold exactly.
    """
    settings = settings | planner.own(settings)
    seed = settings.get("seed")
    if isinstance(seed, int | float) and seed > MAX_PAGE_SEED:
        raise InputError(
            "seed is larger than a browser can hold exactly; expected a whole number from 0 to 2^53 - 1.",
            "Choose a smaller one; the command line takes any up to 2^63 - 1.",
        )
    settings |= {name: "" for name in _TEXTS if settings.get(name) is None}  # a field that was never touched
    if settings.get("resolution") == info.side:
        settings["resolution"] = None
    return settings


def control_of(error: InputError) -> str:
    """The name of the setting that a refusal speaks of, `image` for the picture, empty if of none."""
    if error.message.startswith("Does not fit"):
        return "vram_cap_gb"
    first = error.message.split(maxsplit=1)[0] if error.message else ""
    if first in GenerationRequest.__dataclass_fields__:
        return first
    return "image" if "picture" in error.message.lower()[:40] else ""


def restored(catalogue: Catalogue, text: object) -> dict[str, Any]:
    """What a browser kept, as far as it can still be used: text in JSON that anything may have written."""
    try:
        kept = json.loads(text) if isinstance(text, str) else None
    except ValueError:
        kept = None
    if not isinstance(kept, dict):
        return {}
    model = kept.get("model")
    if model not in catalogue.names:
        model = catalogue.preselected
    info = catalogue.info(model)
    usable = {"model": model, "mode": kept.get("mode") if kept.get("mode") in info.modes else info.modes[0]}
    for name in _TEXTS:
        if isinstance(kept.get(name), str):
            usable[name] = kept[name][:MAX_PROMPT_CHARACTERS]
    bounds = {name: (one.low, one.high) for name, one in RANGES.items()}
    bounds |= {"seed": (0, MAX_PAGE_SEED), "resolution": (MIN_RESOLUTION, MAX_RESOLUTION)}
    for name, (low, high) in bounds.items():
        if _is_number(kept.get(name)) and low <= kept[name] <= high:
            usable[name] = kept[name]
    return usable


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
