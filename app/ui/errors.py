"""The texts of errors as the page shows them, in the terms of its labels and of the memory plan."""

from __future__ import annotations

from pathlib import Path

from app.redact import plain_paths
from diffusers_helper.errors import LongtakeError, default_name, in_words
from diffusers_helper.events import STAGES
from diffusers_helper.planning.budget import DoesNotFit
from diffusers_helper.request import SETTINGS
from diffusers_helper.units import gb_text


def page_words(text: str, outputs: Path | None = None) -> str:
    """Name settings by their labels, and shorten paths, of which `outputs` may be one."""
    return plain_paths(in_words(text, _label), outputs)


def page_error(error: LongtakeError) -> tuple[str, str]:
    message, remedy = error.message, error.remedy
    if isinstance(error, DoesNotFit):
        message = (
            f"Does not fit: “{STAGES[error.stage].network}” needs more memory than the cap of "
            f"{gb_text(error.budget.cap_bytes)} GB leaves."
        )
        remedy += " Choose another model." if error.is_too_large and not error.side else ""
    return page_words(message), page_words(remedy)


def _label(name: str) -> str:
    return SETTINGS[name].short_label if name in SETTINGS else default_name(name)
