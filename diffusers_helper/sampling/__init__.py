"""The noise schedule, and the samplers that turn noise into latents with one model call per step."""

from collections.abc import Sequence
from importlib import import_module
from typing import Protocol

from torch import Tensor

from diffusers_helper.sampling.denoiser import Denoise, OnStep, StepInfo
from diffusers_helper.sampling.schedule import flow_sigmas, shift_of

__all__ = ["Sampler", "StepInfo", "flow_sigmas", "sampler", "shift_of"]


class Sampler(Protocol):
    """The signature of all samplers; see `sample_euler`."""

    def __call__(
        self, denoise: Denoise, x: Tensor, sigmas: Tensor | Sequence[float], *, on_step: OnStep | None = None
    ) -> Tensor: ...


def sampler(name: str) -> Sampler:
    """Return the sampler with this name in `request.SAMPLERS`, which is `sample_NAME` in the module NAME."""
    return getattr(import_module(f"{__name__}.{name}"), f"sample_{name}")
