"""Euler's method on the flow-matching ODE dx/dsigma = (x - x0) / sigma, as diffusers samples FramePack."""

from collections.abc import Sequence

from torch import Tensor

from diffusers_helper.sampling import Denoise, Denoiser, OnStep


def sample_euler(
    denoise: Denoise, x: Tensor, sigmas: Tensor | Sequence[float], *, on_step: OnStep | None = None
) -> Tensor:
    """Sample clean latents, with one model call per step.

    Each step replaces x by x + (x - x0) / sigma * (sigma_next - sigma). The step to sigma 0, the last of the
    strictly descending `sigmas`, would end at the last prediction itself, which is therefore returned.
    """
    model = Denoiser(denoise, x, sigmas, on_step)
    x = x.to(model.dtype)
    x0 = model.predict(x, 0)
    for index in range(1, len(model.sigmas)):
        # This is the same step, written as a weighted mean of x and x0.
        x = x0 + model.sigmas[index] / model.sigmas[index - 1] * (x - x0)
        x0 = model.predict(x, index)
    return model.result(x0)
