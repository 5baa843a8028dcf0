"""Tests of Helios' networks in single files: Wan's names, ComfyUI's, 8 bit, GGUF, and what stays in fp32."""

import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import AutoencoderKLWan, HeliosTransformer3DModel
from diffusers.loaders.single_file_utils import convert_wan_transformer_to_diffusers
from gguf import MODEL_ARCH, GGMLQuantizationType, get_tensor_name_map
from safetensors.torch import load_file
from torch import Tensor
from transformers import UMT5Config, UMT5EncoderModel

from app.commands.models.add import default_base
from diffusers_helper.families.family import Family
from diffusers_helper.families.helios import HELIOS
from diffusers_helper.families.wan import WAN, WAN_A14B
from diffusers_helper.loading.keys import GGUFEmbedding, library_names
from diffusers_helper.loading.loaders import Models
from diffusers_helper.loading.networks import empty_network, load_network
from diffusers_helper.memory.weights import sizes_of
from diffusers_helper.models.sizes import networks, published_bytes
from diffusers_helper.request import GenerationRequest
from diffusers_helper.weights.inspection import inspect_checkpoint
from tests.support.checkpoints import (
    to_fp8,
    to_int8,
    to_scaled_fp8,
    unscaled,
    with_prefix,
    write_quantised_gguf,
    write_safetensors,
)
from tests.support.making import add_model, load_tiny, make, tiny_request

pytestmark = pytest.mark.usefixtures("own_models")

BF16 = torch.bfloat16
_WAN = {
    r"attn1\.": "self_attn.", r"attn2\.": "cross_attn.", r"\.to_([qkv])\.": r".\1.", r"\.to_out\.0\.": ".o.",
    r"\.norm2\.": ".norm3.", r"^norm_out\.scale_shift_table": "head.modulation",
    r"scale_shift_table": "modulation", r"^proj_out\.": "head.head.",
}  # fmt: skip
_BOTH = {
    r"ffn\.net\.0\.proj": "ffn.0", r"ffn\.net\.2": "ffn.2",
    r"^condition_embedder\.time_proj": "time_projection.1",
    r"^condition_embedder\.(time|text)_embedder\.linear_1": r"\1_embedding.0",
    r"^condition_embedder\.(time|text)_embedder\.linear_2": r"\1_embedding.2",
}  # fmt: skip


