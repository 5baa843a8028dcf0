"""The layers of a transformer that names of tensors stand for, in files with weights or LoRAs.

Each family knows how files name its layers (`families.family.LayerNames`): as diffusers does, as the
network's authors do, who may join the layers for queries, keys and values, or as ComfyUI's class does.
Trainers put a prefix before the name, and those of the kohya family replace its dots by underscores.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cache
from typing import Literal

from diffusers_helper.families.known import FAMILIES

Kind = Literal["down", "up", "alpha", "bias"]

_PREFIX = re.compile(
    r"^(?:(?:base_model\.model|model|diffusion_model|transformer|unet)\.)*(?:(?:lora_unet|lora_transformer)_)?"
)
_ENDINGS: tuple[tuple[Kind, re.Pattern[str]], ...] = (
    ("down", re.compile(r"\.(?:lora_A|lora_down|lora\.down)(?:\.default)?\.weight$")),
    ("up", re.compile(r"\.(?:lora_B|lora_up|lora\.up)(?:\.default)?\.weight$")),
    ("alpha", re.compile(r"\.alpha$")),
    ("bias", re.compile(r"\.(?:diff_b|lora_B(?:\.default)?\.bias)$")),
)
_BLOCK = re.compile(r"^(.*?blocks)_(\d+)_(.+)$")


@dataclass(frozen=True, slots=True)
class Target:
    """The layers of the transformer that one pair of matrices changes.

    Attributes:
        layers: Their names, as diffusers has them. If there are several, each takes its part of the outputs.
        family: The name of the family that has them.
    """

    layers: tuple[str, ...]
    swaps: bool = False
    family: str = field(default="", compare=False)


def split_key(key: str) -> tuple[str, Kind] | None:
    """Return the beginning of a tensor's name, which names a layer, and its kind; None for other tensors."""
    for kind, ending in _ENDINGS:
        if match := ending.search(key):
            return key[: match.start()], kind
    return None


def target_of(beginning: str) -> Target | None:
    """Return the layers that the beginning of a name stands for, or None if no family has it.

    Args:
        beginning: The first result of `split_key`.
    """
    return layers_named(_PREFIX.sub("", beginning))


def layers_named(name: str) -> Target | None:
    """Return the layers that a name without a prefix stands for, or None if no family has it."""
    flat, number = _flat(name), ""
    if match := _BLOCK.match(flat):
        flat, number = f"{match[1]}_*_{match[3]}", match[2]
    found = _table().get(flat)
    if found is None:
        return None
    return Target(tuple(layer.replace("*", number) for layer in found.layers), found.swaps, found.family)


@cache
def _table() -> dict[str, Target]:
    """Return the target of each known name, with underscores for dots and `*` for the number of a block."""
    table: dict[str, Target] = {}
    for family in FAMILIES.values():
        names = family.names
        for start, layers in names.own.items():
            for layer in layers.split():
                table[_flat(start + layer)] = Target((start + layer,), family=family.name)
        for (start, own), layers in names.others.items():
            for layer, targets in layers.items():
                found = tuple(own + target for target in targets.rstrip("!").split())
                target = Target(found, targets.endswith("!"), family.name)
                table[_flat(start + layer)] = target
                for ending, other in names.respelled:
                    if (start + layer).endswith(ending):
                        table[_flat(start + layer.removesuffix(ending) + other)] = target
    return table


def _flat(name: str) -> str:
    return name.replace(".", "_")
