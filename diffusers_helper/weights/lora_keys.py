"""The layers of a transformer that names of tensors stand for, in files with weights or LoRAs.

Trainers put a prefix before a family's name of a layer (`families.family.LayerNames`), and those of kohya's
family and Tencent write _ for each dot.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Literal

from diffusers_helper.families.registry import FAMILIES

Kind = Literal["down", "up", "alpha", "bias"]

_PREFIX = re.compile(
    r"^(?:(?:base_model\.model|model|diffusion_model|transformer|unet|dit|module|_orig_mod)\.)*"
    r"(?:(?:lora_unet|lora_transformer|lycoris|Hunyuan_video(?:_[A-Z0-9]+)?_lora)__?)?"
)
_ENDINGS: tuple[tuple[Kind, re.Pattern[str]], ...] = (
    ("down", re.compile(r"\.(?:lora_A|lora_down|lora\.down)(?:\.[a-z]\w*)?\.weight$")),
    ("up", re.compile(r"\.(?:lora_B|lora_up|lora\.up)(?:\.[a-z]\w*)?\.weight$")),
    ("alpha", re.compile(r"\.alpha$")),
    ("bias", re.compile(r"\.(?:diff_b|lora_B(?:\.[a-z]\w*)?\.bias)$")),
)
_BLOCK = re.compile(r"^(.*?blocks)_(\d+)_(.+)$")


@dataclass(frozen=True, slots=True)
class Target:
    """Layers, as diffusers names them, that a pair of matrices changes.

    Attributes:
        layers: Their names, as diffusers has them. Several layers share the outputs of the matrices.
        swaps_halves: Whether the two halves of the outputs are in the other order in diffusers.
        families: The names of the families that have them.
    """

    layers: tuple[str, ...]
    swaps_halves: bool = False
    families: tuple[str, ...] = field(default=(), compare=False)


def split_key(key: str) -> tuple[str, Kind] | None:
    """Split a tensor's name into its layer and its kind; None for other tensors."""
    for matrix, pattern in _ENDINGS:
        if match := pattern.search(key):
            return key[: match.start()], matrix
    return None


def target_of(name: str) -> Target | None:
    return layers_named(_PREFIX.sub("", name))


def layers_named(name: str, expected: Collection[str] = ()) -> Target | None:
    """Find the layers that a name without a prefix stands for; None if no family has them.

    If the name has several meanings, that counts whose first layer is among those `expected`.
    """
    flat, block_index = _flat(name), ""
    if match := _BLOCK.match(flat):
        flat, block_index = f"{match[1]}_*_{match[3]}", match[2]
    entries = [
        replace(entry, layers=tuple(layer.replace("*", block_index) for layer in entry.layers))
        for entry in _table().get(flat, ())
    ]
    return next((entry for entry in entries if entry.layers[0] in expected), entries[0] if entries else None)


@cache
def _table() -> dict[str, list[Target]]:
    """Map each known name, with underscores for dots and `*` for the number of a block, to its targets."""
    table: dict[str, list[Target]] = {}

    def add(name: str, layers: tuple[str, ...], family: str, *, swaps_halves: bool = False) -> None:
        target = Target(layers, swaps_halves, (family,))
        targets = table.setdefault(_flat(name), [])
        if target in targets:
            index = targets.index(target)
            targets[index] = replace(target, families=(*targets[index].families, family))
        else:
            targets.append(target)

    for family in FAMILIES.values():
        names = family.layer_names
        for prefix, layers in names.layers.items():
            for layer in layers.split():
                add(prefix + layer, (prefix + layer,), family.name)
        for (prefix, library_prefix), layers in names.other_names.items():
            for layer, targets in layers.items():
                target_layers = tuple(library_prefix + target for target in targets.rstrip("!").split())
                endings = [pair for pair in names.respellings if (prefix + layer).endswith(pair[0])]
                for ending, replacement in (("", ""), *endings):
                    name = prefix + layer.removesuffix(ending) + replacement
                    add(name, target_layers, family.name, swaps_halves=targets.endswith("!"))
    return table


def _flat(name: str) -> str:
    return name.replace(".", "_")
