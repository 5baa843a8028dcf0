"""The names of tensors in a file, turned into those of the libraries' classes.

llama.cpp also stores the rows of Llama in another order, and embeddings in blocks of GGUF.
"""

import re
from collections.abc import Collection, Mapping
from typing import Any, cast

import torch
from diffusers.loaders.single_file_utils import convert_wan_vae_to_diffusers
from diffusers.quantizers.gguf.utils import GGUFParameter, dequantize_gguf_tensor
from gguf import MODEL_ARCH, get_tensor_name_map
from torch import Tensor, nn

from diffusers_helper.loading.tensors import ROTATION
from diffusers_helper.weights.lora_keys import layers_named
from diffusers_helper.weights.recognition import SCALE, is_extra

# What programs put in front of the names of a whole checkpoint, a text encoder's own class included.
_PREFIXES = (
    "", "model.", "model.diffusion_model.", "diffusion_model.", "transformer.", "module.",
    "first_stage_model.", "vae.", "text_model.", "vision_model.", "model.language_model.",
    "language_model.model.", "model.model.",
    "text_encoders.llama.transformer.model.", "text_encoders.clip_l.transformer.text_model.",
)  # fmt: skip
_WAN_VAE = "decoder.middle.0.residual.0.gamma"  # only in the names of Wan's authors
# A layer of the VAE of Wan 2.2, whose blocks are lists within a list
_WAN_VAE_LAYER = re.compile(r"^(encoder\.down|decoder\.up)samples\.(\d+)\.(?:down|up)samples\.(\d+)\.(.+)")
_WAN_VAE_PARTS = {
    "residual.0.": "norm1.", "residual.2.": "conv1.", "residual.3.": "norm2.", "residual.6.": "conv2.",
    "shortcut.": "conv_shortcut.",
}  # fmt: skip
_IN_BLOCK = re.compile(r".*?\.(\d+)\.")


