"""LoRAs of all key styles with random values, and the changes that they make to weights."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

# The linear layers of HunyuanVideo as its authors name them, with (outputs, inputs) at full size. `*` is the
# number of a block.
HUNYUAN: dict[str, tuple[int, int]] = {
    "double_blocks.*.img_mod.linear": (18432, 3072),
    "double_blocks.*.img_attn_qkv": (9216, 3072),
    "double_blocks.*.img_attn_proj": (3072, 3072),
    "double_blocks.*.img_mlp.fc1": (12288, 3072),
    "double_blocks.*.img_mlp.fc2": (3072, 12288),
    "double_blocks.*.txt_mod.linear": (18432, 3072),
    "double_blocks.*.txt_attn_qkv": (9216, 3072),
    "double_blocks.*.txt_attn_proj": (3072, 3072),
    "double_blocks.*.txt_mlp.fc1": (12288, 3072),
    "double_blocks.*.txt_mlp.fc2": (3072, 12288),
    "single_blocks.*.linear1": (21504, 3072),
    "single_blocks.*.linear2": (3072, 15360),
    "single_blocks.*.modulation.linear": (9216, 3072),
    "txt_in.individual_token_refiner.blocks.*.self_attn_qkv": (9216, 3072),
    "txt_in.individual_token_refiner.blocks.*.self_attn_proj": (3072, 3072),
    "txt_in.individual_token_refiner.blocks.*.mlp.fc1": (12288, 3072),
    "txt_in.individual_token_refiner.blocks.*.mlp.fc2": (3072, 12288),
    "txt_in.individual_token_refiner.blocks.*.adaLN_modulation.1": (6144, 3072),
    "txt_in.input_embedder": (3072, 4096),
    "txt_in.t_embedder.mlp.0": (3072, 256),
    "txt_in.t_embedder.mlp.2": (3072, 3072),
    "txt_in.c_embedder.linear_1": (3072, 4096),
    "txt_in.c_embedder.linear_2": (3072, 3072),
    "time_in.mlp.0": (3072, 256),
    "time_in.mlp.2": (3072, 3072),
    "vector_in.in_layer": (3072, 768),
    "vector_in.out_layer": (3072, 3072),
    "guidance_in.mlp.0": (3072, 256),
    "guidance_in.mlp.2": (3072, 3072),
    "final_layer.linear": (64, 3072),
    "final_layer.adaLN_modulation.1": (6144, 3072),
}
BLOCKS = {"double_blocks": 20, "single_blocks": 40, "txt_in": 2}
QKV = ("attn.to_q", "attn.to_k", "attn.to_v")
# What trainers choose of the blocks, in the names of the two families: a layer and those that it joins.
JOINED: dict[str, tuple[str, ...]] = {
    "img_attn_qkv": QKV,
    "img_attn_proj": ("attn.to_out.0",),
    "img_mod.linear": ("norm1.linear",),
    "img_mlp.fc1": ("ff.net.0.proj",),
    "img_mlp.fc2": ("ff.net.2",),
    "txt_attn_qkv": ("attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj"),
    "txt_attn_proj": ("attn.to_add_out",),
    "txt_mod.linear": ("norm1_context.linear",),
    "txt_mlp.fc1": ("ff_context.net.0.proj",),
    "txt_mlp.fc2": ("ff_context.net.2",),
    "linear1": (*QKV, "proj_mlp"),
    "linear2": ("proj_out",),
    "modulation.linear": ("norm.linear",),
}
GROUPS = {"transformer_blocks": "double_blocks", "single_transformer_blocks": "single_blocks"}
Style = Callable[[str], tuple[str, str]]
STYLES: dict[str, Style] = {
    "diffusers": lambda layer: (f"transformer.{layer}.lora_A.weight", f"transformer.{layer}.lora_B.weight"),
    "peft": lambda layer: (
        f"base_model.model.{layer}.lora_A.default.weight", f"base_model.model.{layer}.lora_B.default.weight",
    ),
    "kohya": lambda layer: (
        f"lora_unet_{layer.replace('.', '_')}.lora_down.weight",
        f"lora_unet_{layer.replace('.', '_')}.lora_up.weight",
    ),
    "original": lambda layer: (
        f"diffusion_model.{layer}.lora_A.weight", f"diffusion_model.{layer}.lora_B.weight",
    ),
    "kohya original": lambda layer: (
        f"lora_unet_{layer.replace('.', '_')}.lora_down.weight",
        f"lora_unet_{layer.replace('.', '_')}.lora_up.weight",
    ),
}  # fmt: skip


# What ComfyUI's class calls otherwise than HunyuanVideo's authors, in the order in which it is replaced.
_COMFYUI = {
    r"(t_embedder|time_in|guidance_in)\.mlp\.0\b": r"\1.in_layer",
    r"(t_embedder|time_in|guidance_in)\.mlp\.2\b": r"\1.out_layer",
    r"c_embedder\.linear_1\b": "c_embedder.in_layer",
    r"c_embedder\.linear_2\b": "c_embedder.out_layer",
    r"(_mod|modulation)\.linear\b": r"\1.lin",
    r"_attn_(qkv|proj)\b": r"_attn.\1",
    r"mlp\.fc1\b": "mlp.0",
    r"mlp\.fc2\b": "mlp.2",
    r"_attn_q_norm\b": "_attn.norm.query_norm",
    r"_attn_k_norm\b": "_attn.norm.key_norm",
    r"\.q_norm\b": ".norm.query_norm",
    r"\.k_norm\b": ".norm.key_norm",
}


def comfyui_name(name: str) -> str:
    """Return the name that ComfyUI's class has for a layer or a tensor of HunyuanVideo's authors."""
    for pattern, new in _COMFYUI.items():
        name = re.sub(pattern, new, name)
    return name


def numbered(name: str) -> list[str]:
    return (
        [name.replace("*", str(number)) for number in range(BLOCKS[name.split(".")[0]])]
        if "*" in name
        else [name]
    )


def layers_of(network: nn.Module, *, original: bool) -> dict[str, tuple[str, ...]]:
    """Return the layers of the blocks by a family's names, each with the layers that it joins."""
    found: dict[str, tuple[str, ...]] = {}
    for group, own in GROUPS.items():
        for number in range(len(getattr(network, group))):
            for layer, parts in JOINED.items():
                joined = tuple(f"{group}.{number}.{part}" for part in parts)
                if f"{own}.*.{layer}" not in HUNYUAN:
                    continue
                if original:
                    found[f"{own}.{number}.{layer}"] = joined
                else:
                    found |= {name: (name,) for name in joined}
    return found


