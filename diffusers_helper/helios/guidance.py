"""Helios' transformer as a denoiser, which takes noisy latents and a noise level and returns clean ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from diffusers import HeliosTransformer3DModel
from torch import Tensor

from diffusers_helper.framepack.guidance import Context, guide
from diffusers_helper.sampling.step_cache import AllPasses, Passes

# The model was trained with times from 0 to 1000.
_UNIT = 1000.0


@dataclass(frozen=True, slots=True)
class Condition:
    """The prompts and the guidance that condition a section.

    Attributes:
        positive: The states of the prompt, (1, 512, D), padded with zeros.
        negative: Those of the prompt to avoid; None without classifier-free guidance.
        cfg: The scale of classifier-free guidance.
        cfg_rescale: The share of the rescaled result in `guide`.
        times: The time at noise level 0 and its growth up to level 1, for each size of a pyramid from the
            smallest to the largest; empty for a model that samples in one size.
    """

    positive: Tensor
    negative: Tensor | None
    cfg: float
    cfg_rescale: float
    times: tuple[tuple[float, float], ...]


class GuidedDenoiser:
    """The transformer as a denoiser, which returns x0 = x - sigma v for its velocity v (flow matching).

    The transformer computes in the type of its weights. The time and x0 are in fp32.
    """

    def __init__(
        self,
        transformer: HeliosTransformer3DModel,
        condition: Condition,
        context: Context,
        passes: Passes = AllPasses(),  # noqa: B008 - it has no state
    ) -> None:
        self._transformer, self._condition, self._passes = transformer, condition, passes
        self._width = context.start.shape[-1]
        self._shared = self._arguments(context)
        texts = (condition.positive, condition.negative)
        self._positive, self._negative = (None if text is None else self._put(text) for text in texts)

    def __call__(self, x: Tensor, sigma: Tensor) -> Tensor:
        """Return x0 for x (1, 16, W, h, w) at the scalar noise level sigma, in x's shape and dtype."""
        assert self._positive is not None
        v = self._velocity("positive", x, sigma, self._positive)
        if self._negative is not None:
            away = self._velocity("negative", x, sigma, self._negative)
            v = guide(v, away, self._condition.cfg, self._condition.cfg_rescale)
        return x - sigma.to(x.dtype) * v.to(x.dtype)

    def _velocity(self, branch: str, x: Tensor, sigma: Tensor, text: Tensor) -> Tensor:
        def compute() -> Tensor:
            return self._transformer(
                hidden_states=x.to(self._transformer.dtype),
                timestep=self._time(x, sigma).reshape(1),
                encoder_hidden_states=text,
                **self._shared,
                return_dict=False,
            )[0].float()

        return self._passes(branch, x, compute)

    def _time(self, x: Tensor, sigma: Tensor) -> Tensor:
        """Return the time at a noise level, which in a pyramid is a whole number that depends on x's size."""
        times = self._condition.times
        if not times:
            return (sigma * _UNIT).to(torch.float32)
        halvings = (self._width // x.shape[-1]).bit_length() - 1
        begin, growth = times[len(times) - 1 - halvings]
        return (begin + sigma * growth).to(torch.int64)

    def _put(self, tensor: Tensor) -> Tensor:
        return tensor.to(self._transformer.device, self._transformer.dtype)

    def _arguments(self, context: Context) -> dict[str, Any]:
        indices = context.indices
        positions = {
            "indices_hidden_states": indices.noisy,
            "indices_latents_history_short": indices.clean,
            "indices_latents_history_mid": indices.history_2x,
            "indices_latents_history_long": indices.history_4x,
        }
        return {
            **{name: torch.tensor([one]) for name, one in positions.items()},
            "latents_history_short": self._put(torch.cat([context.start, context.history_1x], dim=2)),
            "latents_history_mid": self._put(context.history_2x),
            "latents_history_long": self._put(context.history_4x),
        }
