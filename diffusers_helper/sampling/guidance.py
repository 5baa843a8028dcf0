"""A transformer as a denoiser: what guides a section, what it sees, and classifier-free guidance."""

from __future__ import annotations

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
UNIT = 1000.0
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
    def after(cls, indices: FrameIndices, start: Tensor, made: Tensor) -> Self:
        """Return the start and the last latents of those made so far, padded with zeros before them."""
        nothing = made.new_zeros(*made.shape[:2], HISTORY, *made.shape[3:])
        near = torch.cat([nothing, made[:, :, -HISTORY:]], dim=2)[:, :, -HISTORY:]
        history_4x, history_2x, history_1x = near.split([HISTORY_4X, HISTORY_2X, HISTORY_1X], dim=2)
        return cls(indices, start, history_1x, history_2x, history_4x)

    @classmethod
    def restored(cls, captured: Mapping[str, Any]) -> Self:
        """Return the latents from a capture, which has a mapping for the indices."""
        indices = FrameIndices(**{name: tuple(one) for name, one in captured["indices"].items()})
        return cls(**{**captured, "indices": indices})


@dataclass(frozen=True, slots=True, kw_only=True)
class Guidance(Generic[_Text]):
    """The prompts of a section, encoded, and how strongly they guide it.

    There is no negative one without classifier-free guidance. `guide` explains its two numbers.
    """

    positive: _Text
    negative: _Text | None
    cfg: float
    cfg_rescale: float


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
        self._transformer, self._passes = transformer, passes
        self._placed = transformer.device, transformer.dtype  # diffusers looks at all layers for these
        self._condition: Any = condition  # a family's own
        self._context, self._cfg = context, (condition.cfg, condition.cfg_rescale)
        self._shared = self._arguments(context)
        self._positive, negative = self._text_arguments(condition.positive), condition.negative
        self._negative = None if negative is None else self._text_arguments(negative)

    @abstractmethod
    def _arguments(self, context: CleanLatents) -> dict[str, Any]:
        """Return the arguments of the transformer that are the same in all of its passes."""

    @abstractmethod
    def _text_arguments(self, text: _Text) -> dict[str, Tensor]:
        """Return the arguments of the transformer for a prompt."""

    def _time(self, x: Tensor, sigma: Tensor) -> Tensor:
        """Return the time at a noise level."""
        return (sigma * UNIT).to(torch.float32)

    def _reused(self) -> AbstractContextManager[None]:
        """Return a context manager in which a pass may reuse results of earlier ones."""
        return nullcontext()

    def __call__(self, x: Tensor, sigma: Tensor) -> Tensor:
        """Return x0 for x (1, 16, W, h, w) at the scalar noise level sigma, in x's shape and dtype."""
        v = self._velocity("positive", x, sigma, self._positive)
        if self._negative is not None:
            v = guide(v, self._velocity("negative", x, sigma, self._negative), *self._cfg)
        return x - sigma.to(x.dtype) * v.to(x.dtype)

    def _velocity(self, branch: str, x: Tensor, sigma: Tensor, text: dict[str, Tensor]) -> Tensor:
        def compute() -> Tensor:
            with self._reused():
                return self._transformer(
                    hidden_states=self._put(x),
                    timestep=self._time(x, sigma).reshape(1),
                    **text,
                    **self._shared,
                    return_dict=False,
                )[0].float()

        return self._passes(branch, x, compute)

    def _put(self, tensor: Tensor) -> Tensor:
        return tensor.to(*self._placed)


def guide(positive: Tensor, negative: Tensor, cfg: float, rescale: float) -> Tensor:
    """Return negative + cfg (positive - negative), which is classifier-free guidance.

    `rescale` is the share of the same result scaled to the standard deviation of `positive`. This keeps large
    scales from overexposing the video (Lin et al. 2023, arXiv 2305.08891, section 3.4).
    """
    guided = negative + cfg * (positive - negative)
    if rescale > 0:
        guided = guided * (1 - rescale + rescale * positive.std() / guided.std())
    return guided