def renamed(patterns: Mapping[str, str]) -> Callable[[Mapping[str, Tensor]], dict[str, Tensor]]:
    def names(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        found = dict(tensors)
        for pattern, new in patterns.items():
            found = {re.sub(pattern, new, name): tensor for name, tensor in found.items()}
        return found

    return names


wan_names, comfyui_names = renamed({**_BOTH, **_WAN}), renamed(_BOTH)
VAE_NAMES = {
    r"^quant_conv": "conv1", r"^post_quant_conv": "conv2", r"\.conv_in\.": ".conv1.",
    r"\.mid_block\.resnets\.0\.": ".middle.0.", r"\.mid_block\.resnets\.1\.": ".middle.2.",
    r"\.mid_block\.attentions\.0\.": ".middle.1.", r"\.norm_out\.": ".head.0.",
    r"\.conv_out\.": ".head.2.", r"\.down_blocks\.": ".downsamples.",
    r"(\d)\.norm1\.": r"\1.residual.0.", r"(\d)\.conv1\.": r"\1.residual.2.",
    r"(\d)\.norm2\.": r"\1.residual.3.", r"(\d)\.conv2\.": r"\1.residual.6.",
    r"\.conv_shortcut\.": ".shortcut.",
}  # fmt: skip
STYLES: dict[str, Callable[[Mapping[str, Tensor]], dict[str, Tensor]]] = {
    "diffusers": dict, "wan": wan_names, "comfyui": comfyui_names,
    "checkpoint": lambda tensors: with_prefix("model.diffusion_model.")(wan_names(tensors)),
}  # fmt: skip


@pytest.fixture(scope="module")
def weights(tiny_helios: Path) -> dict[str, Tensor]:
    return load_file(tiny_helios / "transformer" / "diffusion_pytorch_model.safetensors")


@pytest.fixture
def add(tiny_helios: Path) -> Callable[..., Models]:
    return partial(add_model, tiny_helios)


@pytest.fixture
def order(tiny_helios: Path, small_scene: Path) -> GenerationRequest:
    return tiny_request(
        small_scene, model=str(tiny_helios), mode="forward", seconds=1.375, steps=2, resolution=64
    )


def equal(network: torch.nn.Module, tensors: Mapping[str, Tensor]) -> bool:
    found = network.state_dict()
    same = all(torch.equal(found[name], tensor) for name, tensor in tensors.items())
    return found.keys() == tensors.keys() and same


@pytest.mark.parametrize("style", STYLES)
def test_plain_weights_are_those_of_the_file(
    style: str, weights: dict[str, Tensor], add: Callable[..., Models], tmp_path: Path
) -> None:
    file = write_safetensors(tmp_path / "Helios-Base.safetensors", STYLES[style](weights))
    found = inspect_checkpoint(file, "transformer")
    assert (found.model, found.variant, found.problems) == ("Helios", "Base", ())
    assert (found.key_style == "diffusers") == (
        style in ("diffusers", "comfyui")
    )  # whose blocks have the same names
    assert default_base({"transformer": file}) == "helios-base"
    assert equal(add(transformer=file).component("transformer"), weights)


def test_wans_names_are_those_that_diffusers_converts() -> None:
    network = empty_network("transformer", HELIOS.networks["transformer"].config)
    expected = network.state_dict()
    own = wan_names(expected)
    theirs = convert_wan_transformer_to_diffusers(dict(own))
    assert {"norm_out.scale_shift_table" if name == "scale_shift_table" else name for name in theirs} == {
        *expected
    }
    ours, _ = library_names(own, expected, 5120)
    assert {name: one.shape for name, one in ours.items()} == {
        name: one.shape for name, one in expected.items()
    }


@pytest.mark.parametrize("family", [HELIOS, WAN, WAN_A14B], ids=lambda family: family.name)
@pytest.mark.parametrize("part", HELIOS.networks)
def test_the_published_configurations_have_the_published_sizes(part: str, family: Family) -> None:
    known = family.networks[part]
    network = empty_network(part, known.config)
    in_fp32 = getattr(network, "_keep_in_fp32_modules", None) if part == "transformer" else None
    size = {"transformer": 2, "vae": 4, "text_encoder": 2}[part]
    total = sum(
        one.numel() * (4 if {*name.split(".")} & {*(in_fp32 or ())} else size)
        for name, one in network.named_parameters()
    )
    assert total == published_bytes(part, family.name)
    assert {*(in_fp32 or ())} - {"rope"} <= {*known.keep_in_fp32}
    blocks = [network.get_submodule(f"{path}.0") for path in known.block_lists]
    for block, values in zip(blocks, known.blocks, strict=False):
        assert sum(one.numel() for one in block.parameters()) == (
            values.plain + values.castable + values.fixed_bytes // 4
        )


def test_quantised_files_count_as_planned_and_compute_as_what_they_stand_for(
    weights: dict[str, Tensor], add: Callable[..., Models], tmp_path: Path, order: GenerationRequest
) -> None:
    plain = {name: tensor.to(BF16) for name, tensor in weights.items()}
    fp8 = torch.float8_e4m3fn
    files = {
        "fp8": to_fp8(wan_names(plain), fp8), "scaled": to_scaled_fp8(comfyui_names(plain)),
        "int8": to_int8(plain),
    }  # fmt: skip
    found: dict[str, Tensor] = {}
    for name, tensors in files.items():
        file = write_safetensors(tmp_path / f"{name}.safetensors", tensors)
        models = add(name, transformer=file)
        found[name] = make(order, models, tmp_path / name)[0].latents
        check_sizes(models)
        whole = write_safetensors(tmp_path / f"{name} whole.safetensors", unscaled(tensors, BF16))
        expected = make(order, add(f"{name}-whole", transformer=whole), tmp_path / f"{name} whole")[0].latents
        torch.testing.assert_close(found[name], expected, rtol=0, atol=0.02)


def check_sizes(models: Models) -> None:
    known, network = (
        networks(models.info, on_cpu=True)["transformer"].weights,
        models.component("transformer"),
    )
    compute = models.compute_dtype("transformer")
    assert (known.total_bytes, known.block_bytes) == sizes_of(network, models.blocks("transformer"), compute)


@pytest.mark.parametrize("style", STYLES)
def test_gguf_is_as_near_as_its_blocks(
    style: str, tiny_helios: Path, add: Callable[..., Models], tmp_path: Path, order: GenerationRequest,
) -> None:  # fmt: skip
    exact = load_tiny(tiny_helios).component("transformer").state_dict()
    file = write_quantised_gguf(tmp_path / "m.gguf", STYLES[style](exact), GGMLQuantizationType.Q8_0)
    models = add(transformer=file)
    found = make(order, models, tmp_path / "found")[0].latents
    expected = make(order, load_tiny(tiny_helios), tmp_path / "expected")[0].latents
    assert 0 < (found - expected).norm() / expected.norm() < 0.1
    check_sizes(models)


def test_wans_own_vae_is_read(tmp_path: Path) -> None:
    vae: Any = AutoencoderKLWan(base_dim=4)
    own = {_wan_vae_name(name): tensor for name, tensor in vae.state_dict().items()}
    assert "decoder.middle.0.residual.0.gamma" in own
    file = write_safetensors(tmp_path / "wan_2.1_vae.safetensors", own)
    assert inspect_checkpoint(file, "vae").problems == ()
    assert default_base({"vae": file}) == "helios-distilled"
    assert equal(
        load_network("vae", file, {**vae.config, "_class_name": "AutoencoderKLWan"}).network, vae.state_dict()
    )


def _wan_vae_name(name: str) -> str:
    for pattern, new in VAE_NAMES.items():
        name = re.sub(pattern, new, name)
    if match := re.match(r"decoder\.up_blocks\.(\d)\.(resnets|upsamplers)\.(\d)", name):
        place = 4 * int(match[1]) + (3 if match[2] == "upsamplers" else int(match[3]))
        name = f"decoder.upsamples.{place}{name[match.end() :]}"
    return name


def test_umt5_is_read_as_comfyui_names_it(
    tiny_helios: Path, add: Callable[..., Models], tmp_path: Path, order: GenerationRequest
) -> None:
    own = load_file(tiny_helios / "text_encoder" / "model.safetensors")
    stored = {**to_scaled_fp8(own), "spiece_model": torch.zeros(9, dtype=torch.uint8)}
    file = write_safetensors(tmp_path / "umt5_xxl_fp8_e4m3fn_scaled.safetensors", stored)
    assert default_base({"text_encoder": file}) == "helios-distilled"
    models = add(text_encoder=file)
    whole = add(
        "whole", text_encoder=write_safetensors(tmp_path / "whole.safetensors", unscaled(stored, BF16))
    )
    found, expected = (make(order, one, tmp_path / one.info.name)[0].latents for one in (models, whole))
    torch.testing.assert_close(found, expected, rtol=0, atol=0.05)


def write_as_llama_cpp(file: Path, tensors: Mapping[str, Tensor]) -> Path:
    table = get_tensor_name_map(MODEL_ARCH.T5ENCODER, 2)
    named = {str(table.get_name(name, try_suffixes=(".weight",))): tensor for name, tensor in tensors.items()}
    assert "enc.blk.1.ffn_down.weight" in named
    return write_quantised_gguf(file, named, GGMLQuantizationType.Q8_0)


def check_states(network: Any, exact: Any) -> None:
    words = torch.tensor([[3, 4, 5, 1]])
    with torch.inference_mode():
        states, expected = (encoder(words).last_hidden_state.float() for encoder in (network, exact))
    assert 0 < (states - expected).norm() / expected.norm() < 0.05


def test_umt5_is_read_as_llama_cpp_names_it(
    tiny_helios: Path, add: Callable[..., Models], tmp_path: Path
) -> None:
    tensors = load_file(tiny_helios / "text_encoder" / "model.safetensors")
    models = add(text_encoder=write_as_llama_cpp(tmp_path / "umt5.gguf", tensors))
    check_states(models.component("text_encoder"), load_tiny(tiny_helios).component("text_encoder"))


def test_the_embedding_of_umt5_in_blocks_has_two_names(tmp_path: Path) -> None:
    config = UMT5Config(
        vocab_size=9, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4,
        architectures=["UMT5EncoderModel"],
    )  # fmt: skip
    torch.manual_seed(0)
    source = UMT5EncoderModel(config).eval()
    tensors = source.state_dict()
    del tensors["encoder.embed_tokens.weight"]
    file = write_as_llama_cpp(tmp_path / "umt5.gguf", tensors)
    network: Any = load_network("text_encoder", file, config.to_dict()).network
    assert type(network.shared) is GGUFEmbedding
    assert network.encoder.embed_tokens is network.shared
    check_states(network, source)


def test_the_time_embedder_and_the_norms_stay_in_fp32_as_in_diffusers(
    weights: dict[str, Tensor], tiny_helios: Path, tmp_path: Path
) -> None:
    theirs = HeliosTransformer3DModel.from_pretrained(tiny_helios / "transformer", torch_dtype=BF16)
    theirs.save_pretrained(tmp_path / "half")
    ours = load_network("transformer", tmp_path / "half").network
    types = {name: one.dtype for name, one in theirs.named_parameters()}
    assert types == {name: one.dtype for name, one in ours.named_parameters()}
    assert {*types.values()} == {BF16, torch.float32}
