"""Tests that Wan's plans are met by networks of random weights, and by whole jobs."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import WanTransformer3DModel

from benchmarks.calibrate_memory import measure, network
from diffusers_helper.families.packing import FrameIndices
from diffusers_helper.families.wan import WAN
from diffusers_helper.planning.backend import Backend
from diffusers_helper.planning.estimates import section_tokens, wan_bytes
from diffusers_helper.sampling.guidance import CleanLatents
from diffusers_helper.wan.schedule import new_scheduler, sample_flow
from diffusers_helper.wan.work import CleanStartDenoiser, WanCondition
from tests.support.making import load_tiny, make, tiny_request
from tests.support.tiny_wan import scheduler

LATENTS = 5


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


@pytest.mark.parametrize("side", [64, 96, 128, 160])
def test_a_job_stays_within_its_plan(side: int, tiny_wan: Path, small_scene: Path, tmp_path: Path) -> None:
    request = tiny_request(
        small_scene, model=str(tiny_wan), mode="forward", resolution=side, clip_frames=17, cfg=5.0
    )
    job, _ = make(request, load_tiny(tiny_wan), tmp_path / "job")
    memory = json.loads((tmp_path / "job/memory.json").read_text())
    assert memory["peak_device_bytes"] <= memory["plan_peak_bytes"]
    streamed, _ = make(replace(request, preserved_gb=64), load_tiny(tiny_wan), tmp_path / "streamed")
    assert torch.equal(streamed.latents, job.latents)
