"""Attention as two matrix products: on CPUs two to three times faster to train than the fused kernel."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.nn import functional as F


def plain_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None = None,
    scale: float | None = None,
) -> torch.Tensor:
    """The same sum as torch's; tensors (B, heads, n, dim), a boolean mask says what may be seen."""
    scores = (query * (scale or 1 / math.sqrt(query.shape[-1]))) @ key.transpose(-1, -2)
    if mask is not None:
        scores = scores + torch.zeros(mask.shape, dtype=scores.dtype).masked_fill_(~mask, -1e4)
    return scores.softmax(-1).to(value.dtype) @ value


@contextmanager
def plain_attention_in_training() -> Iterator[None]:
    """Inside, models on the CPU use ``plain_attention`` where it can do the job; for training only."""
    fused = F.scaled_dot_product_attention

    def attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, **more):
        boolean = attn_mask is None or attn_mask.dtype == torch.bool
        if is_causal or dropout_p or any(more.values()) or not boolean or query.device.type != "cpu":
            return fused(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, **more)
        return plain_attention(query, key, value, attn_mask, scale)

    F.scaled_dot_product_attention = attention
    try:
        yield
    finally:
        F.scaled_dot_product_attention = fused
