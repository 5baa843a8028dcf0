"""The sampling of a clip: by the model's own scheduler, or at the few times of a distilled model.

Both can go on from the state that an earlier run has stored, with the same result.
"""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor

from diffusers_helper.sampling import Denoise, Denoiser, OnStep
from diffusers_helper.sampling.guidance import NUM_TRAIN_TIMESTEPS

State = Mapping[str, Tensor]
OnState = Callable[[State], object]
"""A function that gets the state after each step, whose tensors it must copy to keep them."""


def new_scheduler(scheduler: Any, steps: int, shift: float = 0.0, *, is_euler: bool = False) -> Any:
    """Copy and prepare a scheduler. UniPC of the first order without its corrector is Euler's method."""
    changes: dict[str, Any] = {"flow_shift": shift} if shift else {}
    if is_euler:
        changes |= {"solver_order": 1, "disable_corrector": [*range(steps)]}
    new = type(scheduler).from_config(scheduler.config, **changes)
    new.set_timesteps(steps)
    return new


def sample_flow(
    denoise: Denoise, x: Tensor, scheduler: Any, *, on_step: OnStep | None = None,
    start: State | None = None, until: int | None = None, on_state: OnState = lambda state: None,
) -> Tensor | State:  # fmt: skip
    """Sample by a prepared scheduler from the state `start` on, or to the state after `until` steps."""
    model = Denoiser(denoise, x, scheduler.sigmas, on_step)
    x = x.to(model.dtype)
    scheduler = deepcopy(scheduler)  # a section may be sampled again after a failure
    scheduler.set_begin_index(0)
    first = 0
    if start:
        x, first = _restore(scheduler, start, x)
    last = len(scheduler.timesteps) - 1
    for index in range(first, last if until is None else min(until, last)):
        velocity = (x - model.predict(x, index)) / model.sigmas[index]
        x = scheduler.step(velocity, scheduler.timesteps[index], x, return_dict=False)[0]
        on_state(_state(scheduler, x))
    if until is not None:
        return _state(scheduler, x)
    return model.result(model.predict(x, last))  # to which the step to noise level 0 would lead


def _state(scheduler: Any, x: Tensor) -> State:
    """Take the state of a UniPC scheduler between two steps, of which the last prediction is the newest."""
    if scheduler.step_index is None:
        return {}
    outputs = {f"output_{n}": x0 for n, x0 in enumerate(scheduler.model_outputs) if x0 is not None}
    counts = [scheduler.step_index, scheduler.lower_order_nums, scheduler.this_order]
    return {"x": x, "last_sample": scheduler.last_sample, "counts": torch.tensor(counts), **outputs}


def _restore(scheduler: Any, state: State, x: Tensor) -> tuple[Tensor, int]:
    step, scheduler.lower_order_nums, scheduler.this_order = state["counts"].tolist()
    scheduler._step_index = step
    scheduler.last_sample = state["last_sample"].to(x)
    for n in range(len(scheduler.model_outputs)):
        output = state.get(f"output_{n}")
        scheduler.model_outputs[n] = None if output is None else output.to(x)
    num_outputs = sum(output is not None for output in scheduler.model_outputs)
    scheduler.timestep_list[-num_outputs:] = scheduler.timesteps[step - num_outputs : step].tolist()
    return state["x"].to(x), step


def sample_at(
    denoise: Denoise, x: Tensor, times: Sequence[int], draw_noise: Callable[[int], Tensor], *,
    on_step: OnStep | None = None, start: State | None = None,
    on_state: OnState = lambda state: None,
) -> Tensor:  # fmt: skip
    """Jump to x0 and add fresh noise at each of the times of a distilled model (DMD)."""
    model = Denoiser(denoise, x, [*(time / NUM_TRAIN_TIMESTEPS for time in times), 0.0], on_step)
    x0, first = x.to(model.dtype), 0
    if start is not None:
        x0, first = start["x"].to(x0), int(start["counts"])
    for index in range(first, len(times)):
        sigma = model.sigmas[index]
        noisy = x0 if index == 0 else (1 - sigma) * x0 + sigma * draw_noise(index).to(x0)
        x0 = model.predict(noisy, index)
        on_state({"x": x0, "counts": torch.tensor(index + 1)})
    return model.result(x0)
