"""Euler's method on the flow-matching ODE dx/dsigma = (x - x0) / sigma, as diffusers samples FramePack."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from diffusers_helper.sampling.denoiser import Denoise, Denoiser, OnStep


def sample_euler(
    denoise: Denoise, x: Tensor, sigmas: Tensor | Sequence[float], *, on_step: OnStep | None = None
) -> Tensor:
    """Return clean latents by one model call per step: x becomes x + (x - x0) / sigma * (sigma_next - sigma).

    The step to sigma 0 ends at the last prediction itself, which is returned.

    Args:
        denoise: A function (x, sigma) -> x0, both shaped like `x`; sigma is a float64 scalar tensor.
        x: Latents at `sigmas[0]`, of any shape and floating-point dtype, which the result keeps.
        sigmas: The steps + 1 strictly descending noise levels, the last one 0.
        on_step: Called after each model call.

    Raises:
        ValueError: For other sigmas, latents that are not floating-point, or a prediction of another shape.
    """
    model = Denoiser(denoise, x, sigmas, on_step)
    x = x.to(model.dtype)
    x0 = model.predict(x, 0)
    for index in range(1, len(model.sigmas)):
        # This is the same step, written as a mean of x and x0.
        x = x0 + model.sigmas[index] / model.sigmas[index - 1] * (x - x0)
        x0 = model.predict(x, index)
    return model.result(x0)
