"""The trial of the ways to compute a transformer's attention and the element-wise work of its blocks.

It measures time and memory at one shape, and compares the results with fp32 math. A package that was built
for another card may end the process, so the trial runs in a process of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from math import inf
from statistics import median
from typing import Any

import torch
from diffusers.models.embeddings import apply_rotary_emb
from diffusers.models.normalization import AdaLayerNormZeroSingle, RMSNorm
from torch import Tensor, nn

from cache.kitchen import backend_of
from diffusers_helper.attention.backends import BLOCKS, FUSED
from diffusers_helper.attention.dispatch import attention_function
from diffusers_helper.attention.fused import use_kernels
from diffusers_helper.attention.operation import operation_of
from diffusers_helper.errors import first_line
from diffusers_helper.library_errors import Trouble, memory_sizes, trouble_of

_NUM_RUNS = 3
_NUM_ROWS = 16  # of the tokens whose results are compared
# The largest ratio of the error's root mean square to that of the result. It is about 1 for a wrong result.
_MAX_ERROR = 0.1
_TEMPORARY: tuple[Trouble, ...] = ("device_memory", "host_memory")


def try_kernels(
    candidates: Iterable[str], heads: int, tokens: int, head_dim: int, dtype: str, limit_bytes: int = 0,
    spans_heads: bool = False,
) -> Iterator[dict[str, Any]]:  # fmt: skip
    """Yield for each candidate its median seconds, its error and its kernel, or why it cannot be used.

    `spans_heads` says that a block's norm of queries and keys is of all heads. A reason that may be gone at
    the next trial, such as a lack of memory, is marked by `passes`. After an error that may stop the device,
    another process has to try the remaining ones.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    shape = (1, tokens, heads, head_dim)
    for candidate in candidates:
        try:
            torch.manual_seed(0)
            inputs = [torch.randn(shape, device=device, dtype=getattr(torch, dtype)) for _ in range(3)]
            if candidate in BLOCKS:
                tried = _try_blocks(candidate, _BlockWork(heads, head_dim, spans_heads).to(inputs[0]), inputs)
            else:
                tried = _try_attention(attention_function(candidate, limit_bytes), *inputs)
            yield {"backend": candidate, **tried}
        except Exception as error:  # noqa: BLE001 - whatever a kernel raises, the next one is tried
            yield {"backend": candidate, "failed": first_line(error), **_temporary_mark(error)}
            if trouble_of(error) == "device":
                return


def _temporary_mark(error: Exception) -> dict[str, bool]:
    """Mark an error that may be gone at the next trial. What is larger than the card never fits."""
    sizes = memory_sizes(str(error))
    is_too_large = sizes.get("tried", 0) > sizes.get("capacity", inf)
    return {"passes": True} if trouble_of(error) in _TEMPORARY and not is_too_large else {}


@torch.inference_mode()
def _try_attention(
    compute: Callable[..., Tensor], query: Tensor, key: Tensor, value: Tensor
) -> dict[str, Any]:
    operation, _ = operation_of(lambda: compute(query, key, value))
    rows = _rows(query)
    expected = _attention_in_fp32(query[:, rows], key, value)
    return _measured(lambda: [compute(query, key, value)], rows, [expected], operation)


@torch.inference_mode()
def _try_blocks(kernels: str, work: _BlockWork, inputs: Sequence[Tensor]) -> dict[str, Any]:
    hidden, query, key = (tensor.flatten(2) for tensor in inputs)
    angles = (
        torch.rand(hidden.shape[1], work.head_dim // 2, device=hidden.device).mul(6).repeat_interleave(2, -1)
    )
    rotation = angles.cos(), angles.sin()
    rows = _rows(hidden)
    exact = _BlockWork(work.heads, work.head_dim, work.spans_heads).to(hidden.device)
    exact.load_state_dict(work.state_dict())
    some = [tensor[:, rows].float() for tensor in (hidden, query, key)]
    expected = exact(*some, rotation=tuple(values[rows] for values in rotation))
    kernel = ""
    if kernels == FUSED:
        kernel = backend_of("adaln", {"x": hidden, "scale": hidden, "shift": hidden, "eps": 1e-6})
        if kernel == "eager" and hidden.is_cuda:
            return {"failed": "comfy-kitchen has no compiled kernel here"}
    with use_kernels(work, kernels):
        compute = partial(work, hidden, query, key, rotation=rotation)
        return _measured(compute, rows, expected, kernel)


def _rows(tensor: Tensor) -> Tensor:
    return torch.linspace(0, tensor.shape[1] - 1, _NUM_ROWS, device=tensor.device).long()


def _measured(
    compute: Callable[[], Sequence[Tensor]], rows: Tensor, expected: Sequence[Tensor], kernel: str
) -> dict[str, Any]:
    before_bytes = 0
    if rows.is_cuda:
        torch.cuda.reset_peak_memory_stats()
        before_bytes = torch.cuda.memory_allocated()
    results = compute()
    peak_bytes = torch.cuda.max_memory_allocated() - before_bytes if rows.is_cuda else 0
    errors = [
        ((result[:, rows].float() - exact).square().mean() / exact.square().mean()).sqrt().item()
        for result, exact in zip(results, expected, strict=True)
    ]
    for error in errors:
        if not error <= _MAX_ERROR:
            return {"failed": f"its results differ by {error:.2g} of their size"}
    seconds = list[float]()
    for _ in range(_NUM_RUNS):
        start = time.perf_counter()
        compute()[0].flatten()[0].item()  # waits for the result
        seconds.append(time.perf_counter() - start)
    return {"seconds": median(seconds), "error": max(errors), "kernel": kernel, "bytes": peak_bytes}


def _attention_in_fp32(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    query, key, value = (tensor.float().transpose(1, 2) for tensor in (query, key, value))
    scores = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5
    return (scores.softmax(-1) @ value).transpose(1, 2)


class _BlockWork(nn.Module):
    """The modulated norm of a block's input, and the norms and rotations of its queries and keys."""

    def __init__(self, heads: int, head_dim: int, spans_heads: bool) -> None:
        super().__init__()
        self.heads, self.head_dim, self.spans_heads = heads, head_dim, spans_heads
        self.norm = AdaLayerNormZeroSingle(heads * head_dim)
        self.attn = _Rotated(heads, head_dim, spans_heads)
        self.emb = nn.Parameter(torch.randn(1, heads * head_dim))

    def forward(self, hidden: Tensor, query: Tensor, key: Tensor, *, rotation: Any) -> list[Tensor]:
        return [self.norm(hidden, emb=self.emb)[0], *self.attn(query, key, image_rotary_emb=rotation)]


class _Rotated(nn.Module):
    add_q_proj = None

    def __init__(self, heads: int, head_dim: int, spans_heads: bool) -> None:
        super().__init__()
        self.heads, self._spans_heads = heads, spans_heads
        dim = heads * head_dim if spans_heads else head_dim
        self.norm_q, self.norm_k = (RMSNorm(dim, eps=1e-6) for _ in range(2))

    def forward(self, query: Tensor, key: Tensor, *, image_rotary_emb: Any = None) -> list[Tensor]:
        rotate: Any = apply_rotary_emb
        results = list[Tensor]()
        for norm, tensor in ((self.norm_q, query), (self.norm_k, key)):
            by_head = (self.heads, -1)
            tensor = (
                norm(tensor).unflatten(2, by_head)
                if self._spans_heads
                else norm(tensor.unflatten(2, by_head))
            )
            if image_rotary_emb is not None:
                tensor = rotate(tensor, image_rotary_emb, sequence_dim=1)
            results.append(tensor.flatten(2))
        return results
