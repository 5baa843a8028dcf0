"""Checkpoints with the true names of tensors and scaled-down shapes, in each format and layout of names."""

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch
from gguf import MODEL_ARCH, GGMLQuantizationType, get_tensor_name_map
from gguf.quants import quantize
from safetensors.torch import save_file
from torch import Tensor

from diffusers_helper.loading.loaders import Models
from tests.support.loras import comfyui_name
from tests.support.making import load_tiny
from tests.support.weights import write_gguf

# The layers of one name in the layout of HunyuanVideo's authors, which are several in diffusers' layout.
_JOINED = {
    r"^transformer_blocks\.(\d+)\.attn\.to_([qkv])\.": r"double_blocks.\1.img_attn_qkv.",
    r"^transformer_blocks\.(\d+)\.attn\.add_([qkv])_proj\.": r"double_blocks.\1.txt_attn_qkv.",
    r"^single_transformer_blocks\.(\d+)\.attn\.to_([qkv])\.": r"single_blocks.\1.linear1.",
    r"^single_transformer_blocks\.(\d+)\.(proj_mlp)\.": r"single_blocks.\1.linear1.",
    r"^context_embedder\.token_refiner\.refiner_blocks\.(\d+)\.attn\.to_([qkv])\.": (
        r"txt_in.individual_token_refiner.blocks.\1.self_attn_qkv."
    ),
}
_RENAMED = {
    r"^x_embedder\.": "img_in.",
    r"^time_text_embed\.timestep_embedder\.linear_1": "time_in.mlp.0",
    r"^time_text_embed\.timestep_embedder\.linear_2": "time_in.mlp.2",
    r"^time_text_embed\.guidance_embedder\.linear_1": "guidance_in.mlp.0",
    r"^time_text_embed\.guidance_embedder\.linear_2": "guidance_in.mlp.2",
    r"^time_text_embed\.text_embedder\.linear_1": "vector_in.in_layer",
    r"^time_text_embed\.text_embedder\.linear_2": "vector_in.out_layer",
    r"^context_embedder\.proj_in": "txt_in.input_embedder",
    r"^context_embedder\.time_text_embed\.timestep_embedder\.linear_1": "txt_in.t_embedder.mlp.0",
    r"^context_embedder\.time_text_embed\.timestep_embedder\.linear_2": "txt_in.t_embedder.mlp.2",
    r"^context_embedder\.time_text_embed\.text_embedder": "txt_in.c_embedder",
    r"^context_embedder\.token_refiner\.refiner_blocks": "txt_in.individual_token_refiner.blocks",
    r"^(txt_in\..*)attn\.to_out\.0": r"\1self_attn_proj",
    r"^(txt_in\..*)ff\.net\.0\.proj": r"\1mlp.fc1",
    r"^(txt_in\..*)ff\.net\.2": r"\1mlp.fc2",
    r"^(txt_in\..*)norm_out\.linear": r"\1adaLN_modulation.1",
    r"^transformer_blocks\.": "double_blocks.",
    r"^(double_blocks\.\d+\.)attn\.norm_added_": r"\1txt_attn_NORM_",
    r"^(double_blocks\.\d+\.)attn\.norm_": r"\1img_attn_NORM_",
    r"NORM_([qk])": r"\1_norm",
    r"^(double_blocks\.\d+\.)attn\.to_out\.0": r"\1img_attn_proj",
    r"^(double_blocks\.\d+\.)attn\.to_add_out": r"\1txt_attn_proj",
    r"^(double_blocks\.\d+\.)norm1\.linear": r"\1img_mod.linear",
    r"^(double_blocks\.\d+\.)norm1_context\.linear": r"\1txt_mod.linear",
    r"^(double_blocks\.\d+\.)ff\.net\.0\.proj": r"\1img_mlp.fc1",
    r"^(double_blocks\.\d+\.)ff\.net\.2": r"\1img_mlp.fc2",
    r"^(double_blocks\.\d+\.)ff_context\.net\.0\.proj": r"\1txt_mlp.fc1",
    r"^(double_blocks\.\d+\.)ff_context\.net\.2": r"\1txt_mlp.fc2",
    r"^single_transformer_blocks\.": "single_blocks.",
    r"^(single_blocks\.\d+\.)attn\.norm_([qk])": r"\1\2_norm",
    r"^(single_blocks\.\d+\.)proj_out": r"\1linear2",
    r"^(single_blocks\.\d+\.)norm\.linear": r"\1modulation.linear",
    r"^proj_out": "final_layer.linear",
    r"^norm_out\.linear": "final_layer.adaLN_modulation.1",
}  # fmt: skip


