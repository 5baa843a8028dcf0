"""The encoding of a prompt with UMT5, as in Wan's and Helios' training."""

from __future__ import annotations

import html
from collections.abc import Sequence

from torch import Tensor
from transformers import PreTrainedTokenizerBase, UMT5EncoderModel

from diffusers_helper.families.helios import MAX_TEXT_TOKENS


def encode_states(encoder: UMT5EncoderModel, tokenizer: PreTrainedTokenizerBase, prompt: str) -> Tensor:
    """Return the hidden states (1, L, D) of a prompt's tokens, without padding.

    diffusers pads the tokens first, which gives the same states: no token sees the padding.
    """
    plain = " ".join(html.unescape(html.unescape(prompt)).split())
    tokens = tokenizer(plain, max_length=MAX_TEXT_TOKENS, truncation=True, return_tensors="pt")
    ids, mask = (tokens[name].to(encoder.device) for name in ("input_ids", "attention_mask"))
    return encoder(input_ids=ids, attention_mask=mask).last_hidden_state


def mixed(texts: Sequence[tuple[Tensor, float]]) -> Tensor:
    """Return the weighted sum (1, 512, D) of the states of texts, each padded with zeros as in the training.

    Args:
        texts: The states (1, L, D) of each text, with its share.
    """
    states = texts[0][0]
    result = states.new_zeros(states.shape[0], MAX_TEXT_TOKENS, states.shape[2])
    for text, share in texts:
        result[:, : text.shape[1]] += share * text
    return result
