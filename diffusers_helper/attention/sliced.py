"""Attention in slices of queries, which is exact and needs only the memory that it is given.

SDPA's math kernel stores the scores of all tokens with each other: 65 GB at FramePack's size. Here only those
of some queries of one head are stored. Each query's result depends on no other query, so the results are the
same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

from diffusers_helper.attention.ways import slice_of


class Sliced(TorchFunctionMode):
    """A context in which this thread's calls of SDPA are computed in slices."""

    def __init__(self, limit_bytes: int) -> None:
        """Prepare the context.

        Args:
            limit_bytes: The memory that one slice may take.
        """
        super().__init__()
        self._limit_bytes = limit_bytes

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # fmt: skip
        if func is scaled_dot_product_attention:
            func = partial(sliced_attention, self._limit_bytes)
        return func(*args, **(kwargs or {}))


def sliced_attention(
    limit_bytes: int, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None,
    dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    """Return what SDPA does with these arguments, (B, H, N, D) and (B, H, M, D), computed in fp32.

    The first argument is the memory that one slice may take. `attn_mask` has a shape that broadcasts to
    (B, H, N, M), and says whether a query sees a key, or what is added to its scores.
    """
    if dropout_p or is_causal or enable_gqa:
        raise NotImplementedError("No network that is sliced asks for these.")
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    queries, _ = slice_of(key.shape[-2], query.shape[-1], limit_bytes)
    result = torch.empty_like(query)
    mask = None if attn_mask is None else attn_mask.expand(*query.shape[:-1], key.shape[-2])
    for place in product(*map(range, query.shape[:2])):
        keys, values = key[place].float().T, value[place].float()
        for begin in range(0, query.shape[2], queries):
            rows = (*place, slice(begin, begin + queries))
            scores = (query[rows].float() * factor) @ keys
            if mask is not None:
                _apply(mask[rows], scores)
            scores.sub_(scores.amax(-1, keepdim=True)).exp_()
            result[rows] = (scores @ values) / scores.sum(-1, keepdim=True)
            del scores  # before the next ones are made
        del keys, values
    return result


def _apply(mask: Tensor, scores: Tensor) -> None:
    if mask.dtype == torch.bool:
        # Nobody reads the result of a query that sees nothing; with -inf it would be NaN.
        scores.masked_fill_(~mask, torch.finfo(scores.dtype).min)
    else:
        scores.add_(mask)
