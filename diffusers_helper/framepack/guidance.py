"""The transformer as a denoiser, which takes noisy latents and a noise level and returns clean latents."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from diffusers import HunyuanVideoFramepackTransformer3DModel
from torch import Tensor

from diffusers_helper.families.packing import FrameIndices
from diffusers_helper.framepack.encoders import TextCondition, attention_mask
from diffusers_helper.memory.forwards import replace_forward
from diffusers_helper.sampling.step_cache import AllPasses, Passes

# The model was trained with times and guidance scales from 0 to 1000.
_UNIT = 1000.0


class _Once:
    """A forward function that returns its earlier result when it is given the same tensors again.

    They have to be the same objects, and nobody may write to them or to the results.
    """

    def __init__(self, forward: Callable[..., Any]) -> None:
        self._forward = forward
        self._known: list[tuple[tuple[Any, ...], Any]] = []

    def __call__(self, *args: Any, **named: Any) -> Any:
        given = (*args, *named.items())
        for earlier, result in self._known:
            if len(earlier) == len(given) and all(map(_is_same, earlier, given)):
                return result
        result = self._forward(*args, **named)
        self._known.append((given, result))
        return result


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, tuple) and isinstance(other, tuple):  # an argument with its name
        return all(map(_is_same, one, other))
    return one is other if isinstance(one, Tensor) or isinstance(other, Tensor) else one == other


class Constants:
    """The results of those parts of a transformer whose inputs do not change in a section.

    These are the rotary tables, the embeddings of the clean latents and of the picture, and the projections
    of the prompt's states and vector. The text refiner itself sees the time, so it runs in every step.
    """

    def __init__(self, transformer: HunyuanVideoFramepackTransformer3DModel) -> None:
        parts = (
            transformer.rope, transformer.clean_x_embedder, transformer.image_projection,
            transformer.context_embedder.proj_in, transformer.time_text_embed.text_embedder,
        )  # fmt: skip
        self._parts = [(part, _Once(part.forward)) for part in parts if part is not None]

    @contextmanager
    def reused(self) -> Iterator[None]:
        """Let passes of the transformer within the context take these results."""
        with ExitStack() as undo:
            for part, once in self._parts:
                undo.callback(replace_forward(part, once))
            yield


@dataclass(frozen=True, slots=True)
class Condition:
    """The prompts, the picture and the guidance scales that condition a section.

    Attributes:
        negative: The prompt to avoid; None without classifier-free guidance.
        vision: (1, tokens, D), SigLIP's hidden states of the picture.
        guidance: The distilled guidance scale, an input of the transformer.
        cfg_rescale: The share of the rescaled result in `guide`.
    """

    positive: TextCondition
    negative: TextCondition | None
    vision: Tensor
    guidance: float
    cfg: float
    cfg_rescale: float


@dataclass(frozen=True, slots=True)
class Context:
    """The clean latents (1, 16, T, h, w) that a section sees, with their temporal positions."""

    indices: FrameIndices
    start: Tensor
    history_1x: Tensor
    history_2x: Tensor
    history_4x: Tensor


class GuidedDenoiser:
    """The transformer as a denoiser, which returns x0 = x - sigma v for its velocity v (flow matching).

    The transformer computes in the type of its weights. The time, the guidance scale and x0 are in fp32.
    """

    def __init__(
        self,
        transformer: HunyuanVideoFramepackTransformer3DModel,
        condition: Condition,
        context: Context,
        passes: Passes = AllPasses(),  # noqa: B008 - it has no state
    ) -> None:
        self._transformer, self._condition, self._passes = transformer, condition, passes
        self._constants = Constants(transformer)
        self._shared = self._arguments(context)
        texts = (condition.positive, condition.negative)
        self._positive, self._negative = (text and self._text_arguments(text) for text in texts)

    def __call__(self, x: Tensor, sigma: Tensor) -> Tensor:
        """Return x0 for x (1, 16, W, h, w) at the scalar noise level sigma, in x's shape and dtype."""
        assert self._positive is not None
        v = self._velocity("positive", x, sigma, self._positive)
        if self._negative is not None:
            away = self._velocity("negative", x, sigma, self._negative)
            v = guide(v, away, self._condition.cfg, self._condition.cfg_rescale)
        return x - sigma.to(x.dtype) * v.to(x.dtype)

    def _velocity(self, branch: str, x: Tensor, sigma: Tensor, text: dict[str, Tensor]) -> Tensor:
        def compute() -> Tensor:
            with self._constants.reused():
                return self._transformer(
                    hidden_states=x.to(self._transformer.dtype),
                    timestep=(sigma * _UNIT).to(torch.float32).reshape(1),
                    **text,
                    **self._shared,
                    return_dict=False,
                )[0].float()

        return self._passes(branch, x, compute)

    def _put(self, tensor: Tensor) -> Tensor:
        return tensor.to(self._transformer.device, self._transformer.dtype)

    def _text_arguments(self, text: TextCondition) -> dict[str, Tensor]:
        states = self._put(text.states)
        return {
            "encoder_hidden_states": states,
            "encoder_attention_mask": attention_mask(states),
            "pooled_projections": self._put(text.pooled),
        }

    def _arguments(self, context: Context) -> dict[str, Any]:
        indices = context.indices
        guidance = torch.tensor([self._condition.guidance * _UNIT], device=self._transformer.device)
        return {
            "guidance": guidance,
            "image_embeds": self._put(self._condition.vision),
            "indices_latents": torch.tensor(indices.noisy),
            "latents_clean": self._put(torch.cat([context.start, context.history_1x], dim=2)),
            "indices_latents_clean": torch.tensor(indices.clean),
            "latents_history_2x": self._put(context.history_2x),
            "indices_latents_history_2x": torch.tensor(indices.history_2x),
            "latents_history_4x": self._put(context.history_4x),
            "indices_latents_history_4x": torch.tensor(indices.history_4x),
        }


def guide(positive: Tensor, negative: Tensor, cfg: float, rescale: float) -> Tensor:
    """Return negative + cfg (positive - negative), which is classifier-free guidance.

    `rescale` is the share of the same result scaled to the standard deviation of `positive`. This keeps large
    scales from overexposing the video (Lin et al. 2023, arXiv 2305.08891, section 3.4).
    """
    guided = negative + cfg * (positive - negative)
    if rescale > 0:
        guided = guided * (1 - rescale + rescale * positive.std() / guided.std())
    return guided
