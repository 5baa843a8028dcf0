"""What conditions a section of FramePack, and the arguments that its transformer takes for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from diffusers import HunyuanVideoFramepackTransformer3DModel
from torch import Tensor

from diffusers_helper.framepack.encoders import TextCondition, attention_mask
from diffusers_helper.memory.forwards import replace_forward
from diffusers_helper.sampling.guidance import UNIT, CleanLatents, Guidance, GuidedDenoiser
from diffusers_helper.sampling.step_cache import AllPasses, Passes


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


@dataclass(frozen=True, slots=True, kw_only=True)
class FramePackCondition(Guidance[TextCondition]):
    """The prompts, the picture and the guidance scales that condition a section.

    Attributes:
        vision: (1, tokens, D), SigLIP's hidden states of the picture.
        guidance: The distilled guidance scale, an input of the transformer.
    """

    vision: Tensor
    guidance: float


class FramePackDenoiser(GuidedDenoiser[TextCondition]):
    """FramePack's transformer as a denoiser, which computes once what is the same in all steps."""

    def __init__(
        self,
        transformer: HunyuanVideoFramepackTransformer3DModel,
        condition: FramePackCondition,
        context: CleanLatents,
        passes: Passes = AllPasses(),  # noqa: B008 - it has no state
    ) -> None:
        self._condition, self._reused = condition, Constants(transformer).reused
        super().__init__(transformer, condition, context, passes)

    def _text_arguments(self, text: TextCondition) -> dict[str, Tensor]:
        states = self._put(text.states)
        return {
            "encoder_hidden_states": states,
            "encoder_attention_mask": attention_mask(states),
            "pooled_projections": self._put(text.pooled),
        }

    def _arguments(self, context: CleanLatents) -> dict[str, Any]:
        indices = context.indices
        guidance = torch.tensor([self._condition.guidance * UNIT], device=self._transformer.device)
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
