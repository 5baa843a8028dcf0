"""What conditions a section of Helios, and the arguments that its transformer takes for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from diffusers import HeliosTransformer3DModel
from torch import Tensor

from diffusers_helper.sampling.guidance import CleanLatents, Guidance, GuidedDenoiser
from diffusers_helper.sampling.step_cache import AllPasses, Passes


@dataclass(frozen=True, slots=True, kw_only=True)
class HeliosCondition(Guidance[Tensor]):
    """The states of the prompts, (1, 512, D), padded with zeros, and the guidance that condition a section.

    Attributes:
        times: The time at noise level 0 and its growth up to level 1, for each size of a pyramid from the
            smallest to the largest; empty for a model that samples in one size.
    """

    times: tuple[tuple[float, float], ...] = ()


class HeliosDenoiser(GuidedDenoiser[Tensor]):
    """Helios' transformer as a denoiser of latents in any size of a pyramid."""

    def __init__(
        self,
        transformer: HeliosTransformer3DModel,
        condition: HeliosCondition,
        context: CleanLatents,
        passes: Passes = AllPasses(),  # noqa: B008 - it has no state
    ) -> None:
        super().__init__(transformer, condition, context, passes)
        self._times, self._width = condition.times, context.start.shape[-1]

    def _time(self, x: Tensor, sigma: Tensor) -> Tensor:
        """Return the time at a noise level, which in a pyramid is a whole number that depends on x's size."""
        if not self._times:
            return super()._time(x, sigma)
        halvings = (self._width // x.shape[-1]).bit_length() - 1
        begin, growth = self._times[len(self._times) - 1 - halvings]
        return (begin + sigma * growth).to(torch.int64)

    def _text_arguments(self, text: Tensor) -> dict[str, Tensor]:
        return {"encoder_hidden_states": self._put(text)}

    def _arguments(self, context: CleanLatents) -> dict[str, Any]:
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
