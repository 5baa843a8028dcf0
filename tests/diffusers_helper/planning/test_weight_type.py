"""Tests of the automatic type of the weights: what is chosen, what is said, and what a job records of it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from diffusers_helper.events import Event, Warned
from diffusers_helper.job.plans import MemoryPlans
from diffusers_helper.loading.loaders import Models
from diffusers_helper.machine.local import Facts, Local
from diffusers_helper.models.registry import find_model
from diffusers_helper.models.sizes import Weights
from diffusers_helper.planning.budget import Demand, Stage, StagePlan
from diffusers_helper.planning.profiles import Machine, Profile, profile_for
from diffusers_helper.planning.smaller_plans import FirstPlan, first_plan
from diffusers_helper.planning.video import VideoPlan, plan_video
from diffusers_helper.provenance.branch import branch
from diffusers_helper.provenance.job_folder import JobFolder
from diffusers_helper.provenance.recipe import read_recipe
from diffusers_helper.request import GenerationRequest
from diffusers_helper.units import GB
from tests.support.checkpoints import model_with, to_fp8, to_scaled_fp8
from tests.support.making import make, tiny_request

INFO = find_model("framepack-i2v")
REQUEST = GenerationRequest(image="none", model=INFO.name, weight_dtype="auto")


def plan(card_gb: float, preserved_gb: float = 0.0, name: str = "auto", arch: str = "gfx1100") -> VideoPlan:
    profile = profile_for(Machine("rocm", arch, "card", round(card_gb * GB)), {})
    return plan_video(replace(REQUEST, weight_dtype=name, preserved_gb=preserved_gb), INFO, profile)


def leaving(num_bytes: float) -> dict[str, Any]:
    """Return settings that leave this many bytes for weights on the device."""
    return {"vram_cap_gb": 1.0, "preserved_gb": 1.0 - num_bytes / GB}


@pytest.fixture
def narrow(deep_models: Models, small_scene: Path) -> dict[str, Any]:
    """Return settings with which int8 ends the streaming, while the type of the files is streamed."""

    def sample(name: str, **settings: Any) -> StagePlan:
        request = tiny_request(small_scene, weight_dtype=name, **settings)
        return MemoryPlans(request, deep_models, 64, 64, Local()).plan.stage("sample")

    settings = leaving(1.01 * sample("int8").resident_bytes)
    assert not sample("int8", **settings).streamed_bytes
    assert sample("default", **settings).streamed_bytes
    return settings


def test_a_job_records_the_type_that_it_has_used(
    deep_models: Models, small_scene: Path, tmp_path: Path, narrow: dict[str, Any]
) -> None:
    automatic = tiny_request(small_scene, weight_dtype="auto", mode="forward", seconds=2.0, **narrow)
    made, events = make(automatic, deep_models, tmp_path / "job")
    assert [line for line in reported(events) if "rounded to int8" in line]
    expected, _ = make(replace(automatic, weight_dtype="int8"), deep_models, tmp_path / "int8")
    assert torch.equal(made.latents, expected.latents)
    recipe = read_recipe(made.video)
    assert recipe.settings["weight_dtype"] == "int8"
    # The same job keeps its type where it would choose another one, and so does a branch of it.
    folder = JobFolder(tmp_path / "job")
    (folder.sections / "0002.safetensors").unlink()
    roomy = replace(automatic, vram_cap_gb=None, preserved_gb=None)
    again, events = make(roomy, deep_models, folder.path, resume_from=folder.path)
    assert torch.equal(again.latents, expected.latents)
    assert not reported(events)
    target = JobFolder(tmp_path / "branch")
    target.path.mkdir()
    branched = branch(folder, roomy, 1, {"steps": 3})
    branched.fill(target)
    make(branched.request, deep_models, target.path, resume_from=target.path, lineage=branched.lineage)
    assert target.weight_type.read_text(encoding="ascii") == "int8"
    fresh, events = make(roomy, deep_models, tmp_path / "roomy")
    assert [line for line in reported(events) if "keep the type of the files" in line]
    assert "weight_dtype" not in read_recipe(fresh.video).settings


def reported(events: list[Event]) -> list[str]:
    return [event.message for event in events if isinstance(event, Warned) and "weights" in event.message]


@pytest.mark.parametrize(
    ("cast", "reason"),
    [(to_fp8, "int8 would not be smaller"), (to_scaled_fp8, "they are in GGUF or have scales")],
)
def test_weights_in_8_bit_stay_as_they_are(
    cast: Any, reason: str, deep_model: Path, small_scene: Path, tmp_path: Path
) -> None:
    weights = load_file(deep_model / "transformer" / "diffusion_pytorch_model.safetensors")
    tensors = cast(weights, torch.float8_e4m3fn) if cast is to_fp8 else cast(weights)
    models = model_with(deep_model, tmp_path / "model", transformer=tensors)
    request = tiny_request(small_scene, weight_dtype="auto")
    whole = MemoryPlans(request, models, 64, 64, Local())
    sample = whole.plan.stage("sample")
    assert not sample.streamed_bytes
    assert "stays on the device" in str(whole.notes)
    narrow = replace(request, **leaving(0.9 * sample.resident_bytes))
    plans = MemoryPlans(narrow, models, 64, 64, Local())
    assert plans.plan.stage("sample").streamed_bytes
    assert (plans.request.weight_dtype, reason in str(plans.notes)) == ("default", True)


def test_a_card_that_emulates_bf16_computes_in_it_only_where_fp32_does_not_fit() -> None:
    request = GenerationRequest(image="x", model="framepack-i2v", vram_cap_gb=8.0)
    profile = replace(profile_for(Machine("rocm", "gfx1030", "card", 16 * GB), {}), has_bf16=False)

    def begin(fp32_gb: int) -> FirstPlan:
        def demands(profile: Profile, request: GenerationRequest, height: int, width: int) -> list[Demand]:
            assert (height, width) == (64, 96)
            size = 5 * GB if profile.has_bf16 else fp32_gb * GB
            return [Demand(256, (Stage("sample", Weights("transformer", size), 0),))]

        return first_plan(request, find_model(request.model), profile, 64, 96, demands, Facts(), None)

    for fp32_gb, has_bf16 in ((6, False), (20, True)):
        first = begin(fp32_gb)
        assert first.profile.has_bf16 is has_bf16
        assert ("computes in bf16, which this card emulates" in first.reason) is has_bf16
