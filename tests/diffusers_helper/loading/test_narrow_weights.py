"""Tests of a card that emulates bf16: networks compute in fp32, with weights that stay in bf16."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from app.machine import machine_of_card
from diffusers_helper.job.plans import MemoryPlans
from diffusers_helper.loading.casting import cast_weights
from diffusers_helper.loading.loaders import Models
from diffusers_helper.machine.local import Local
from diffusers_helper.memory.weights import sizes_of
from diffusers_helper.models.registry import find_model
from diffusers_helper.planning.budget import StagePlan
from diffusers_helper.planning.profiles import PROFILE_VARIABLE, VAE_DTYPE_VARIABLE, profile_for
from diffusers_helper.planning.video import VideoPlan, plan_video
from diffusers_helper.request import GenerationRequest
from tests.support.checkpoints import model_with
from tests.support.making import load_tiny, make, tiny_request

BF16 = torch.bfloat16
CARD = Local({PROFILE_VARIABLE: "gfx103x", VAE_DTYPE_VARIABLE: "stored"})
FILES = {"transformer": "diffusion_pytorch_model.safetensors", "text_encoder": "model.safetensors"}


def rewritten(model: Path, folder: Path, change: Callable[[Tensor], Tensor]) -> Models:
    """Return a copy of a model with other tensors in its transformer and its large text encoder."""
    parts = {
        part: {name: change(tensor) for name, tensor in load_file(model / part / file).items()}
        for part, file in FILES.items()
    }
    return model_with(model, folder, **parts)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["deep_model", "tiny_helios"])
def test_the_video_is_that_of_the_same_weights_in_fp32(
    model: str, small_scene: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    folder: Path = request.getfixturevalue(model)
    narrow = rewritten(folder, tmp_path / "narrow", lambda one: one.to(BF16))
    wide = rewritten(folder, tmp_path / "wide", lambda one: one.to(BF16).float())
    job, types = tiny_request(small_scene, steps=1, mode="forward", resolution=64), set[torch.dtype]()
    for part in FILES:
        for layer in narrow.component(part).modules():
            if isinstance(layer, nn.Linear):
                layer.register_forward_hook(lambda layer, _, out: types.add(out.dtype))
    expected, _ = make(job, wide, tmp_path / "expected")
    found, _ = make(job, narrow, tmp_path / "found", local=CARD)
    assert types == {torch.float32}
    assert {narrow.stored_dtype(part) for part in FILES} == {BF16}
    if model == "deep_model":
        assert torch.equal(found.latents, expected.latents)
    # T5 rounds the input of some layers to the type of their weights.
    torch.testing.assert_close(found.latents, expected.latents, atol=0.05, rtol=0.05)


def test_an_embedding_casts_only_the_rows_in_use() -> None:
    layer = nn.Embedding(7, 3).to(BF16)
    network, asked = nn.Sequential(layer), torch.tensor([[1, 5, 1]])
    expected = layer(asked).float()
    cast_weights(network, torch.float32, casts_bf16=True)
    assert sizes_of(network, [], torch.float32)[0] == 2 * 7 * 3
    assert torch.equal(network(asked), expected)
    cast_weights(network, BF16)
    assert sizes_of(network, [], torch.float32)[0] == 4 * 7 * 3
    assert network(asked).dtype == BF16


def planned(card: str, **settings: Any) -> VideoPlan:
    request = GenerationRequest(image="x", model="framepack-i2v", **settings)
    return plan_video(request, find_model("framepack-i2v"), profile_for(machine_of_card(card), {}))


def sampling(card: str, **settings: Any) -> StagePlan:
    return planned(card, **settings).job.stage("sample")


def test_the_weights_take_no_more_than_in_bf16_and_the_computation_twice_as_much() -> None:
    here, other = (sampling(card, attention="sliced") for card in ("gfx103x:16", "gfx1100:16"))
    assert here.resident_bytes + here.streamed_bytes == other.resident_bytes + other.streamed_bytes
    assert 1.7 < here.working_bytes / other.working_bytes < 2.3
    asked = sampling("gfx103x:16", attention="sliced", weight_dtype="bf16")
    assert asked.working_bytes == other.working_bytes


def test_what_does_not_fit_in_fp32_is_computed_in_bf16() -> None:
    small = planned("gfx103x:8")
    assert any("computes in bf16, which this card emulates slowly" in note for note in small.notes)
    other = sampling("gfx1100:8", attention="sliced")
    assert small.job.stage("sample").working_bytes == other.working_bytes
    assert not any("bf16" in note for note in planned("gfx103x:16").notes)


@pytest.mark.slow
def test_the_plan_predicts_the_peak(mid_model: Path, small_scene: Path, tmp_path: Path) -> None:
    models = load_tiny(mid_model)
    request = tiny_request(small_scene, one_frame=9)
    make(request, models, tmp_path / "job", local=CARD)
    plan = MemoryPlans(request, models, 64, 64, CARD).plan
    stages = json.loads((tmp_path / "job" / "memory.json").read_text(encoding="utf-8"))["stages"]
    measured = next(one["measured_bytes"] for one in stages if one["stage"] == "sample")
    assert 0.9 < measured / (plan.stage("sample").peak_bytes - plan.budget.reserve_bytes) <= 1
    assert sum(parameter.nbytes for parameter in models.component("transformer").parameters()) < measured
