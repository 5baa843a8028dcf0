"""A transformer as a denoiser: the guidance of a section, the latents it sees, classifier-free guidance."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Generic, Self, TypeVar

import torch
from torch import Tensor

from diffusers_helper.families.packing import HISTORY, HISTORY_1X, HISTORY_2X, HISTORY_4X, FrameIndices
from diffusers_helper.sampling.step_cache import Passes

# The models were trained with times from 0 to 1000.
NUM_TRAIN_TIMESTEPS = 1000.0
_Text = TypeVar("_Text")


@dataclass(frozen=True, slots=True)
class CleanLatents:
    """The clean latents (1, 16, T, h, w) that a section sees, with their temporal positions."""

    indices: FrameIndices
    start: Tensor
    history_1x: Tensor
    history_2x: Tensor
    history_4x: Tensor

    @classmethod
    def after(cls, indices: FrameIndices, start: Tensor, latents: Tensor) -> Self:
        """Take the start and the last latents so far, padded with zeros before them."""
        zeros = latents.new_zeros(*latents.shape[:2], HISTORY, *latents.shape[3:])
        history = torch.cat([zeros, latents[:, :, -HISTORY:]], dim=2)[:, :, -HISTORY:]
        history_4x, history_2x, history_1x = history.split([HISTORY_4X, HISTORY_2X, HISTORY_1X], dim=2)
        return cls(indices, start, history_1x, history_2x, history_4x)

    @classmethod
    def restored(cls, captured: Mapping[str, Any]) -> Self:
        return cls(**{**captured, "indices": FrameIndices(**captured["indices"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class Guidance(Generic[_Text]):
    """The encoded prompts of a section; no negative one without guidance. `guide` explains the rest."""

    positive: _Text
    negative: _Text | None
    cfg: float
    cfg_rescale: float

    @classmethod
    def restored(cls, captured: Mapping[str, Any]) -> Self:
        """Rebuild what a capture holds, which has mappings in place of dataclasses."""
        return cls(**captured)


class GuidedDenoiser(ABC, Generic[_Text]):
    """A transformer as a denoiser, which returns x0 = x - sigma v for its velocity v (flow matching).

    The transformer computes in the type of its weights. The time and x0 are in fp32.
    """

    def __init__(
        self,
        transformer: Any,
        condition: Guidance[_Text],
        context: CleanLatents,
        passes: Passes = Passes(),  # noqa: B008 - it has no state
    ) -> None:
        self._transformer = transformer
        self._passes = passes
        # diffusers looks at all layers for these two.
        self._device_and_dtype = transformer.device, transformer.dtype
        self._condition: Any = condition  # of the family's own class
        self._context = context
        self._context_arguments = self._arguments(context)
        self._positive = self._text_arguments(condition.positive)
        negative = condition.negative
        self._negative = None if negative is None else self._text_arguments(negative)

    @abstractmethod
    def _arguments(self, context: CleanLatents) -> dict[str, Any]:
        """Prepare the arguments of the transformer that are the same in all of its passes."""

    @abstractmethod
    def _text_arguments(self, text: _Text) -> dict[str, Tensor]:
        """Prepare the arguments of the transformer for a prompt."""

    def _timestep(self, x: Tensor, sigma: Tensor) -> Tensor:
        """Compute the times (1,) of all tokens, or (1, L) of each token."""
        return (sigma * NUM_TRAIN_TIMESTEPS).to(torch.float32).reshape(1)

    def _reused_constants(self) -> AbstractContextManager[None]:
        return nullcontext()

    def __call__(self, x: Tensor, sigma: Tensor) -> Tensor:
        """Predict x0 for x (1, 16, W, h, w) at the scalar noise level sigma, in x's shape and dtype."""
        v = self._velocity("positive", x, sigma, self._positive)
        if self._negative is not None:
            negative = self._velocity("negative", x, sigma, self._negative)
            v = guide(v, negative, self._condition.cfg, self._condition.cfg_rescale)
        return x - sigma.to(x.dtype) * v.to(x.dtype)

    def _velocity(self, branch: str, x: Tensor, sigma: Tensor, text_arguments: dict[str, Tensor]) -> Tensor:
        def compute() -> Tensor:
            with self._reused_constants():
                return self._transformer(
                    hidden_states=self._to_network(x),
                    timestep=self._timestep(x, sigma),
                    **text_arguments,
                    **self._context_arguments,
                    return_dict=False,
                )[0].float()

        return self._passes(branch, x, compute)

    def _to_network(self, tensor: Tensor) -> Tensor:
        return tensor.to(*self._device_and_dtype)


def guide(positive: Tensor, negative: Tensor, cfg: float, rescale: float) -> Tensor:
    """Apply classifier-free guidance: negative + cfg (positive - negative).

    `rescale` is the share of the guided velocity that is scaled to the standard deviation of `positive`. This
    keeps large scales from overexposing the video (Lin et al. 2023, arXiv 2305.08891, section 3.4).
    """
    guided = negative + cfg * (positive - negative)
    if rescale > 0:
        guided = guided * (1 - rescale + rescale * positive.std() / guided.std())
    return guided
