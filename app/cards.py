"""The cards on which jobs are made at the same time, as a user names them with --devices."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from app.machine import bytes_named, output_of
from diffusers_helper.errors import InputError, short_repr
from diffusers_helper.machine.sysfs import ROOT, amd_gpus
from diffusers_helper.planning.profiles import CAP_VARIABLE

_CPU = "cpu"
_HIDDEN = {"ROCR_VISIBLE_DEVICES": "-1", "HIP_VISIBLE_DEVICES": "-1", "CUDA_VISIBLE_DEVICES": "-1"}


@dataclass(frozen=True, slots=True)
class NamedCard:
    """One card, or the processor, for an engine of its own.

    Attributes:
        names: The ways to name it: its number, its PCI address, and its UUID, as far as they are known.
        variables: The environment variables with which a process sees this card alone.
        is_apu: Whether it shares the processor's memory.
    """

    names: tuple[str, ...]
    variables: Mapping[str, str]
    is_apu: bool = False


def cards_here(root: Path = ROOT) -> list[NamedCard]:
    """Return this machine's cards, those of AMD or else those of NVIDIA, by their order on the bus.

    A process gets a card by its UUID where the driver tells one, since HIP, ROCr and the bus each have an
    order of their own. AMD cards without one get their number in the kernel's order, which is that of ROCr.
    """
    amd = sorted(enumerate(amd_gpus(root)), key=lambda one: (one[1].address, one[0]))
    found = [
        (gpu.address, gpu.uuid, {"ROCR_VISIBLE_DEVICES": gpu.uuid or str(order)}, gpu.is_apu)
        for order, gpu in amd
    ]
    if not found and root == ROOT:
        answer = output_of("nvidia-smi", "--query-gpu=pci.bus_id,uuid", "--format=csv,noheader")
        rows = sorted(line.split(", ") for line in answer.splitlines() if line.count(", ") == 1)
        found = [(address, uuid, {"CUDA_VISIBLE_DEVICES": uuid}, False) for address, uuid in rows]
    return [
        NamedCard(tuple(filter(None, (str(number), address.lower(), uuid.lower()))), variables, is_apu)
        for number, (address, uuid, variables, is_apu) in enumerate(found)
    ]


def chosen_cards(text: str, here: list[NamedCard]) -> list[dict[str, str]]:
    """Return the environment variables for each engine that --devices asks for.

    Args:
        text: "auto" for all cards, without those in the processor if there are others, or for the processor;
            or names with commas between them, each with "=GB" behind it if it has a cap of its own.
        here: This machine's cards.

    Raises:
        InputError: If a name is of no card, or of one that is named before, or if a cap is no number.
    """
    if text == "auto":
        alone = [card for card in here if not card.is_apu] or here
        return [dict(card.variables) for card in alone] or [{}]
    named = [one.strip().lower().partition("=") for one in text.split(",")]
    processors = sum(name == _CPU for name, _, _ in named)
    threads = max(1, (os.cpu_count() or 1) // max(1, processors))
    taken = list[NamedCard]()
    engines = list[dict[str, str]]()
    for name, _, cap in named:
        if name == _CPU:
            variables = _HIDDEN | {"OMP_NUM_THREADS": str(threads)}
        else:
            card = next((one for one in here if name in one.names and one not in taken), None)
            if card is None:
                known = ", ".join(" or ".join(one.names) for one in here) or "it has none"
                raise InputError(
                    f"devices names {short_repr(name)}; expected auto, cpu, or a card of this machine, "
                    f"each once: {known}.",
                    "Correct the list, such as --devices 0,1.",
                )
            taken.append(card)
            variables = dict(card.variables)
        engines.append(variables | ({CAP_VARIABLE: _cap(cap)} if cap else {}))
    return engines


def _cap(text: str) -> str:
    if bytes_named(text) <= 0:
        raise InputError(
            f"devices has a cap of {short_repr(text)}; expected a number of GB above 0.",
            "Correct it, such as --devices 0=12,1=20.",
        )
    return text
