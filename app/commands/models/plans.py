"""The verb `models plan`, which shows what cards of several sizes would do with a model's weights."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict

from app.commands.arguments import Parser, add_setting
from app.jobs.stdio import say
from diffusers_helper.models.registry import ModelInfo, find_model, model_names
from diffusers_helper.planning.cards.by_size import (
    ARCH,
    CARDS_GB,
    CardPlan,
    FormatPlans,
    plans_by_card,
    plans_by_format,
)
from diffusers_helper.request import AUTO, SETTINGS, GenerationRequest
from diffusers_helper.units import gb_text

_HEADER = (
    "card", "cap", "preserved", "resident", "streamed per step", "in about", "main memory", "disk per step",
    "peak", "weights",
)  # fmt: skip
_NOTE = (
    "The time of the copies is computed for the link that such a card has: PCIe 4.0 with 16 lanes, or\n"
    "with 8 for a card of 8 GB. The card computes meanwhile.\n"
    "Streamed weights should fit into the main memory that is free. The disk is only read if they do not.\n"
    "The second line of a card shows the plan if --preserved-gb is as low as the estimates allow.\n"
    "docs/amd-memory.md explains why the automatic value is larger."
)
_FORMATS_NOTE = (
    "1.7 + 22.3 means that 1.7 GB of the transformer stay on the device, and each step streams 22.3 GB.\n"
    "That much main memory should be free; otherwise, each step reads as much from the disk. (5.1) means\n"
    "that the video does not fit; a cap of 5.1 GB would be enough. Names like Q4_K are types of GGUF files.\n"
    "The file's format counts here: --weight-dtype changes the type on the device, while main memory and\n"
    "disk hold the files as they are."
)


def add_plan_arguments(parser: Parser) -> None:
    """Add the arguments of the verb."""
    parser.add_argument("model", metavar="MODEL", help=f"{', '.join(model_names())}, or a folder")
    group = parser.add_mutually_exclusive_group()
    add_setting(group, "weight_dtype")
    group.add_argument("--formats", action="store_true", help="compare formats of the transformer's file")


def print_card_plans(arguments: argparse.Namespace) -> int:
    """Print the plans of a video with the model's own settings, and return the exit code."""
    info = find_model(arguments.model, allow_folder=True)
    dtype = arguments.weight_dtype or SETTINGS["weight_dtype"].default
    request = GenerationRequest(
        image="none", model=info.name, mode=info.modes[0], steps=info.steps, weight_dtype=dtype
    )
    plans = plans_by_format(request, info) if arguments.formats else plans_by_card(request, info)
    if arguments.json:
        for plan in plans:
            facts = asdict(plan)
            for card in facts.get("cards", [facts]):
                card["automatic"] = card["fewest_copies"]  # the name in earlier versions
            say(json.dumps({"model": info.name, **facts}))
        return 0
    if arguments.formats:
        say(*_formats_lines(info, plans_by_format(request, info)))
    else:
        say(*_cards_lines(info, dtype, plans_by_card(request, info)))
    return 0


def _cards_lines(info: ModelInfo, dtype: str, plans: Sequence[CardPlan]) -> list[str]:
    kinds = {SETTINGS["weight_dtype"].default: "as they are stored", AUTO: "in the type that suits each card"}
    kind = kinds.get(dtype, f"in {dtype} on the device")
    title = f"{info.title} at {info.side} pixels on Radeon cards ({ARCH}), weights {kind}; sizes in GB."
    table = _table([_HEADER, *(row for plan in plans for row in _rows(plan))])
    return [title, "", *table, "", *_NOTE.splitlines()]


def _rows(plan: CardPlan) -> list[tuple[str, ...]]:
    card = f"{plan.card_gb} GB"
    if not plan.fits:
        least = gb_text(plan.smallest_cap_bytes, up=True)
        return [(card, gb_text(plan.cap_bytes), f"does not fit; a cap of {least} GB would be enough")]
    default, *less = plan.fits
    return [(card, *default.cells), *(("", "", *fit.cells[1:]) for fit in less)]


def _formats_lines(info: ModelInfo, plans: Sequence[FormatPlans]) -> list[str]:
    title = (
        f"{info.title} at {info.side} pixels on Radeon cards ({ARCH}), by the format of the transformer's "
        "file; sizes in GB."
    )
    header = ("format", "file", *(f"{size} GB card" for size in CARDS_GB))
    lines = [title]
    tables = {
        "the automatic preserved memory": [[card.default_text for card in one.cards] for one in plans],
        "as little preserved memory as the estimates allow": [
            [card.fewest_copies_text for card in one.cards] for one in plans
        ],
    }
    for kind, cells in tables.items():
        rows = [
            (", ".join(one.formats), gb_text(one.file_bytes), *texts)
            for one, texts in zip(plans, cells, strict=True)
        ]
        lines += ["", f"With {kind}:", "", *_table([header, *rows])]
    return [*lines, "", *_FORMATS_NOTE.splitlines()]


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows as lines with aligned columns; the last cell of a shorter row may be wider."""
    full = [row for row in rows if len(row) == len(rows[0])]
    widths = [max(len(row[column]) for row in full) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]  # noqa: B905
