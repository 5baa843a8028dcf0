"""The encoding of prompt and picture, what conditions a section, and the arguments of the transformer.

The encodings are Llama's hidden states, CLIP's pooled output and SigLIP's hidden states.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from diffusers import HunyuanVideoFramepackTransformer3DModel
from PIL import Image
from torch import Tensor
from transformers import (
    CLIPTextModel,
    LlamaModel,
    PreTrainedTokenizerBase,
    SiglipImageProcessorPil,
    SiglipVisionModel,
)

from diffusers_helper.conditions.prompts import HEAD_TOKENS, MAX_TEXT_TOKENS, TEMPLATE
from diffusers_helper.errors import InputError
from diffusers_helper.memory.streaming import replace_forward
from diffusers_helper.sampling.guidance import UNIT, CleanLatents, Guidance, GuidedDenoiser

# The index among the hidden states; the last two layers and the final norm are left out.
_HIDDEN_STATE = -3


@dataclass(frozen=True, slots=True)
class TextCondition:
    """One prompt in the form that the transformer takes.

    These are the hidden states (1, L, D) of its L tokens, without padding, and one vector (1, P) for all.
    """

    states: Tensor
    pooled: Tensor


def encode_states(encoder: LlamaModel, tokenizer: PreTrainedTokenizerBase, prompt: str) -> Tensor:
    """Return the hidden states (1, L, D) of a prompt in HunyuanVideo's template, without the template's head.

    FramePack pads the tokens to a fixed length. The encoder's attention is causal, and the transformer cuts
    off the padding at the end, so the result is the same without it.
    """
    tokens = tokenizer(
        TEMPLATE.format(prompt),
        max_length=HEAD_TOKENS + MAX_TEXT_TOKENS,
        truncation=True,
        return_tensors="pt",
    )
    output = encoder(
        input_ids=_known(tokens.input_ids, encoder),
        attention_mask=tokens.attention_mask.to(encoder.device),
        output_hidden_states=True,
        use_cache=False,
    )
    return output.hidden_states[_HIDDEN_STATE][:, HEAD_TOKENS:]


def encode_pooled(encoder: CLIPTextModel, tokenizer: PreTrainedTokenizerBase, prompt: str) -> Tensor:
    """Return CLIP's pooled output (1, P) for the prompt without a template, cut off after 77 tokens."""
    tokens = tokenizer(
        prompt,
        padding="max_length",
        max_length=encoder.config.max_position_embeddings,
        truncation=True,
        return_tensors="pt",
    )
    return encoder(_known(tokens.input_ids, encoder)).pooler_output


def _known(ids: Tensor, encoder: LlamaModel | CLIPTextModel) -> Tensor:
    """Return tokens on the encoder's device, where one that it does not know would end the process."""
    largest, words = int(ids.max()), int(encoder.config.vocab_size)
    if largest >= words:
        raise InputError(
            f"The text encoder {type(encoder).__name__} knows {words:,} tokens, but its tokenizer gives "
            f"token {largest:,}; expected the tokenizer and the encoder of one model.",
            "Add the model again with matching folders.",
        )
    return ids.to(encoder.device)


def mixed(texts: Sequence[tuple[TextCondition, float]]) -> TextCondition:
    """Return the sum of texts, weighted by their shares, in which the last one gives the number of tokens.

    Longer texts are cut to it, and shorter ones are padded with zeros, as FramePack pads them.
    """
    last = texts[-1][0]
    if len(texts) == 1:
        return last
    states, pooled = torch.zeros_like(last.states), torch.zeros_like(last.pooled)
    for text, share in texts:
        length = min(text.states.shape[1], states.shape[1])
        states[:, :length] += share * text.states[:, :length]
        pooled += share * text.pooled
    return TextCondition(states, pooled)


def encode_vision(
    encoder: SiglipVisionModel, processor: SiglipImageProcessorPil, picture: Image.Image
) -> Tensor:
    """Return the hidden states (1, tokens, D) of a picture, which is first scaled to the encoder's square."""
    pixels = processor(images=np.asarray(picture), return_tensors="pt").pixel_values
    return encoder(pixels.to(encoder.device, encoder.dtype)).last_hidden_state


class Constants:
    """The results of those parts of a transformer whose inputs do not change in a section.

    The text refiner itself sees the time, so it runs in every step. Tensors are the same only as the same
    objects, and nobody may write to them or to the results.
    """

    def __init__(self, transformer: HunyuanVideoFramepackTransformer3DModel) -> None:
        parts = (
            transformer.rope, transformer.clean_x_embedder, transformer.image_projection,
            transformer.context_embedder.proj_in, transformer.time_text_embed.text_embedder,
        )  # fmt: skip
        self._parts = [(part, cache(part.forward)) for part in parts if part is not None]

    @contextmanager
    def reused(self) -> Iterator[None]:
        """Let passes of the transformer within the context take these results."""
        with ExitStack() as undo:
            for part, once in self._parts:
                undo.callback(replace_forward(part, once))
            yield


@dataclass(frozen=True, slots=True, kw_only=True)
class FramePackCondition(Guidance[TextCondition]):
    """The prompts, SigLIP's states (1, tokens, D) of the picture, and the guidance scales of a section."""

    vision: Tensor
    guidance: float


class FramePackDenoiser(GuidedDenoiser[TextCondition]):
    """FramePack's transformer as a denoiser, which computes once what is the same in all steps."""

    def __init__(self, transformer: HunyuanVideoFramepackTransformer3DModel, *others: Any) -> None:
        super().__init__(transformer, *others)
        self._reused = Constants(transformer).reused

    def _text_arguments(self, text: TextCondition) -> dict[str, Tensor]:
        states = self._put(text.states)
        return {
            "encoder_hidden_states": states,
            "encoder_attention_mask": torch.ones_like(states[..., 0], dtype=torch.bool),  # all tokens
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
