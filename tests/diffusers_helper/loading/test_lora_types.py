"""Tests of LoRAs beside weights of every type: their effect, their memory, and that they leave no trace."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType
from safetensors.torch import load_file
from torch import Tensor

from diffusers_helper.loading.loaders import Models, load_models
from diffusers_helper.models.registry import ComponentSource
from tests.support.checkpoints import to_scaled_fp8, write_quantised_gguf, write_safetensors
from tests.support.loras import write_lora
from tests.support.making import load_tiny, make, tiny_request

Q8 = GGMLQuantizationType.Q8_0


@pytest.mark.slow
def test_weights_of_every_type_take_a_lora(mid_model: Path, small_scene: Path, tmp_path: Path) -> None:
    plain, lora = load_tiny(mid_model), tmp_path / "style.safetensors"
    write_lora(lora, plain.component("transformer"), "kohya original", rank=32, alpha=32)
    tensors = load_file(mid_model / "transformer" / "diffusion_pytorch_model.safetensors")
    config = json.loads((mid_model / "transformer" / "config.json").read_text(encoding="utf-8"))

    def of(file: Path) -> Models:
        part = {"transformer": ComponentSource(location=str(file), config=config)}
        return load_models(replace(plain.info, components=plain.info.components | part), device="cpu")

    stored = {
        **dict.fromkeys(("default", "fp16", "fp8_e4m3fn", "int8"), plain),
        "gguf": of(write_quantised_gguf(tmp_path / "blocks.gguf", tensors, Q8)),
        "scaled": of(write_safetensors(tmp_path / "scaled.safetensors", to_scaled_fp8(tensors))),
    }
    request = tiny_request(small_scene, lora=str(lora), steps=1, one_frame=9)
    bare, _ = make(replace(request, lora=""), plain, tmp_path / "bare")
    latents: dict[str, Tensor] = {}
    for name, models in stored.items():
        dtype = name if models is plain else "default"
        latents[name] = make(replace(request, weight_dtype=dtype), models, tmp_path / name)[0].latents
        stages = json.loads((tmp_path / name / "memory.json").read_text(encoding="utf-8"))["stages"]
        sample = next(one for one in stages if one["stage"] == "sample")
        # A processor without bf16 computes weights in fp16 in fp32, which takes 2 % more than planned.
        assert 0.9 < sample["measured_bytes"] / sample["predicted_bytes"] <= (1.03 if name == "fp16" else 1)
    effect = (latents["default"] - bare.latents).abs().mean()
    for name in latents:  # rounding the weights changes far less than the LoRA does
        assert (latents[name] - latents["default"]).abs().mean() < 0.1 * effect, name
    again, _ = make(replace(request, lora=""), plain, tmp_path / "again")
    assert torch.equal(again.latents, bare.latents)
