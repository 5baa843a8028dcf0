"""Llama and T5 as llama.cpp stores them: names, the order of rows, and embeddings in blocks of GGUF."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, cast

import torch
from diffusers.quantizers.gguf.utils import GGUFParameter, dequantize_gguf_tensor
from torch import Tensor, nn

# The layers of llama.cpp with those of transformers; the ones in blocks have the block's number before them.
_LAYERS = {
    "token_embd": "embed_tokens", "output_norm": "norm", "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip
_T5_LAYERS = {
    "token_embd": "shared", "output_norm": "final_layer_norm", "attn_norm": "layer.0.layer_norm",
    "attn_q": "layer.0.SelfAttention.q", "attn_k": "layer.0.SelfAttention.k",
    "attn_v": "layer.0.SelfAttention.v", "attn_o": "layer.0.SelfAttention.o",
    "attn_rel_b": "layer.0.SelfAttention.relative_attention_bias", "ffn_norm": "layer.1.layer_norm",
    "ffn_gate": "layer.1.DenseReluDense.wi_0", "ffn_up": "layer.1.DenseReluDense.wi_1",
    "ffn_down": "layer.1.DenseReluDense.wo",
}  # fmt: skip
_NAME = re.compile(r"(enc\.)?(?:blk\.(\d+)\.)?(\w+)\.weight")
_ROTATED = {
    "self_attn.q_proj.weight": "num_attention_heads",
    "self_attn.k_proj.weight": "num_key_value_heads",
}


def is_llama_cpp(names: Collection[str]) -> bool:
    """Return whether tensors have the names that llama.cpp gives to Llama or T5."""
    return "token_embd.weight" in names


def from_llama_cpp(name: str, *, is_t5: bool) -> str:
    """Return the name that transformers has for a tensor of llama.cpp; a foreign name stays as it is."""
    match = _NAME.fullmatch(name)
    layers, (start, blocks) = (_T5_LAYERS, ("encoder.", "block")) if is_t5 else (_LAYERS, ("", "layers"))
    if match is None or match[3] not in layers:
        return name
    block = "" if match[2] is None else f"{blocks}.{match[2]}."
    return f"{start if match[1] else ''}{block}{layers[match[3]]}.weight"


def rows_in_order(tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return all tensors, with the rows of queries and keys in the order that transformers expects.

    llama.cpp rotates neighbouring values of a head together, and transformers those of its two halves. Blocks
    of GGUF lie within a row, so they can be moved without a change. The tensors that are moved are copied.

    Args:
        tensors: The tensors by transformers' names, as llama.cpp stores them.
    """
    return {name: _in_order(name, tensor, config) for name, tensor in tensors.items()}


def _in_order(name: str, tensor: Tensor, config: Mapping[str, Any]) -> Tensor:
    heads = next((config[count] for ending, count in _ROTATED.items() if name.endswith(ending)), 0)
    if not heads:
        return tensor
    rows = torch.arange(tensor.shape[0]).reshape(heads, -1, 2).transpose(1, 2).reshape(-1)
    if isinstance(tensor, GGUFParameter):
        return _blocks(tensor.as_tensor()[rows], tensor)
    return tensor[rows]


def _blocks(rows: Tensor, like: GGUFParameter) -> Tensor:
    return GGUFParameter(rows, quant_type=like.quant_type)  # type: ignore[call-arg] - its own __new__


class GGUFEmbedding(nn.Embedding):
    """An embedding in blocks of GGUF, which takes only the rows in use apart."""

    compute_dtype = torch.bfloat16

    def forward(self, input: Tensor) -> Tensor:
        """Return the rows of these numbers, in the type that computes."""
        weight = cast(GGUFParameter, self.weight)
        rows = dequantize_gguf_tensor(_blocks(weight.as_tensor()[input.reshape(-1)], weight))
        return cast(Tensor, rows).to(self.compute_dtype).reshape(*input.shape, self.embedding_dim)


def replace_embeddings(network: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Replace those embeddings of an empty network whose weights are in blocks."""
    made: dict[nn.Module, nn.Module] = {}
    for name, layer in list(network.named_modules(remove_duplicate=False)):
        if type(layer) is nn.Embedding and isinstance(tensors.get(f"{name}.weight"), GGUFParameter):
            with torch.device("meta"):
                made[layer] = GGUFEmbedding(layer.num_embeddings, layer.embedding_dim)
    for name, layer in list(network.named_modules(remove_duplicate=False)):
        if layer in made:  # an embedding may have several names
            network.set_submodule(name, made[layer])
