"""The settings that the files of a video record, in recipes, lineages and the origins of latents.

The settings of version 0.1 are always recorded. A later one is recorded only if it differs from its default,
so that a file without it means the default.
"""

from __future__ import annotations

from typing import Any

from diffusers_helper.request import SETTINGS, GenerationRequest
from diffusers_helper.setting import Scope

_FIRST = (
    "prompt", "negative", "seconds", "seed", "steps", "mode", "resolution", "guidance", "cfg", "cfg_rescale",
    "crf", "sampler", "model",
)  # fmt: skip


def names_of(*scopes: Scope) -> tuple[str, ...]:
    """Return the names of the settings that have one of these scopes."""
    return tuple(name for name, setting in SETTINGS.items() if setting.scope in scopes)


def recorded(request: GenerationRequest, *scopes: Scope) -> dict[str, Any]:
    """Return the recorded settings of a request, among those of these scopes."""
    values = {name: getattr(request, name) for name in names_of(*scopes)}
    return {
        name: value for name, value in values.items() if name in _FIRST or value != SETTINGS[name].default
    }


def recorded_later(request: GenerationRequest, *scopes: Scope) -> dict[str, Any]:
    """Return the recorded settings that version 0.1 did not have."""
    found = recorded(request, *scopes)
    return {name: value for name, value in found.items() if name not in _FIRST}


def later_defaults(*scopes: Scope) -> dict[str, Any]:
    """Return the defaults of the settings that version 0.1 did not have."""
    return {name: SETTINGS[name].default for name in names_of(*scopes) if name not in _FIRST}
