"""The texts of errors as the page shows them, in the terms of its labels and of the memory plan."""

from __future__ import annotations

from pathlib import Path

from app.redact import plain_paths
from diffusers_helper.errors import LongtakeError, in_words, own_name
from diffusers_helper.events import STAGES
from diffusers_helper.planning.budget import DoesNotFit
from diffusers_helper.request import SETTINGS
from diffusers_helper.units import gb_text


def page_words(text: str, outputs: Path | None = None) -> str:
    """Return a text with settings named by their labels, and without paths, of which `outputs` may be one."""
    return plain_paths(in_words(text, _label), outputs)


def page_error(error: LongtakeError) -> tuple[str, str]:
    """Return the message and the remedy of an error as the page shows them."""
    if isinstance(error, DoesNotFit):
        return _does_not_fit(error)
    return page_words(error.message), page_words(error.remedy)


def _label(name: str) -> str:
    return SETTINGS[name].short_label if name in SETTINGS else own_name(name)


def _does_not_fit(error: DoesNotFit) -> tuple[str, str]:
    budget, least = error.budget, gb_text(error.smallest_cap_bytes, up=True)
    end = f", and this device has {gb_text(budget.total_bytes)} GB." if error.is_too_large else "."
    message = (
        f"Does not fit: “{STAGES[error.stage].network}” needs more memory than the cap of "
        f"{gb_text(budget.cap_bytes)} GB leaves. The smallest cap that works is {least} GB{end}"
    )
    ways = (
        "" if error.is_too_large else f"set `vram_cap_gb` to {least} GB or more",
        f"set `resolution` to {error.side} or less" if error.side else "",
    )
    remedy = " or ".join(filter(None, ways)) or "choose another model"
    return message, page_words(f"{remedy[0].upper()}{remedy[1:]}.")
