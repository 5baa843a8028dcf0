"""The samplers, which turn noise into latents with one model call per step."""

from collections.abc import Callable, Sequence
from importlib import import_module

import torch
from torch import Tensor

# denoise(x, sigma) predicts clean latents from noisy ones and their noise level, a float64 scalar tensor.
Denoise = Callable[[Tensor, Tensor], Tensor]
# on_step(step, steps, x0) is called after each model call, for progress and previews. Samplers work on a copy
# of x0. The result is ignored; exceptions end the run.
OnStep = Callable[[int, int, Tensor], object]


def sampler(name: str) -> Callable[..., Tensor]:
    """Find the sampler of `request.SAMPLERS` with this name; all have the arguments of `sample_euler`."""
    return getattr(import_module(f"{__name__}.{name}"), f"sample_{name}")


class Denoiser:
    """Models get the latents' own dtype; samplers compute in float32 or more. `sigmas` lacks the 0."""

    def __init__(
        self, denoise: Denoise, x: Tensor, sigmas: Tensor | Sequence[float], on_step: OnStep | None
    ) -> None:
        self.sigmas: list[float] = torch.as_tensor(sigmas, dtype=torch.float64).tolist()[:-1]
        self.dtype = torch.promote_types(x.dtype, torch.float32)
        self._latents_dtype = x.dtype
        self._denoise = denoise
        self._on_step = on_step

    def predict(self, x: Tensor, index: int) -> Tensor:
        """Predict the clean latents for `x` at `sigmas[index]`, as a copy in `dtype`."""
        sigma = torch.tensor(self.sigmas[index], dtype=torch.float64, device=x.device)
        x0 = self._denoise(x.to(self._latents_dtype), sigma)
        # Copy it, as the model may reuse its output buffer and the callback may write to its argument.
        prediction = x0.to(self.dtype, copy=True)
        if self._on_step is not None:
            self._on_step(index + 1, len(self.sigmas), x0)
        return prediction

    def result(self, x0: Tensor) -> Tensor:
        return x0.to(self._latents_dtype)
