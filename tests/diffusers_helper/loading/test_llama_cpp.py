"""Tests of text encoders in GGUF, as llama.cpp writes them."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize
from torch import Tensor
from transformers import LlamaConfig, LlamaModel

from diffusers_helper.errors import InputError
from diffusers_helper.loading.casting import cast_weights
from diffusers_helper.loading.copying import find_own_component
from diffusers_helper.loading.keys import GGUFEmbedding
from diffusers_helper.loading.loaders import load_models
from diffusers_helper.loading.networks import load_network
from diffusers_helper.models.added import ADDED_MODELS, AddedComponent, AddedModel
from diffusers_helper.models.registry import find_model
from diffusers_helper.models.sizes import networks
from diffusers_helper.weights.inspection import inspect_checkpoint
from tests.support.checkpoints import llama_cpp_names, write_quantised_gguf, write_safetensors
from tests.support.making import make, tiny_request

HEADS, KEY_HEADS = 4, 2
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaModel"], "vocab_size": 200, "hidden_size": 64, "intermediate_size": 96,
    "num_hidden_layers": 3, "num_attention_heads": HEADS, "num_key_value_heads": KEY_HEADS,
    "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "initializer_range": 0.2,
}  # fmt: skip
IDS = torch.tensor([[3, 199, 7, 7, 64, 120]])
ERROR = {"Q8_0": 0.05, "Q5_1": 0.3}  # random weights make them larger than those of a trained text encoder


@pytest.fixture(scope="module")
def llama() -> LlamaModel:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        return LlamaModel(LlamaConfig(**CONFIG)).eval().requires_grad_(False)


def written(
    file: Path, llama: LlamaModel, kind: GGMLQuantizationType, beside: dict[str, Tensor] | None = None
) -> Path:
    """Write matrices in a type, norms in 32 bit, and what llama.cpp's files have besides."""
    tensors = llama_cpp_names(llama.state_dict(), HEADS, KEY_HEADS)
    more = {"output.weight": tensors["token_embd.weight"], "rope_freqs.weight": torch.ones(8)}
    return write_quantised_gguf(file, tensors | more | (beside or {}), kind)


def states(network: Any) -> list[Tensor]:
    with torch.inference_mode():
        return list(network(IDS, output_hidden_states=True).hidden_states)


def error(network: Any, other: Any) -> float:
    """Return the largest distance between the states of two networks, as a share of those of the other."""
    pairs = zip(states(network), states(other), strict=True)
    return max(((mine - exact).norm() / exact.norm()).item() for mine, exact in pairs)


@pytest.mark.parametrize(
    ("kind", "dtype"), [("F32", torch.float32), ("F16", torch.float16), ("BF16", torch.bfloat16)]
)
def test_files_without_blocks_are_exact(
    kind: str, dtype: torch.dtype, llama: LlamaModel, tmp_path: Path
) -> None:
    source = deepcopy(llama)
    for parameter in source.parameters():  # the angles of the rotation stay in 32 bit
        parameter.data = parameter.data.to(dtype)
    file = written(tmp_path / "text.gguf", source, GGMLQuantizationType[kind])
    found = load_network("text_encoder", file, CONFIG)
    own = found.network.state_dict()
    assert found.dtype == dtype
    assert own.keys() == source.state_dict().keys()
    assert all(torch.equal(own[name], tensor) for name, tensor in source.state_dict().items())
    assert all(torch.equal(*pair) for pair in zip(states(found.network), states(source), strict=True))


@pytest.mark.parametrize("kind", ["Q8_0", "Q5_1"])
def test_blocks_stay_as_they_are_stored_and_give_nearly_the_same(
    kind: str, llama: LlamaModel, tmp_path: Path
) -> None:
    file = written(tmp_path / "text.gguf", llama, GGMLQuantizationType[kind])
    found = load_network("text_encoder", file, CONFIG)
    network: Any = found.network
    assert found.dtype == torch.bfloat16
    assert type(network.embed_tokens) is GGUFEmbedding
    assert network.layers[1].self_attn.q_proj.weight.dtype == torch.uint8
    cast_weights(network, torch.float32)
    for norm in (one for one in network.modules() if "Norm" in type(one).__name__):
        norm.float()
    assert error(network, llama) < ERROR[kind]
    rounded = deepcopy(llama)
    for parameter in rounded.parameters():
        if parameter.dim() == 2:
            blocks = quantize(parameter.numpy(), GGMLQuantizationType[kind])
            parameter.data = torch.from_numpy(dequantize(blocks, GGMLQuantizationType[kind]))
    assert error(network, rounded) < 0.005  # diffusers multiplies with scales of 16 bit


