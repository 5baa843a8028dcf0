"""Tests of ComfyUI's layouts of quantised weights: rotations are undone, and what is packed is refused."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from diffusers_helper.errors import InputError
from diffusers_helper.families.framepack import CONFIGS
from diffusers_helper.loading.loaders import Models
from diffusers_helper.loading.networks import load_network
from diffusers_helper.models.sizes import networks
from diffusers_helper.weights.inspection import inspect_checkpoint
from tests.support.checkpoints import (
    comfyui_names,
    original_names,
    to_convrot,
    to_int8,
    with_prefix,
    write_safetensors,
)
from tests.support.making import make, tiny_request

pytestmark = pytest.mark.usefixtures("own_models")

BF16 = torch.bfloat16
Weights, Add = dict[str, Tensor], Callable[..., Models]
STYLES = {
    "diffusers": dict, "original": original_names, "comfyui": comfyui_names,
    "checkpoint": with_prefix("model.diffusion_model."),
}  # fmt: skip


def effective_weights(network: torch.nn.Module) -> dict[str, Tensor]:
    """Return the weights by which linear layers multiply, whatever they store."""
    found: dict[str, Tensor] = {}
    for name, layer in network.named_modules():
        if type(layer) is torch.nn.Linear:
            layer.bias = None
            dtype = layer.weight.dtype if layer.weight.is_floating_point() else BF16
            found[f"{name}.weight"] = layer(torch.eye(layer.in_features, dtype=dtype)).T.float()
    return found


def decibels(found: Tensor, expected: Tensor) -> float:
    return float(10 * torch.log10(expected.square().mean() / (found - expected).square().mean()))


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("is_listed", [False, True])
def test_the_rotation_of_weights_by_comfyui_is_undone(
    style: str, is_listed: bool, weights: Weights, add: Add, tmp_path: Path
) -> None:
    stored = to_convrot(STYLES[style](weights), 16)
    file = tmp_path / "rotated.safetensors"
    marks = {name: stored[name] for name in stored if name.endswith(".comfy_quant")}
    assert len(marks) > 10
    if is_listed:  # in the metadata, without the prefix of the names, as some programs write them
        prefix = "model.diffusion_model."
        layers = {
            name.removesuffix(".comfy_quant").removeprefix(prefix): json.loads(bytes(mark))
            for name, mark in marks.items()
        }
        plain = {name: tensor.clone() for name, tensor in stored.items() if name not in marks}
        save_file(plain, file, {"_quantization_metadata": json.dumps({"layers": layers})})
    else:
        write_safetensors(file, stored)
    assert inspect_checkpoint(file).quantised == "scaled int8 ConvRot"
    models = add(transformer=file)
    network = models.component("transformer")
    assert network.transformer_blocks[0].attn.to_q.weight.dtype == torch.int8
    found = {name: decibels(one, weights[name]) for name, one in effective_weights(network).items()}
    assert {name: one for name, one in found.items() if not one > 40} == {}


@pytest.mark.slow
def test_rotated_weights_give_the_video(
    weights: Weights, add: Add, small_scene: Path, tmp_path: Path
) -> None:
    latents = {
        name: make(tiny_request(small_scene), add(name, transformer=stored), tmp_path / name)[0].latents
        for name, stored in {"plain": weights, "rotated": to_convrot(weights, 16)}.items()
    }
    assert decibels(latents["rotated"], latents["plain"]) > 25


def test_a_plan_counts_both_copies_of_a_layer_whose_rotation_is_undone(weights: Weights, add: Add) -> None:
    cast_bytes = {
        name: networks(add(name, transformer=stored).info, on_cpu=True)["transformer"].cast_bytes
        for name, stored in {"int8": to_int8(weights), "rotated": to_convrot(weights, 4)}.items()
    }
    assert cast_bytes["rotated"] == 2 * cast_bytes["int8"] > 0


LAYOUTS = ["nvfp4", "mxfp8", "convrot_w4a4", "svdquant_w4a4", "asym_w4a8_int8", "float8_e4m3fn_blockwise"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_other_layouts_of_comfyui_are_refused_by_name(
    layout: str, weights: Weights, add: Add, tmp_path: Path
) -> None:
    mark = torch.tensor([*json.dumps({"format": layout}).encode()], dtype=torch.uint8)
    stored = {**to_int8(weights), "proj_out.comfy_quant": mark}
    file = write_safetensors(tmp_path / "packed.safetensors", stored)
    words = rf"packed.safetensors has weights in the layout {layout}, which only ComfyUI reads; use one in 16"
    with pytest.raises(InputError, match=words):
        add(transformer=file)
    with pytest.raises(ValueError, match=words):
        load_network("transformer", file, dict(CONFIGS["transformer"]))
    facts = inspect_checkpoint(file)
    assert (facts.quantised, facts.problems) == (layout, ())  # ComfyUI's own nodes load it


@pytest.mark.parametrize(("layout", "quantised"), [("int8_tensorwise", "scaled int8"), ("nvfp4", "nvfp4")])
def test_a_list_of_layouts_may_name_them_alone(
    layout: str, quantised: str, weights: Weights, tmp_path: Path
) -> None:
    file = tmp_path / "listed.safetensors"
    listed = {name.removesuffix(".weight"): layout for name in weights}
    save_file(to_int8(weights), file, {"_quantization_metadata": json.dumps({"layers": listed})})
    assert inspect_checkpoint(file).quantised == quantised


@pytest.mark.parametrize("size", [8, 3, 64, -4, "4"])
def test_a_rotation_that_cannot_be_undone_is_refused(size: object, weights: Weights, add: Add) -> None:
    mark = {"format": "int8_tensorwise", "convrot": True, "convrot_groupsize": size}
    marked = {"x_embedder.proj.comfy_quant": torch.tensor([*json.dumps(mark).encode()], dtype=torch.uint8)}
    with pytest.raises(InputError, match=f"int8_tensorwise rotated in groups of {size}, which only ComfyUI"):
        add(transformer={**to_int8(weights), **marked})
