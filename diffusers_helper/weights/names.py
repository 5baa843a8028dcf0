"""The names of tensors in files: those of a whole transformer, and those that files hold beside weights."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from functools import cache

from diffusers_helper.families.framepack import FRAMEPACK
from diffusers_helper.families.known import FAMILIES
from diffusers_helper.units import count_text

# What files hold beside the weights that a part needs: marks, and parts of larger models.
_BESIDE = re.compile(
    r"(?:^|\.)(?:scaled_fp8|lm_head\.weight|logit_scale|logit_bias|text_projection\.weight|position_ids"
    r"|rotary_emb\.inv_freq|spiece_model|tekken_model|comfy_quant)$|\.(?:scale_input|input_scale)$"
    r"|^(?:output|rope_freqs)\.weight$"
)
SCALE = re.compile(r"\.(?:scale_weight|weight_scale|weight_scale_inv)$")
_WITHOUT_BIAS = re.compile(r"\.attn\.norm_(?:added_)?[qk]$")


def is_beside(name: str) -> bool:
    """Return whether a tensor of a file is no weight of the part, but a mark or of a larger model."""
    return _BESIDE.search(name) is not None


def is_precise(name: str) -> bool:
    """Return whether a tensor of the transformer keeps its precision if others are cast to fp8."""
    return _precise().search(name) is not None


@cache
def _precise() -> re.Pattern[str]:
    return re.compile("|".join(one.names.precise for one in FAMILIES.values()))


def expected_names(names: Collection[str]) -> set[str]:
    """Return the names that a transformer with these blocks has."""
    return {
        f"{layer}.{kind}"
        for beginning, layers in FRAMEPACK.names.own.items()
        for start in _starts(beginning, names)
        for layer in (start + one for one in layers.split())
        for kind in (("weight",) if _WITHOUT_BIAS.search(layer) else ("weight", "bias"))
    }


def _starts(beginning: str, names: Collection[str]) -> Iterator[str]:
    """Yield the beginning with the number of each block, up to the last block in `names`."""
    group, star, rest = beginning.partition("*")
    if not star:
        yield beginning
        return
    texts = {name[len(group) :].partition(".")[0] for name in names if name.startswith(group)}
    # There are no more blocks than names, whatever number a name has.
    numbers = (int(text) for text in texts if text.isascii() and text.isdigit() and int(text) < len(names))
    for number in range(max(numbers, default=0) + 1):
        yield f"{group}{number}{rest}"


def name_problems(names: Collection[str], *, has_more: bool) -> Iterable[str]:
    """Yield faults of a list of names, as ends of sentences that begin with the file's name.

    Args:
        names: The names of a whole transformer, in diffusers' layout.
        has_more: Whether further names are allowed, such as those of the scales of quantised weights.
    """
    expected, found = expected_names(names), {*names}
    missing, foreign = sorted(expected - found), sorted(found - expected)
    if missing:
        yield f"lacks {len(missing)} of {len(expected)} tensors, such as {missing[0]}; download it again."
    if foreign and not has_more:
        more = count_text(len(foreign), "tensor")
        yield f"contains {more} foreign to FramePack, such as {foreign[0]}; use another file."
