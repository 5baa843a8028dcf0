"""The verb `models plan`, which shows what cards of several sizes would do with a model's weights."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from app.jobs.stdio import say
from diffusers_helper.models.registry import find_model
from diffusers_helper.planning.cards import ARCH, CardPlan, Fit, plans_by_card
from diffusers_helper.request import GenerationRequest
from diffusers_helper.units import gb_text

_HEADER = ("card", "cap", "preserved", "resident", "streamed per step", "peak")
_NOTE = (
    "Streamed weights are kept in main memory; if they do not fit there, each step reads as much from\n"
    "the disk. The second line of a card shows the automatic preserved memory, which follows from the\n"
    "estimates. docs/amd-memory.md explains why the default is larger. Weights count as they are stored."
)


def print_card_plans(arguments: argparse.Namespace) -> int:
    """Print the plans of a video with the model's own settings, and return the exit code."""
    info = find_model(arguments.model, allow_folder=True)
    request = GenerationRequest(image="none", model=info.name, mode=info.modes[0], steps=info.steps)
    plans = plans_by_card(request, info)
    if arguments.json:
        for plan in plans:
            say(json.dumps({"model": info.name, **asdict(plan)}) + "\n")
        return 0
    rows = [_HEADER, *(row for plan in plans for row in _rows(plan))]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADER))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    title = f"{info.title} at {info.side} pixels on Radeon cards ({ARCH}); GB of 1024^3 bytes."
    say("\n".join([title, "", *(line.rstrip() for line in lines), "", _NOTE]) + "\n")
    return 0


def _rows(plan: CardPlan) -> list[tuple[str, ...]]:
    card, cap = f"{plan.card_gb} GB", gb_text(plan.cap_bytes)
    if plan.default is None or plan.automatic is None:
        least = gb_text(plan.smallest_cap_bytes, up=True)
        return [(card, cap, f"does not fit; a cap of {least} GB would be enough", "", "", "")]
    automatic = [] if plan.automatic == plan.default else [("", "", *_cells(plan.automatic))]
    return [(card, cap, *_cells(plan.default)), *automatic]


def _cells(fit: Fit) -> tuple[str, ...]:
    figures = (fit.preserved_bytes, fit.resident_bytes, fit.streamed_bytes, fit.peak_bytes)
    return tuple(map(gb_text, figures))