def original_names(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of FramePack's transformer in the layout of HunyuanVideo's authors."""
    found: dict[str, Tensor] = {}
    joined: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        for pattern, group in _JOINED.items():
            if match := re.match(pattern, name):
                joined.setdefault(match.expand(group) + name[match.end() :], {})[match[2]] = tensor
                break
        else:
            if name.startswith("norm_out."):
                tensor = torch.cat(tensor.chunk(2)[::-1])
            for pattern, new in _RENAMED.items():
                name = re.sub(pattern, new, name)
            found[name] = tensor
    for name, parts in joined.items():
        found[name] = torch.cat([parts[one] for one in ("q", "k", "v", "proj_mlp") if one in parts])
    return found


def comfyui_names(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of FramePack's transformer by the names of ComfyUI's class."""
    return {comfyui_name(name): tensor for name, tensor in original_names(tensors).items()}


def llama_cpp_names(tensors: Mapping[str, Tensor], heads: int, key_heads: int) -> dict[str, Tensor]:
    """Return the tensors of a Llama as llama.cpp's conversion writes them, by its own table of names."""
    blocks = 1 + max(int(name.split(".")[1]) for name in tensors if name.startswith("layers."))
    table = get_tensor_name_map(MODEL_ARCH.LLAMA, blocks)
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        own = table.get_name(f"model.{name}", try_suffixes=(".weight",))
        assert own is not None
        count = heads if ".q_proj." in name else key_heads if ".k_proj." in name else 0
        if count:  # the halves of each head become neighbours
            tensor = tensor.reshape(count, 2, -1, tensor.shape[1]).swapaxes(1, 2).reshape(tensor.shape)
        found[own] = tensor
    return found


def with_prefix(prefix: str) -> Callable[[Mapping[str, Tensor]], dict[str, Tensor]]:
    return lambda tensors: {prefix + name: tensor for name, tensor in tensors.items()}


def to_fp8(tensors: Mapping[str, Tensor], kind: torch.dtype) -> dict[str, Tensor]:
    """Cast everything with two sides, as programs that write fp8 files do."""
    return {name: tensor.to(kind) if tensor.dim() == 2 else tensor for name, tensor in tensors.items()}


def to_scaled_fp8(tensors: Mapping[str, Tensor], *, by_row: bool = False) -> dict[str, Tensor]:
    """Cast the weights of linear layers with a factor each, in the names that ComfyUI gives them."""
    found: dict[str, Tensor] = {"scaled_fp8": torch.empty(2, dtype=torch.float8_e4m3fn)}
    for name, tensor in tensors.items():
        found[name] = tensor
        if tensor.dim() == 2 and name.endswith(".weight"):
            whole = tensor.float()
            most = whole.abs().amax(1, keepdim=True) if by_row else whole.abs().amax().reshape(())
            scale = most.clamp(min=1e-12) / 448
            found[name] = (whole / scale).to(torch.float8_e4m3fn)
            found[f"{name.removesuffix('weight')}scale_weight"] = scale
            found[name.removesuffix("weight") + "scale_input"] = torch.ones(())
    return found


def to_int8(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Round the weights of linear layers to whole numbers, with a scale for each row."""
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        found[name] = tensor
        if tensor.dim() == 2 and name.endswith(".weight"):
            scale = tensor.double().abs().amax(1, keepdim=True).float() / 127
            found[name] = (tensor / scale).round().to(torch.int8)
            found[f"{name}_scale"] = scale
    return found


def to_convrot(tensors: Mapping[str, Tensor], size: int) -> dict[str, Tensor]:
    """Rotate groups of each row as comfy-kitchen does, and round them to int8 with a mark for ComfyUI."""
    base = torch.tensor([[1, 1, 1, -1], [1, 1, -1, 1], [1, -1, 1, 1], [-1, 1, 1, 1]]) / 2
    rotation = base
    while len(rotation) < size:
        rotation = torch.kron(rotation, base)
    mark = json.dumps({"format": "int8_tensorwise", "convrot": True, "convrot_groupsize": size})
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        is_rotated = tensor.dim() == 2 and name.endswith(".weight") and tensor.shape[1] % size == 0
        groups = tensor.float().reshape(tensor.shape[0], -1, size) if is_rotated else tensor
        rotated = (groups @ rotation.T).reshape(tensor.shape) if is_rotated else tensor
        found |= to_int8({name: rotated}) if is_rotated else {name: tensor}
        if is_rotated:
            found[f"{name}_scale"] = found[f"{name}_scale"].reshape(-1)
            found[name.replace(".weight", ".comfy_quant")] = torch.tensor([*mark.encode()], dtype=torch.uint8)
    return found


def unscaled(tensors: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """Return the weights that a file in 8 bit, scaled or not, stands for."""
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if re.search(r"scale_(?:weight|input)$|weight_scale$|scaled_fp8$", name):
            continue
        whole = tensor.to(dtype)
        scale = tensors.get(f"{name.removesuffix('weight')}scale_weight", tensors.get(f"{name}_scale"))
        found[name] = whole if scale is None else whole.mul_(scale)
    return found


def write_quantised_gguf(
    file: Path,
    tensors: Mapping[str, Tensor],
    kind: GGMLQuantizationType,
    *,
    plain: torch.dtype = torch.float32,
) -> Path:
    """Write weights of linear layers in blocks where their rows can be divided, and the rest as it is."""
    plain_kind = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 30}[plain]
    entries: dict[str, tuple[int, tuple[int, ...], bytes]] = {}
    for name, tensor in tensors.items():
        shape = tuple(tensor.shape)
        if tensor.dim() == 2 and shape[1] % 32 == 0:
            entries[name] = kind.value, shape, quantize(tensor.float().numpy(), kind).tobytes()
            continue
        if len(shape) > 4:  # the most that GGUF has
            shape = (shape[0], tensor[0].numel())
        data = np.frombuffer(tensor.to(plain).contiguous().view(torch.uint8).numpy().tobytes(), np.uint8)
        entries[name] = plain_kind, shape, data.tobytes()
    return write_gguf(file, entries)


def write_safetensors(file: Path, tensors: Mapping[str, Tensor]) -> Path:
    save_file({name: tensor.clone().contiguous() for name, tensor in tensors.items()}, file)
    return file


def model_with(base: Path, folder: Path, **parts: Mapping[str, Tensor]) -> Models:
    """Write a model like that in the folder `base`, but with these tensors in some of its parts."""
    for part in base.iterdir():
        if part.name not in parts:
            folder.mkdir(exist_ok=True)
            (folder / part.name).symlink_to(part)
            continue
        (folder / part.name).mkdir(parents=True)
        for file in part.iterdir():
            if file.suffix == ".safetensors":
                write_safetensors(folder / part.name / file.name, parts[part.name])
            else:
                (folder / part.name / file.name).symlink_to(file)
    return load_tiny(folder)