def test_a_wrong_order_of_rows_would_be_seen(llama: LlamaModel, tmp_path: Path) -> None:
    tensors = llama_cpp_names(llama.state_dict(), 1, 1)
    file = write_quantised_gguf(tmp_path / "text.gguf", tensors, GGMLQuantizationType.F32)
    assert error(load_network("text_encoder", file, CONFIG).network, llama) > 0.5


def test_its_headers_are_known(llama: LlamaModel, tmp_path: Path) -> None:
    facts = inspect_checkpoint(written(tmp_path / "t.gguf", llama, GGMLQuantizationType.Q8_0), "text_encoder")
    assert (facts.model, facts.key_style, facts.quantised) == ("Llama", "llama.cpp", "gguf Q8_0")
    assert facts.problems == ()


@pytest.fixture
def base(tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(ADDED_MODELS, "file", tmp_path / "data" / "models.json")
    return tiny_model


def test_a_video_with_such_a_file_is_the_same(base: Path, small_scene: Path, tmp_path: Path) -> None:
    info = find_model(str(base), allow_folder=True)
    models = load_models(info, device="cpu")
    source = models.component("text_encoder")
    heads = source.config.num_attention_heads
    assert models.stored_dtype("text_encoder") == torch.float32
    file = write_quantised_gguf(
        tmp_path / "text.gguf", llama_cpp_names(source.state_dict(), heads, heads), GGMLQuantizationType.F32
    )
    found = find_own_component("text_encoder", file, info)
    ADDED_MODELS.add(AddedModel("mine", "Mine", str(base), {"text_encoder": found.component}))
    mine = load_models(find_model("mine"), device="cpu")
    results = [
        make(tiny_request(small_scene), one, tmp_path / name)[0].latents
        for name, one in (("mine", mine), ("source", models))
    ]
    assert torch.equal(*results)
    clip = models.component("text_encoder_2").state_dict()
    other = write_quantised_gguf(tmp_path / "clip.gguf", clip, GGMLQuantizationType.F32)
    with pytest.raises(InputError, match="can only be the transformer or the text_encoder"):
        find_own_component("text_encoder_2", other, info)


def test_reserved_rows_may_be_missing_at_the_end(base: Path, tmp_path: Path) -> None:
    info = find_model(str(base), allow_folder=True)
    source = load_models(info, device="cpu").component("text_encoder")
    heads, rows = source.config.num_attention_heads, source.config.vocab_size
    named = llama_cpp_names(source.state_dict(), heads, heads)
    named["token_embd.weight"] = named["token_embd.weight"][: rows - 2]
    file = write_quantised_gguf(tmp_path / "text.gguf", named, GGMLQuantizationType.F32)
    found = find_own_component("text_encoder", file, info).component
    assert found.config["vocab_size"] == rows - 2
    network: Any = load_network("text_encoder", file, found.config).network
    assert torch.equal(network.embed_tokens.weight, source.embed_tokens.weight[: rows - 2])
    plain = dict(source.state_dict())
    plain["embed_tokens.weight"] = plain["embed_tokens.weight"][: rows - 2]
    with pytest.raises(InputError, match=r"embed_tokens\.weight in the shape"):
        find_own_component("text_encoder", write_safetensors(tmp_path / "t.safetensors", plain), info)


def test_a_plan_counts_its_blocks_as_stored(base: Path, llama: LlamaModel, tmp_path: Path) -> None:
    file = written(tmp_path / "text.gguf", llama, GGMLQuantizationType.Q8_0)
    found = load_network("text_encoder", file, CONFIG).network
    # The tiny model has other sizes, so the part is put on the list unchecked.
    ADDED_MODELS.add(
        AddedModel("mine", "Mine", str(base), {"text_encoder": AddedComponent(str(file), CONFIG)})
    )
    counted = networks(find_model("mine"), on_cpu=True)["text_encoder"]
    blocks: Any = found.layers
    sizes = tuple(sum(one.nbytes for one in block.parameters()) for block in blocks)
    assert counted.weights.block_bytes == sizes
    assert counted.weights.total_bytes == sum(one.nbytes for one in found.parameters())
    assert counted.cast_bytes == 10 * 96 * 64
