"""Part 6: the decoding of one section by the VAE engine: whole, in windows and in tiles, in two layouts.

And in windows with comfy-kitchen's norms.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from benchmarks.gpu_trial.trial import Case, Figures, Trial, deviation
from diffusers_helper.attention.backends import FUSED, PLAIN
from diffusers_helper.attention.fused import fused_norms
from diffusers_helper.families.packing import DEFAULT_CHUNK, plan_sections
from diffusers_helper.memory.device import Device
from diffusers_helper.planning.out_of_memory import OutOfMemory
from diffusers_helper.planning.vae import Task, Tiles, VaePlan, Video
from diffusers_helper.vae.borrowed import BorrowedVaeOwner
from diffusers_helper.vae.engine import VaeEngine

_TILE_PX, _TINY_TILE_PX = 256, 64
_LAYOUTS = {"plain layout": torch.contiguous_format, "channels last": torch.channels_last_3d}


class _Fixed(BorrowedVaeOwner):
    """A guest with one plan, so that a lack of memory is a result and leads to no smaller plan."""

    def __init__(self, vae: nn.Module, device: Device, plan: VaePlan) -> None:
        super().__init__(vae, device)
        self._fixed = plan

    def plan_vae(self, task: Task, video: Video) -> VaePlan:
        return self._fixed

    def step_down(self, details: OutOfMemory) -> None:
        raise torch.OutOfMemoryError(details.text)


def decodes(trial: Trial) -> Iterator[Case]:
    """Yield the decoding by each plan in each layout. Results are compared with the first one."""
    dtype = torch.float16 if trial.device.has_gpu else torch.float32
    vae, expected = nn.Module.to(trial.network("vae"), trial.torch_device, dtype), list[Tensor]()
    tiles = Tiles.of(_TINY_TILE_PX if trial.is_tiny else _TILE_PX)
    plans = {
        "whole": VaePlan("decode", "whole", 0, Tiles(), 0, ""),
        "in windows": VaePlan("decode", "windows", DEFAULT_CHUNK, Tiles(), 0, ""),
        "in tiles": VaePlan("decode", "whole", 0, tiles, 0, ""),
        "in windows and tiles": VaePlan("decode", "windows", DEFAULT_CHUNK, tiles, 0, ""),
    }
    for layout, memory_format in _LAYOUTS.items():
        for name, plan in plans.items():
            yield f"{name}, {layout}", partial(_decode, trial, vae, memory_format, plan, expected)
    fused = partial(_decode, trial, vae, torch.channels_last_3d, plans["in windows"], expected, FUSED)
    yield "in windows, comfy-kitchen's norms", trial.lacks_kitchen or fused


def _decode(
    trial: Trial, vae: nn.Module, layout: torch.memory_format, plan: VaePlan, expected: list[Tensor],
    kernels: str = PLAIN,
) -> Figures:  # fmt: skip
    for layer in vae.modules():
        if isinstance(layer, nn.Conv3d):
            layer.weight.data = layer.weight.data.contiguous(memory_format=layout)
    height, width = (side // 8 for side in trial.shape)
    count = plan_sections(1.2)[0].decode_latents
    count = DEFAULT_CHUNK + 2 if trial.is_tiny else count  # the fewest that windows divide
    latents = trial.random(1, 16, count, height, width, dtype=cast(Any, vae).dtype)
    engine, frames = VaeEngine(_Fixed(vae, trial.device, plan)), list[Tensor]()

    def run() -> None:
        frames[:] = [engine.decode(latents.contiguous(memory_format=layout))]

    with fused_norms(vae, kernels):
        figures = trial.time(run)
    expected += [] if expected else frames
    return {**figures, "deviation": deviation(frames[0], expected[0])}
