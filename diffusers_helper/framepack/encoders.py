"""The encoding of prompt and picture: Llama's hidden states, CLIP's pooled output, SigLIP's hidden states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
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

# The index among the hidden states; the last two layers and the final norm are left out.
_HIDDEN_STATE = -3


@dataclass(frozen=True, slots=True)
class TextCondition:
    """One prompt in the form that the transformer takes.

    Attributes:
        states: (1, L, D), the hidden states of its L tokens (1 to 256), without padding.
        pooled: (1, P), one vector for the whole prompt.
    """

    states: Tensor
    pooled: Tensor


def encode_states(encoder: LlamaModel, tokenizer: PreTrainedTokenizerBase, prompt: str) -> Tensor:
    """Return the hidden states (1, L, D) of a prompt in HunyuanVideo's template, without the template's head.

    FramePack pads the tokens to a fixed length. The encoder's attention is causal, and the transformer cuts
    off the padding at the end, so the result is the same without it.

    Raises:
        InputError: If the tokenizer belongs to another encoder.
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
    """Return CLIP's pooled output (1, P) for the prompt without a template, cut off after 77 tokens.

    Raises:
        InputError: If the tokenizer belongs to another encoder.
    """
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


def attention_mask(states: Tensor) -> Tensor:
    """Return the mask (1, L) that the transformer requires, which includes all tokens."""
    return torch.ones(states.shape[:2], dtype=torch.bool, device=states.device)


def mixed(texts: Sequence[tuple[TextCondition, float]]) -> TextCondition:
    """Return the weighted sum of texts, in which the last one gives the number of tokens.

    Longer texts are cut to it, and shorter ones are padded with zeros, as FramePack pads them.

    Args:
        texts: The texts with their shares.
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
