"""The names of tensors: those of FramePack's transformer, and those that files hold beside weights."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator

from diffusers_helper.units import count_text

# The layers by the beginning of their names; `*` is the number of a block.
LAYERS = {
    "": """
        x_embedder.proj clean_x_embedder.proj clean_x_embedder.proj_2x clean_x_embedder.proj_4x
        image_projection.up image_projection.down norm_out.linear proj_out""",
    "context_embedder.": """
        proj_in time_text_embed.timestep_embedder.linear_1 time_text_embed.timestep_embedder.linear_2
        time_text_embed.text_embedder.linear_1 time_text_embed.text_embedder.linear_2""",
    "context_embedder.token_refiner.refiner_blocks.*.": """
        attn.to_q attn.to_k attn.to_v attn.to_out.0 ff.net.0.proj ff.net.2 norm1 norm2 norm_out.linear""",
    "time_text_embed.": """
        timestep_embedder.linear_1 timestep_embedder.linear_2 text_embedder.linear_1 text_embedder.linear_2
        guidance_embedder.linear_1 guidance_embedder.linear_2""",
    "transformer_blocks.*.": """
        attn.to_q attn.to_k attn.to_v attn.to_out.0 attn.norm_q attn.norm_k attn.add_q_proj attn.add_k_proj
        attn.add_v_proj attn.to_add_out attn.norm_added_q attn.norm_added_k norm1.linear norm1_context.linear
        ff.net.0.proj ff.net.2 ff_context.net.0.proj ff_context.net.2""",
    "single_transformer_blocks.*.": """
        attn.to_q attn.to_k attn.to_v attn.norm_q attn.norm_k norm.linear proj_mlp proj_out""",
}
# What files hold beside the weights that a part needs: marks, and parts of larger models.
_BESIDE = re.compile(
    r"(?:^|\.)(?:scaled_fp8|lm_head\.weight|logit_scale|logit_bias|text_projection\.weight|position_ids"
    r"|rotary_emb\.inv_freq|spiece_model|tekken_model|comfy_quant)$|\.(?:scale_input|input_scale)$"
    r"|^(?:output|rope_freqs)\.weight$"
)
SCALE = re.compile(r"\.(?:scale_weight|weight_scale|weight_scale_inv)$")
# The transformer's layers that keep their precision if the others are cast to fp8: diffusers' list for them,
# and the same layers in the layout of their authors.
_PRECISE = re.compile(
    r"x_embedder|con(?:text|dition)_embedder|norm|pos_embed|patch_embed|^proj_in\.|^proj_out\."
    r"|img_in|txt_in|_mod\.|modulation|^final_layer\."
)
_WITHOUT_BIAS = re.compile(r"\.attn\.norm_(?:added_)?[qk]$")


def is_beside(name: str) -> bool:
    """Return whether a tensor of a file is no weight of the part, but a mark or of a larger model."""
    return _BESIDE.search(name) is not None


def is_precise(name: str) -> bool:
    """Return whether a tensor of the transformer keeps its precision if others are cast to fp8."""
    return _PRECISE.search(name) is not None


def expected_names(names: Collection[str]) -> set[str]:
    """Return the names that a transformer with these blocks has."""
    return {
        f"{layer}.{kind}"
        for beginning, layers in LAYERS.items()
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
