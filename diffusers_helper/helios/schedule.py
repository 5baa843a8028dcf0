"""The sampling of a section by the model's own scheduler: in one size, or in a pyramid of three.

Helios-Base solves the flow in one size with UniPC of order 2. Helios-Distilled begins at a quarter of the
size. At each size it jumps to its clean prediction and back towards the noise with which the size began; then
the result is enlarged, and noise is added that hides the blocks of equal latents.
"""

from __future__ import annotations

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


def renewed(scheduler: Any, shift: float = 0.0) -> Any:
    """Return a scheduler with the same configuration and no state, whose shift is 0 for its own rule."""
    own = {"use_dynamic_shifting": True, "time_shift_type": "linear"} if shift else {}
    return type(scheduler).from_config({**scheduler.config, **own})


def is_pyramid(scheduler: Any) -> bool:
    """Return whether a scheduler has several sizes."""
    return scheduler.config.stages > 1


def times_of(scheduler: Any) -> tuple[tuple[float, float], ...]:
    """Return the time at noise level 0 and its growth up to level 1, for each size of a pyramid."""
    if not is_pyramid(scheduler):
        return ()
    each = [scheduler.timesteps_per_stage[stage] for stage in range(scheduler.config.stages)]
    return tuple((float(times.min()), float(times.max() - times.min())) for times in each)


def flat_levels(scheduler: Any, steps: int, shape: Sequence[int], shift: float = 0.0) -> Tensor:
    """Return the noise levels for one size, which descend to 0. The scheduler is then at their beginning."""
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
    """Return clean latents by the scheduler's own solver, with one model call per step."""
    sigmas = flat_levels(scheduler, steps, x.shape, shift)
    model = Denoiser(denoise, x, sigmas, on_step)
    x = x.to(model.dtype)
    for index, (sigma, time) in enumerate(zip(model.sigmas, scheduler.timesteps, strict=True)):
        velocity = (x - model.predict(x, index)) / sigma
        x = scheduler.step(velocity, time, x, return_dict=False)[0]
    return model.result(x)


@dataclass(frozen=True, slots=True)
class PyramidStage:
    """One size of a pyramid, with its noise levels.

    It begins with `signal` times what the size before has given and `level` times a noise, which the smallest
    size lacks.
    """

    sigmas: Tensor
    signal: float = 1.0
    level: float = 0.0
    noise: Tensor | None = None


def steps_of(steps: int, stages: int) -> list[int]:
    """Return the number of steps at each size; the smallest take those that are left over."""
    return [max(1, (steps + stages - 1 - stage) // stages) for stage in range(stages)]


def pyramid(
    scheduler: Any, steps: int, shape: Sequence[int], draw: Callable[[int, tuple[int, int]], Tensor],
    *, shift: float = 0.0,
) -> list[PyramidStage]:  # fmt: skip
    """Return the sizes of a pyramid, the smallest first.

    Args:
        steps: The number of all steps.
        shape: The shape of the latents, (1, C, W, h, w).
        draw: Returns normally distributed noise for a size, given its number and the shape of the noise.
        shift: The factor by which the noise levels are shifted; 0 for the scheduler's rule.
    """
    count, gamma, found = scheduler.config.stages, scheduler.config.gamma, list[PyramidStage]()
    for stage, own in enumerate(steps_of(steps, count)):
        size, before = (_smaller(shape, count - 1 - place) for place in (stage, max(0, stage - 1)))
        # The levels go by the tokens of the size before, as diffusers has it.
        scheduler.set_timesteps(own, stage, mu=shift or mu_of(tokens_of(before)))
        if stage == 0:
            found.append(PyramidStage(scheduler.sigmas))
            continue
        begin = 1 - scheduler.ori_start_sigmas[stage]
        signal = 1 / (math.sqrt(1 + 1 / gamma) * (1 - begin) + begin)
        drawn = draw(stage, (math.prod(size) // _PATCH**2, _PATCH**2))
        level = signal * (1 - begin) / math.sqrt(gamma)
        found.append(PyramidStage(scheduler.sigmas, signal, level, block_noise(drawn, size, gamma)))
    return found


def _smaller(shape: Sequence[int], halvings: int) -> tuple[int, ...]:
    return (*shape[:3], shape[3] >> halvings, shape[4] >> halvings)


def block_noise(drawn: Tensor, size: Sequence[int], gamma: float) -> Tensor:
    """Return noise (1, C, W, h, w) whose values in each block of 2x2 have a covariance of -gamma.

    It takes away what the enlarged latents have in common there. The matrix is singular but for 1e-8, which
    fp32 rounds away.
    """
    block = _PATCH**2
    same, all_of_them = torch.eye(block, dtype=torch.float64), torch.ones(block, block, dtype=torch.float64)
    covariance = same * (1 + gamma + 1e-8) - all_of_them * gamma
    correlated = drawn @ torch.linalg.cholesky(covariance).T.to(drawn.dtype)
    blocks = correlated.view(*size[:3], size[3] // _PATCH, size[4] // _PATCH, _PATCH, _PATCH)
    return blocks.permute(0, 1, 2, 3, 5, 4, 6).reshape(tuple(size))


def sample_pyramid(
    denoise: Denoise, x: Tensor, stages: Sequence[PyramidStage], *, on_step: OnStep | None = None
) -> Tensor:
    """Return clean latents, given the noise in full size, with one model call per step.

    `on_step` is called with latents in full size, `denoise` with those of each stage.
    """
    dtype, full = x.dtype, (x.shape[-2], x.shape[-1])
    steps = [len(stage.sigmas) - 1 for stage in stages]
    for _ in stages[1:]:
        x = 2 * _resized(x, (x.shape[-2] // 2, x.shape[-1] // 2), "bilinear")
    for number, stage in enumerate(stages):
        if stage.noise is not None:
            larger = _resized(x, (2 * x.shape[-2], 2 * x.shape[-1]), "nearest")
            x = stage.signal * larger + stage.level * stage.noise.to(x.device)
        report = on_step and partial(_report, on_step, sum(steps[:number]), sum(steps), full)
        model, begin = Denoiser(denoise, x, stage.sigmas, report), x
        for index, level in enumerate([*model.sigmas[1:], 0.0]):
            x0 = model.predict(x, index)
            x = (1 - level) * x0 + level * begin
    return x.to(dtype)


def _report(
    on_step: OnStep, before: int, total: int, full: tuple[int, int], step: int, _: int, x0: Tensor
) -> None:
    on_step(before + step, total, x0 if x0.shape[-2:] == full else _resized(x0, full, "nearest"))


def _resized(latents: Tensor, size: tuple[int, int], mode: str) -> Tensor:
    """Return latents (1, C, W, h, w) whose frames have another size."""
    frames = interpolate(latents[0].transpose(0, 1), size=size, mode=mode)
    return frames.transpose(0, 1)[None]
