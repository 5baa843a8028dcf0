"""The layers of FramePack's transformer that names of tensors stand for, in files with weights or LoRAs.

FramePack and HunyuanVideo have the same blocks. Their files name the layers in one of three ways: as
diffusers and FramePack do, or as HunyuanVideo's authors do, who join the layers for queries, keys and values,
or as ComfyUI's class does, which joins the same layers and follows Flux in some names. Trainers put a prefix
before the name, and those of the kohya family replace its dots by underscores.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Literal

from diffusers_helper.weights.names import LAYERS

Kind = Literal["down", "up", "alpha"]

_PREFIX = re.compile(
    r"^(?:(?:base_model\.model|model|diffusion_model|transformer|unet)\.)*(?:(?:lora_unet|lora_transformer)_)?"
)
_ENDINGS: tuple[tuple[Kind, re.Pattern[str]], ...] = (
    ("down", re.compile(r"\.(?:lora_A|lora_down|lora\.down)(?:\.default)?\.weight$")),
    ("up", re.compile(r"\.(?:lora_B|lora_up|lora\.up)(?:\.default)?\.weight$")),
    ("alpha", re.compile(r"\.alpha$")),
)
_BLOCK = re.compile(r"^(.*?blocks)_(\d+)_(.+)$")
_ATTENTION = "attn.to_q attn.to_k attn.to_v"
# HunyuanVideo's own layers by the beginning of their names, with the layers of diffusers that they stand for.
# An exclamation mark says that the two halves of the outputs, shift and scale, are exchanged.
_ORIGINAL: dict[tuple[str, str], dict[str, str]] = {
    ("double_blocks.*.", "transformer_blocks.*."): {
        "img_attn_qkv": _ATTENTION,
        "img_attn_q_norm": "attn.norm_q",
        "img_attn_k_norm": "attn.norm_k",
        "img_attn_proj": "attn.to_out.0",
        "img_mod.linear": "norm1.linear",
        "img_mlp.fc1": "ff.net.0.proj",
        "img_mlp.fc2": "ff.net.2",
        "txt_attn_qkv": "attn.add_q_proj attn.add_k_proj attn.add_v_proj",
        "txt_attn_q_norm": "attn.norm_added_q",
        "txt_attn_k_norm": "attn.norm_added_k",
        "txt_attn_proj": "attn.to_add_out",
        "txt_mod.linear": "norm1_context.linear",
        "txt_mlp.fc1": "ff_context.net.0.proj",
        "txt_mlp.fc2": "ff_context.net.2",
    },
    ("single_blocks.*.", "single_transformer_blocks.*."): {
        "linear1": f"{_ATTENTION} proj_mlp",
        "q_norm": "attn.norm_q",
        "k_norm": "attn.norm_k",
        "linear2": "proj_out",
        "modulation.linear": "norm.linear",
    },
    ("txt_in.individual_token_refiner.blocks.*.", "context_embedder.token_refiner.refiner_blocks.*."): {
        "self_attn_qkv": _ATTENTION,
        "self_attn_proj": "attn.to_out.0",
        "norm1": "norm1",
        "norm2": "norm2",
        "mlp.fc1": "ff.net.0.proj",
        "mlp.fc2": "ff.net.2",
        "adaLN_modulation.1": "norm_out.linear",
    },
    ("txt_in.", "context_embedder."): {
        "input_embedder": "proj_in",
        "t_embedder.mlp.0": "time_text_embed.timestep_embedder.linear_1",
        "t_embedder.mlp.2": "time_text_embed.timestep_embedder.linear_2",
        "c_embedder.linear_1": "time_text_embed.text_embedder.linear_1",
        "c_embedder.linear_2": "time_text_embed.text_embedder.linear_2",
    },
    ("", "time_text_embed."): {
        "time_in.mlp.0": "timestep_embedder.linear_1",
        "time_in.mlp.2": "timestep_embedder.linear_2",
        "vector_in.in_layer": "text_embedder.linear_1",
        "vector_in.out_layer": "text_embedder.linear_2",
        "guidance_in.mlp.0": "guidance_embedder.linear_1",
        "guidance_in.mlp.2": "guidance_embedder.linear_2",
    },
    ("", ""): {
        "img_in.proj": "x_embedder.proj",
        "final_layer.linear": "proj_out",
        "final_layer.adaLN_modulation.1": "norm_out.linear!",
    },
}
# The layers that ComfyUI's class names differently from HunyuanVideo's authors. The first ending that a name
# has is replaced.
_COMFYUI = (
    ("_mod.linear", "_mod.lin"), ("modulation.linear", "modulation.lin"),
    ("mlp.fc1", "mlp.0"), ("mlp.fc2", "mlp.2"), ("t_embedder.mlp.0", "t_embedder.in_layer"),
    ("t_embedder.mlp.2", "t_embedder.out_layer"), ("c_embedder.linear_1", "c_embedder.in_layer"),
    ("c_embedder.linear_2", "c_embedder.out_layer"), ("_in.mlp.0", "_in.in_layer"),
    ("_in.mlp.2", "_in.out_layer"), ("q_norm", "norm.query_norm"), ("k_norm", "norm.key_norm"),
)  # fmt: skip
_LIKE_FLUX = re.compile(
    r"blocks[._]\d+[._](?:(?:img|txt)_mod[._]lin|(?:img|txt)_mlp[._][02]|modulation[._]lin)$"
)


@dataclass(frozen=True, slots=True)
class Target:
    """The layers of the transformer that one pair of matrices changes.

    Attributes:
        layers: Their names, as diffusers has them. If there are several, each takes its part of the outputs.
    """

    layers: tuple[str, ...]
    swaps: bool = False


def split_key(key: str) -> tuple[str, Kind] | None:
    """Return the beginning of a tensor's name, which names a layer, and its kind; None for other tensors."""
    for kind, ending in _ENDINGS:
        if match := ending.search(key):
            return key[: match.start()], kind
    return None


def is_like_flux(beginning: str) -> bool:
    """Return whether the beginning of a name is one that Flux has, too, unlike HunyuanVideo's authors."""
    return _LIKE_FLUX.search(beginning) is not None


def target_of(beginning: str) -> Target | None:
    """Return the layers that the beginning of a name stands for, or None if FramePack has none of that name.

    Args:
        beginning: The first result of `split_key`.
    """
    return layers_named(_PREFIX.sub("", beginning))


def layers_named(name: str) -> Target | None:
    """Return the layers that a name without a prefix stands for, or None if FramePack has no such name."""
    flat, number = name.replace(".", "_"), ""
    if match := _BLOCK.match(flat):
        flat, number = f"{match[1]}_*_{match[3]}", match[2]
    found = _table().get(flat)
    if found is None:
        return None
    return Target(tuple(layer.replace("*", number) for layer in found.layers), found.swaps)


@cache
def _table() -> dict[str, Target]:
    """Return the target of each known name, with underscores for dots and `*` for the number of a block."""
    table = {
        (start + layer).replace(".", "_"): Target((start + layer,))
        for start, layers in LAYERS.items()
        for layer in layers.split()
    }
    for (start, own), layers in _ORIGINAL.items():
        for layer, targets in layers.items():
            names = tuple(own + target for target in targets.rstrip("!").split())
            target = Target(names, targets.endswith("!"))
            table[(start + layer).replace(".", "_")] = target
            for ending, comfyui in _COMFYUI:
                if (start + layer).endswith(ending):
                    table[(start + layer.removesuffix(ending) + comfyui).replace(".", "_")] = target
    return table
