"""The cards of which reports are known, and the sentence that asks for one of another card."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from app.machine import cache_folder
from diffusers_helper.planning.cards.reported import CARDS
from diffusers_helper.planning.profiles import Machine


def card_key(card: dict[str, Any]) -> str:
    """Return the name under which a report's card is known: the gfx name, or that of another card."""
    return card["arch"] or card["name"]


def report_so_far() -> Path:
    """Return the file of the last run of the benchmark on this machine, which need not exist."""
    return cache_folder() / "bench" / "report.json"


def hint(machine: Machine, known: Sequence[str] = CARDS) -> str:
    """Return a sentence that offers the benchmark on a card without a report; "" on others and on a CPU."""
    if machine.kind == "cpu" or (machine.arch or machine.name) in known:
        return ""
    return (
        "nobody has sent figures of this card yet; `python -m app bench --report card.json` measures it in "
        "three minutes"
    )
