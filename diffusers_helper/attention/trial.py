"""The trial of ways to compute attention at one shape: their speed, and their results beside fp32 math.

A package that was built for another card may end the process, so the trial runs in one of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from statistics import median
from typing import Any

import torch
from torch import Tensor

from diffusers_helper.attention.attending import attention_of
from diffusers_helper.attention.operation import operation_of
from diffusers_helper.errors import first_line

_RUNS = 3
_ROWS = 16  # of the queries whose results are compared
# The largest ratio of the error's root mean square to that of the result. Rounding to bf16 gives 0.002 to
# 0.004, and a wrong result about 1.
_MOST_ERROR = {torch.float32: 1e-3, torch.float16: 1e-2, torch.bfloat16: 1e-2}


def try_ways(
    ways: Iterable[str], heads: int, tokens: int, head_dim: int, dtype: str, limit_bytes: int
) -> Iterator[dict[str, Any]]:
    """Yield for each way its median seconds, its error and its operation, or why it cannot be used.

    Args:
        ways: Names in `ways.WAYS`.
        limit_bytes: The memory for one slice, where attention is sliced.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    shape = (1, tokens, heads, head_dim)
    inputs = [torch.randn(shape, device=device, dtype=getattr(torch, dtype)) for _ in range(3)]
    for way in ways:
        try:
            yield {"way": way, **_tried(attention_of(way, limit_bytes), *inputs)}
        except Exception as error:  # noqa: BLE001 - whatever a kernel raises, the next one is tried
            yield {"way": way, "failed": first_line(error)}


@torch.inference_mode()
def _tried(compute: Callable[..., Tensor], query: Tensor, key: Tensor, value: Tensor) -> dict[str, Any]:
    operation, found = operation_of(lambda: compute(query, key, value))
    rows = torch.linspace(0, query.shape[1] - 1, _ROWS, device=query.device).long()
    expected = _in_fp32(query[:, rows], key, value)
    error = ((found[:, rows].float() - expected).square().mean() / expected.square().mean()).sqrt().item()
    if not error <= _MOST_ERROR[query.dtype]:
        return {"failed": f"its results differ by {error:.2g} of their size"}
    seconds = list[float]()
    for _ in range(_RUNS):
        begin = time.perf_counter()
        compute(query, key, value).flatten()[0].item()  # waits for the result
        seconds.append(time.perf_counter() - begin)
    return {"seconds": median(seconds), "error": error, "kernel": operation}


def _in_fp32(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    query, key, value = (tensor.float().transpose(1, 2) for tensor in (query, key, value))
    scores = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5
    return (scores.softmax(-1) @ value).transpose(1, 2)
