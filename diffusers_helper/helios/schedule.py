"""The sampling of a section by the model's own scheduler: in one size, or in a pyramid of three.

Helios-Base solves the flow in one size with UniPC of order 2. Helios-Distilled begins at a quarter of the
size. At each size it jumps to its clean prediction and back towards the noise with which the size began; then
the result is enlarged, and noise is added that hides the blocks of equal latents.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from diffusers_helper.sampling import Denoise, Denoiser, OnStep
from diffusers_helper.sampling.schedule import mu_of, tokens_of

_FIRST_LEVEL = 0.999
_PATCH = 2


def new_scheduler(scheduler: Any, shift: float = 0.0) -> Any:
    """Copy a scheduler without its state. A shift of 0 stands for its own rule."""
    shift_options = {"use_dynamic_shifting": True, "time_shift_type": "linear"} if shift else {}
    return type(scheduler).from_config(scheduler.config, **shift_options)


def is_pyramid(scheduler: Any) -> bool:
    return scheduler.config.stages > 1


def stage_times(scheduler: Any) -> tuple[tuple[float, float], ...]:
    """List the time at noise level 0 and its growth up to level 1, for each size of a pyramid."""
    if not is_pyramid(scheduler):
        return ()
    stage_timesteps = [scheduler.timesteps_per_stage[stage] for stage in range(scheduler.config.stages)]
    return tuple((float(times.min()), float(times.max() - times.min())) for times in stage_timesteps)


def flat_levels(scheduler: Any, steps: int, shape: Sequence[int], shift: float = 0.0) -> Tensor:
    levels = np.linspace(_FIRST_LEVEL, 0.0, steps + 1)[:-1]
    scheduler.set_timesteps(steps, sigmas=levels, mu=shift or mu_of(tokens_of(shape)))
    return scheduler.sigmas


def sample_flat(
    denoise: Denoise,
    x: Tensor,
    scheduler: Any,
    steps: int,
    *,
    shift: float = 0.0,
    on_step: OnStep | None = None,
) -> Tensor:
    sigmas = flat_levels(scheduler, steps, x.shape, shift)
    model = Denoiser(denoise, x, sigmas, on_step)
    x = x.to(model.dtype)
    for index, (sigma, time) in enumerate(zip(model.sigmas, scheduler.timesteps, strict=True)):
        velocity = (x - model.predict(x, index)) / sigma
        x = scheduler.step(velocity, time, x, return_dict=False)[0]
    return model.result(x)


@dataclass(frozen=True, slots=True)
class PyramidStage:
    """One size of a pyramid, which begins with `signal` times the enlarged previous result, and noise."""

    sigmas: Tensor
    signal: float = 1.0
    level: float = 0.0
    noise: Tensor | None = None


def steps_of(steps: int, stages: int) -> list[int]:
    return [max(1, (steps + stages - 1 - stage) // stages) for stage in range(stages)]


def pyramid(
    scheduler: Any, steps: int, shape: Sequence[int], draw_noise: Callable[[int, tuple[int, int]], Tensor],
    *, shift: float = 0.0,
) -> list[PyramidStage]:  # fmt: skip
    num_stages = scheduler.config.stages
    gamma = scheduler.config.gamma
    pyramid_stages: list[PyramidStage] = []
    for stage, stage_steps in enumerate(steps_of(steps, num_stages)):
        size = _smaller(shape, num_stages - 1 - stage)
        previous_size = _smaller(shape, num_stages - 1 - max(0, stage - 1))
        # The noise levels depend on the tokens of the previous size, as in diffusers.
        scheduler.set_timesteps(stage_steps, stage, mu=shift or mu_of(tokens_of(previous_size)))
        if stage == 0:
            pyramid_stages.append(PyramidStage(scheduler.sigmas))
            continue
        start_level = 1 - scheduler.ori_start_sigmas[stage]
        signal = 1 / (math.sqrt(1 + 1 / gamma) * (1 - start_level) + start_level)
        noise = draw_noise(stage, (math.prod(size) // _PATCH**2, _PATCH**2))
        level = signal * (1 - start_level) / math.sqrt(gamma)
        pyramid_stages.append(PyramidStage(scheduler.sigmas, signal, level, block_noise(noise, size, gamma)))
    return pyramid_stages


def _smaller(shape: Sequence[int], halvings: int) -> tuple[int, ...]:
    return (*shape[:3], shape[3] >> halvings, shape[4] >> halvings)


def block_noise(noise: Tensor, size: Sequence[int], gamma: float) -> Tensor:
    """Correlate noise (1, C, W, h, w), whose values in each block of 2x2 get a covariance of -gamma.

    It hides that the enlarged latents are equal within a block. Without the 1e-8, which fp32 rounds away, the
    covariance matrix would be singular.
    """
    block = _PATCH**2
    identity, ones = torch.eye(block, dtype=torch.float64), torch.ones(block, block, dtype=torch.float64)
    covariance = identity * (1 + gamma + 1e-8) - ones * gamma
    correlated_noise = noise @ torch.linalg.cholesky(covariance).T.to(noise.dtype)
    blocks = correlated_noise.view(*size[:3], size[3] // _PATCH, size[4] // _PATCH, _PATCH, _PATCH)
    return blocks.permute(0, 1, 2, 3, 5, 4, 6).reshape(tuple(size))


def sample_pyramid(
    denoise: Denoise, x: Tensor, stages: Sequence[PyramidStage], *, on_step: OnStep | None = None
) -> Tensor:
    """Sample from noise in full size through all sizes, with one model call per step.

    `on_step` is called with latents in full size, `denoise` with those of each stage.
    """
    dtype = x.dtype
    full_size = (x.shape[-2], x.shape[-1])
    num_steps = [len(stage.sigmas) - 1 for stage in stages]
    for _ in stages[1:]:
        x = 2 * _resize(x, (x.shape[-2] // 2, x.shape[-1] // 2), "bilinear")
    for stage_index, stage in enumerate(stages):
        if stage.noise is not None:
            enlarged = _resize(x, (2 * x.shape[-2], 2 * x.shape[-1]), "nearest")
            x = stage.signal * enlarged + stage.level * stage.noise.to(x.device)
        report = on_step and partial(
            _report, on_step, sum(num_steps[:stage_index]), sum(num_steps), full_size
        )
        model = Denoiser(denoise, x, stage.sigmas, report)
        start = x
        for index, sigma in enumerate([*model.sigmas[1:], 0.0]):
            x0 = model.predict(x, index)
            x = (1 - sigma) * x0 + sigma * start
    return x.to(dtype)


def _report(
    on_step: OnStep, steps_before: int, total_steps: int, full_size: tuple[int, int],
    step: int, _: int, x0: Tensor,
) -> None:  # fmt: skip
    x0 = x0 if x0.shape[-2:] == full_size else _resize(x0, full_size, "nearest")
    on_step(steps_before + step, total_steps, x0)


def _resize(latents: Tensor, size: tuple[int, int], mode: str) -> Tensor:
    frames = interpolate(latents[0].transpose(0, 1), size=size, mode=mode)
    return frames.transpose(0, 1)[None]
