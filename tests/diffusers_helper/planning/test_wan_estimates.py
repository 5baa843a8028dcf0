"""Tests that Wan's plans are met by networks of random weights, and by whole jobs."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import WanTransformer3DModel

from app.machine import machine_of_card
from benchmarks.calibrate_memory import measure, network
from diffusers_helper.families.packing import FrameIndices
from diffusers_helper.families.wan import WAN
from diffusers_helper.models.registry import find_model
from diffusers_helper.models.sizes import published_bytes
from diffusers_helper.planning.backend import Backend
from diffusers_helper.planning.estimates import section_tokens, wan_bytes
from diffusers_helper.planning.profiles import profile_for
from diffusers_helper.planning.vae_estimates import Tiles, encode_bytes
from diffusers_helper.planning.video import demands_for, known_networks, plan_video, profile_of
from diffusers_helper.request import GenerationRequest
from diffusers_helper.sampling.guidance import CleanLatents
from diffusers_helper.wan.schedule import new_scheduler, sample_flow
from diffusers_helper.wan.work import CleanStartDenoiser, WanCondition
from tests.support.making import load_tiny, make, tiny_request
from tests.support.tiny_wan import scheduler

LATENTS = 5
CARD = profile_for(machine_of_card("gfx1100:24"), {})


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    ("heads", "head_dim", "height", "width"), [(8, 32, 128, 320), (4, 64, 256, 256), (4, 128, 192, 192)]
)
def test_a_pass_takes_what_was_estimated(
    heads: int, head_dim: int, height: int, width: int, dtype: torch.dtype
) -> None:
    module: Any = WanTransformer3DModel(
        num_attention_heads=heads, attention_head_dim=head_dim, in_channels=48, out_channels=48, text_dim=64,
        freq_dim=64, num_layers=2, ffn_dim=heads * head_dim * 14 // 3,
    ).eval()  # fmt: skip
    module.to(dtype)
    noise = torch.randn(1, 48, LATENTS, height // 16, width // 16)
    times = tuple((sigma, round(1000 * sigma)) for sigma in (1.0, 0.5))

    def work() -> None:
        condition = WanCondition(
            positive=torch.randn(1, 512, 64), negative=None, cfg=1.0, cfg_rescale=0.0, times=times
        )
        nothing = noise[:, :, :0]
        context = CleanLatents(FrameIndices((), (), (), (), ()), noise[:, :, :1], nothing, nothing, nothing)
        denoiser = CleanStartDenoiser(module, condition, context)
        sample_flow(denoiser, noise.clone(), new_scheduler(scheduler(), 4))

    tokens = section_tokens(WAN, height, width, LATENTS)
    estimate = wan_bytes(network(module, module.config, dtype), noise.numel(), tokens, backend=Backend())
    assert 1 <= estimate / measure(module, work) <= 1.15


@pytest.mark.parametrize(
    ("model", "settings", "latents"),
    [
        ("wan-5b", {}, 1), ("wan-5b", {"carried_frames": 9}, 3), ("wan-a14b", {}, 21),
        ("wan-a14b", {"clip_frames": 49}, 13), ("helios-base", {}, 9),
    ],
)  # fmt: skip
def test_pictures_are_planned_with_the_frames_that_are_encoded(
    model: str, settings: dict[str, Any], latents: int
) -> None:
    info = find_model(model)
    request = GenerationRequest(image="x", model=model, mode="forward", **settings)
    profile = profile_of(request, CARD, info)
    demand = demands_for(request, info, profile, 480, 832, {})[0]
    (encode,) = (stage.working_bytes for stage in demand.stages if stage.name == "vae_encode")
    sides = Tiles.of(demand.vae_tile_px or 0).fitted(480, 832)
    vae = known_networks(info, profile)["vae"]
    assert encode == encode_bytes(vae, 1, *sides, latents, backend=CARD.backend)


@pytest.mark.parametrize(("steps", "shift"), [(40, 0.0), (4, 0.0), (20, 3.0), (30, 8.0), (7, 12.0)])
def test_each_expert_is_planned_with_its_own_steps(steps: int, shift: float) -> None:
    high = sum(new_scheduler(scheduler(), steps, shift).timesteps >= 900)
    request = GenerationRequest(
        image="x", model="wan-a14b", mode="forward", steps=steps, shift=shift, cfg=3.5, seconds=10
    )
    costs = {cost.stage: cost.all_passes for cost in plan_video(request, find_model("wan-a14b"), CARD).costs}
    assert (costs["sample"], costs["sample_low"]) == (4 * high, 4 * (steps - high))


def test_a_models_own_loras_are_planned_and_downloaded_with_it() -> None:
    sizes = list[dict[str, int]]()
    for model in ("wan-a14b", "wan-a14b-fast"):
        request = GenerationRequest(image="x", model=model, mode="forward")
        demand = demands_for(request, find_model(model), CARD, 480, 832, {})[0]
        sizes.append({stage.name: stage.model.total_bytes for stage in demand.stages})
    # Rank 64 on eight matrices of attention and two of the feed-forward part in each of 40 blocks
    added_bytes = 2 * 64 * 40 * (8 * 2 * 5120 + 2 * (5120 + 13824))
    plain, fast = sizes
    added = {name: fast[name] - plain[name] for name in plain if fast[name] != plain[name]}
    assert added == {"sample": added_bytes, "sample_low": added_bytes}
    assert published_bytes("lora", "wan-a14b") == 2 * added_bytes


@pytest.mark.parametrize("side", [128, 160, 192, 224])
def test_a_jobs_peak_is_planned_within_a_tenth(
    side: int, tiny_wan: Path, small_scene: Path, tmp_path: Path
) -> None:
    request = tiny_request(
        small_scene, model=str(tiny_wan), mode="forward", resolution=side, clip_frames=25, cfg=5.0, steps=2,
        vae_threshold=1.0,
    )  # fmt: skip
    make(request, load_tiny(tiny_wan), tmp_path / "job")
    memory = json.loads((tmp_path / "job/memory.json").read_text())
    assert 1 <= memory["plan_peak_bytes"] / memory["peak_device_bytes"] <= 1.1


def test_a_streamed_job_has_the_same_latents(tiny_wan: Path, small_scene: Path, tmp_path: Path) -> None:
    request = tiny_request(small_scene, model=str(tiny_wan), mode="forward", resolution=64, cfg=5.0)
    job, _ = make(request, load_tiny(tiny_wan), tmp_path / "job")
    streamed, _ = make(replace(request, preserved_gb=64), load_tiny(tiny_wan), tmp_path / "streamed")
    assert torch.equal(streamed.latents, job.latents)