def write_lora(
    file: Path,
    network: nn.Module,
    style: str = "diffusers",
    *,
    rank: int = 3,
    alpha: float | None = None,
    seed: int = 1,
    size: float = 0.3,
    dtype: torch.dtype = torch.float32,
    metadata: Mapping[str, str] | None = None,
    more: Mapping[str, Tensor] | None = None,
    layers: Sequence[str] | None = None,
) -> dict[str, Tensor]:
    """Write a LoRA for all layers of a network's blocks, and return the change of each layer's weight.

    Args:
        alpha: The scale to write beside each pair.
        more: Further tensors.
        layers: The beginnings of the layers to write; None for all.
    """
    random = torch.Generator().manual_seed(seed)
    modules = dict(network.named_modules())
    tensors: dict[str, Tensor] = dict(more or {})
    changes: dict[str, Tensor] = {}
    for name, joined in layers_of(network, original="original" in style).items():
        if layers is not None and not name.startswith(tuple(layers)):
            continue
        outputs = [modules[one].out_features for one in joined]
        down = torch.randn(rank, modules[joined[0]].in_features, generator=random)
        up = torch.randn(sum(outputs), rank, generator=random) * size / down.shape[1] ** 0.5
        down, up = down.to(dtype), up.to(dtype)
        key_down, key_up = STYLES[style](name)
        tensors |= {key_down: down, key_up: up}
        if alpha is not None:
            tensors[f"{key_down.removesuffix('.lora_down.weight')}.alpha"] = torch.tensor(alpha)
        change = up.float() @ down.float() * (1 if alpha is None else alpha / rank)
        changes |= dict(zip(joined, change.split(outputs), strict=True))
    file.parent.mkdir(parents=True, exist_ok=True)
    save_file(tensors, file, dict(metadata or {}))
    return changes


def merge(network: nn.Module, changes: Mapping[str, Tensor], weight: float = 1.0) -> None:
    """Add a LoRA's changes to the weights of a network themselves."""
    for name, change in changes.items():
        layer = network.get_submodule(name)
        with torch.no_grad():
            layer.weight = nn.Parameter(
                layer.weight + weight * change.to(layer.weight.dtype), requires_grad=False
            )
