"""Attention in slices, for cards without a kernel that fuses it, and for encoders on ROCm."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from itertools import product
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from cache.replaced import ReplacedFunctions
from diffusers_helper.attention.backends import slice_size

_ENCODER_SLICE_BYTES = 64 * 1024**2  # plans do not count them


def sliced_attention(
    limit_bytes: int, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None,
    dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
    *, in_fp16: bool | None = None,
) -> Tensor:  # fmt: skip
    """Compute SDPA of (B, H, N, D) and (B, H, M, D) in slices that take up to `limit_bytes` each.

    SDPA's math kernel stores the scores of all tokens with each other: 65 GB at FramePack's size. Here only
    those of some queries of one head are stored, as each query's result depends on no other query.
    A GPU multiplies in fp16, which RDNA2 does twice and later cards up to a hundred times as fast as in fp32,
    and torch's softmax computes in fp32 inside. A head whose values overflow fp16 is computed in fp32. A CPU
    with instructions for bf16 multiplies values in bf16 with them, and adds up in fp32.
    `attn_mask` broadcasts to (B, H, N, M): either whether a query sees a key, or what is added to the scores.
    """
    if dropout_p:
        raise NotImplementedError("No network that is sliced asks for these.")
    if enable_gqa:
        repeats = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)
    if is_causal:
        pairs = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device)
        attn_mask = pairs.tril()
    scale_factor = query.shape[-1] ** -0.5 if scale is None else scale
    num_queries, _ = slice_size(key.shape[-2], query.shape[-1], limit_bytes)
    result = torch.empty_like(query)
    mask = None if attn_mask is None else attn_mask.expand(*query.shape[:-1], key.shape[-2])

    def attend(head: tuple[int, ...], dtype: torch.dtype) -> None:
        keys = key[head].to(dtype).T
        values = value[head].to(dtype)
        for start in range(0, query.shape[2], num_queries):
            rows = (*head, slice(start, start + num_queries))
            # The queries are scaled before the product, so that fp16 holds the scores.
            scores = (query[rows].float() * scale_factor).to(dtype) @ keys
            if mask is not None:
                _apply_mask(mask[rows], scores)
            result[rows] = torch.softmax(scores, -1, out=scores) @ values
            del scores  # before the next ones are made

    use_fp16 = query.is_cuda if in_fp16 is None else in_fp16
    in_bf16 = query.is_cpu and query.dtype == torch.bfloat16
    with _fp32_products_in_bf16() if in_bf16 else nullcontext():
        for head in product(*map(range, query.shape[:2])):
            attend(head, torch.float16 if use_fp16 else torch.float32)
            if use_fp16 and not bool(result[head].isfinite().all()):
                attend(head, torch.float32)
    return result


@contextmanager
def _fp32_products_in_bf16() -> Iterator[None]:
    products = cast(Any, torch.backends.mkldnn).matmul
    previous, products.fp32_precision = products.fp32_precision, "bf16"
    try:
        yield
    finally:
        products.fp32_precision = previous


def _apply_mask(mask: Tensor, scores: Tensor) -> None:
    if mask.dtype == torch.bool:
        # Nobody reads the result of a query that sees nothing; with -inf it would be NaN.
        scores.masked_fill_(~mask, torch.finfo(scores.dtype).min)
    else:
        scores.add_(mask)


def in_slices(limit_bytes: int) -> AbstractContextManager[object]:
    return ReplacedFunctions({scaled_dot_product_attention: partial(sliced_attention, limit_bytes)})


def encoder_attention() -> AbstractContextManager[object]:
    """Compute the attention of encoders and VAEs in slices on ROCm, where its fused kernels may fail.

    They may fail for causal attention alone, and show it at a later call or as zeros (TheRock issues 7407 and
    7992, aotriton issue 210); ComfyUI leaves them out of VAEs, too. These networks run rarely.
    """
    return nullcontext() if torch.version.hip is None else in_slices(_ENCODER_SLICE_BYTES)