def library_names(
    tensors: Mapping[str, Tensor], expected: Mapping[str, Tensor], width: int
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Rename the tensors of a file to the names of a library's class, and separate the scales of weights.

    `width` is that of the transformer's blocks, by which its authors' layout is split. The attribute
    `rotation` of a factor is the size of the groups in which the weight is rotated.
    """
    plain = {name: tensor for name, tensor in tensors.items() if not is_extra(name)}
    if is_llama_cpp(plain):
        names = _llama_cpp_names(expected)
        plain = {names.get(name, name): tensor for name, tensor in plain.items()}
    prefix = max(_PREFIXES, key=lambda candidate: _matches(plain, expected, candidate))
    if prefix:
        plain = {name.removeprefix(prefix): plain[name] for name in plain if name.startswith(prefix)}
    if _WAN_VAE in plain:
        plain = {_wan_vae_name(name): tensor for name, tensor in plain.items()}
        plain = cast(dict[str, Tensor], convert_wan_vae_to_diffusers(plain))  # as in Wan 2.1
    rotations = {
        name.replace(ROTATION, "weight"): plain.pop(name) for name in list(plain) if name.endswith(ROTATION)
    }
    scales = {SCALE.sub(".weight", name): plain.pop(name) for name in list(plain) if SCALE.search(name)}
    # The same conversion splits the scales as it splits the rows that they belong to.
    rows = {
        name: scale.to(torch.float32).reshape(-1, 1).expand(plain[name].shape[0], 1)
        for name, scale in scales.items()
        if name in plain and scale.numel() in (1, plain[name].shape[0])
    }
    if wrong := sorted({*scales, *rotations} - rows.keys()):
        weight_name = wrong[0]
        raise ValueError(f"has a scale for {weight_name} that does not belong to its rows; use another file")
    groups = {name: size.expand(plain[name].shape[0], 1) for name, size in rotations.items()}
    if width:
        try:
            plain, rows, groups = (_from_original(part, expected, width) for part in (plain, rows, groups))
        except (RuntimeError, TypeError) as error:  # what torch says about a layer that cannot be split
            raise ValueError("has layers of other sizes than the model; choose a file for it") from error
    factors = {
        name: scale[0].reshape(()).clone() if bool((scale == scale[:1]).all()) else scale.contiguous()
        for name, scale in rows.items()
    }
    for name, sizes in groups.items():
        cast(Any, factors[name]).rotation = int(sizes[0])
    return plain, factors


def _wan_vae_name(name: str) -> str:
    """Name a layer of the VAE of Wan 2.2 as diffusers does; other names stay."""
    if not (match := _WAN_VAE_LAYER.match(name)):
        return name
    side, block, index, layer = match.groups()
    for part, library_part in _WAN_VAE_PARTS.items():
        if layer.startswith(part):
            return f"{side}_blocks.{block}.resnets.{index}.{library_part}{layer.removeprefix(part)}"
    return f"{side}_blocks.{block}.{side.rpartition('.')[2]}sampler.{layer}"


def _matches(names: Collection[str], expected: Mapping[str, Tensor], prefix: str) -> int:
    names_after_prefix = (name[len(prefix) :] for name in names if name.startswith(prefix))
    return sum(
        name in expected or bool(layers_named(name.rpartition(".")[0]) or layers_named(name))
        for name in names_after_prefix
    )


def _from_original(tensors: Mapping[str, Tensor], expected: Collection[str], width: int) -> dict[str, Tensor]:
    """Convert names in the layout of the authors, or of ComfyUI, and split the layers they join.

    diffusers' own functions are not used: that for HunyuanVideo knows neither ComfyUI's names nor any other
    width than 3072, and that for Wan has another name for Helios' last table and exchanges diffusers' norms.
    """
    converted: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        owner, _, leaf = name.rpartition(".")
        target = layers_named(owner)
        if target is None:
            tensor_target = layers_named(name, expected)
            converted[tensor_target.layers[0] if tensor_target else name] = tensor
            continue
        if target.swaps_halves:
            tensor = torch.cat([*tensor.chunk(2)[::-1]])  # GGUF keeps its type only in a list
        pieces = [tensor]
        if len(target.layers) > 1 and target.layers[-1].endswith("proj_mlp"):
            pieces = torch.split(tensor, [width, width, width, len(tensor) - 3 * width])
        elif len(target.layers) > 1:
            pieces = torch.split(tensor, max(len(tensor) // len(target.layers), 1))
        leaf = "weight" if leaf == "scale" else leaf  # of a norm
        converted |= {f"{layer}.{leaf}": piece for layer, piece in zip(target.layers, pieces, strict=True)}
    return converted


_ROTATED = {
    "self_attn.q_proj.weight": "num_attention_heads",
    "self_attn.k_proj.weight": "num_key_value_heads",
}


def is_llama_cpp(names: Collection[str]) -> bool:
    return "token_embd.weight" in names


def _llama_cpp_names(expected: Collection[str]) -> dict[str, str]:
    arch, prefix = (MODEL_ARCH.T5ENCODER, "") if "shared.weight" in expected else (MODEL_ARCH.LLAMA, "model.")
    num_blocks = max((int(match[1]) + 1 for match in filter(None, map(_IN_BLOCK.match, expected))), default=0)
    name_map = get_tensor_name_map(arch, num_blocks)
    names = {name_map.get_name(prefix + name, (".weight",)): name for name in expected}
    return {llama_cpp_name: name for llama_cpp_name, name in names.items() if llama_cpp_name}


def rows_in_order(tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, Tensor]:
    """Put the rows of queries and keys in llama.cpp's tensors in the order that transformers expects.

    llama.cpp rotates neighbouring values of a head together, and transformers those of its two halves. Blocks
    of GGUF lie within a row, so they can be moved without a change. The tensors that are moved are copied.
    """
    ordered = dict(tensors)
    for name, tensor in tensors.items():
        heads = next((config[count] for ending, count in _ROTATED.items() if name.endswith(ending)), 0)
        if heads:
            rows = torch.arange(tensor.shape[0]).reshape(heads, -1, 2).transpose(1, 2).reshape(-1)
            is_gguf = isinstance(tensor, GGUFParameter)
            ordered[name] = _blocks(tensor.as_tensor()[rows], tensor) if is_gguf else tensor[rows]
    return ordered


def _blocks(rows: Tensor, like: GGUFParameter) -> Tensor:
    return GGUFParameter(rows, quant_type=like.quant_type)  # type: ignore[call-arg] - its own __new__


class GGUFEmbedding(nn.Embedding):
    """An embedding in blocks of GGUF, which takes only the rows in use apart."""

    compute_dtype = torch.bfloat16

    def forward(self, input: Tensor) -> Tensor:
        weight = cast(GGUFParameter, self.weight)
        rows = dequantize_gguf_tensor(_blocks(weight.as_tensor()[input.reshape(-1)], weight))
        return cast(Tensor, rows).to(self.compute_dtype).reshape(*input.shape, self.embedding_dim)


def replace_embeddings(network: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    embeddings: dict[nn.Module, nn.Module] = {}
    for name, layer in list(network.named_modules(remove_duplicate=False)):
        if type(layer) is nn.Embedding and isinstance(tensors.get(f"{name}.weight"), GGUFParameter):
            with torch.device("meta"):
                embeddings[layer] = GGUFEmbedding(layer.num_embeddings, layer.embedding_dim)
    for name, layer in list(network.named_modules(remove_duplicate=False)):
        if layer in embeddings:  # an embedding may have several names
            network.set_submodule(name, embeddings[layer])
