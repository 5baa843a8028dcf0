"""Attention by diffusers' dispatcher or in slices, and the trial of attention backends.

The trial measures the speed of backends at one shape, and compares their results with fp32 math. A package
that was built for another card may end the process, so the trial runs in a process of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from itertools import product
from math import inf
from statistics import median
from typing import Any

import torch
from diffusers.models.attention_dispatch import AttentionBackendName, attention_backend, dispatch_attention_fn
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

from diffusers_helper.attention.backends import BACKENDS, NATIVE, slice_size
from diffusers_helper.attention.operation import operation_of
from diffusers_helper.errors import InputError, first_line
from diffusers_helper.library_errors import Trouble, memory_sizes, trouble_of


class SlicedAttention(TorchFunctionMode):
    """A context in which this thread's calls of SDPA are computed in slices of queries.

    SDPA's math kernel stores the scores of all tokens with each other: 65 GB at FramePack's size. Here only
    those of some queries of one head are stored, as each query's result depends on no other query.
    """

    def __init__(self, limit_bytes: int) -> None:
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
    *, in_fp16: bool | None = None,
) -> Tensor:  # fmt: skip
    """Compute SDPA of (B, H, N, D) and (B, H, M, D) in slices that take up to `limit_bytes` each.

    A GPU multiplies in fp16, which RDNA2 does twice and later cards up to a hundred times as fast as in fp32,
    and torch's softmax computes in fp32 inside. A head whose values overflow fp16 is computed in fp32.
    `attn_mask` broadcasts to (B, H, N, M): either whether a query sees a key, or what is added to the scores.
    """
    if dropout_p or is_causal or enable_gqa:
        raise NotImplementedError("No network that is sliced asks for these.")
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
    for head in product(*map(range, query.shape[:2])):
        attend(head, torch.float16 if use_fp16 else torch.float32)
        if use_fp16 and not bool(result[head].isfinite().all()):
            attend(head, torch.float32)
    return result


def _apply_mask(mask: Tensor, scores: Tensor) -> None:
    if mask.dtype == torch.bool:
        # Nobody reads the result of a query that sees nothing; with -inf it would be NaN.
        scores.masked_fill_(~mask, torch.finfo(scores.dtype).min)
    else:
        scores.add_(mask)


@contextmanager
def use_attention_backend(network: nn.Module, backend: str, limit_bytes: int) -> Iterator[None]:
    dispatcher_name = None if backend == NATIVE else _dispatcher_name(backend)
    # The text refiner has another kind of processor: it is short, and not all kernels take its mask.
    candidates = (getattr(module, "processor", None) for module in network.modules())
    processors: list[Any] = [item for item in candidates if hasattr(item, "_attention_backend")]
    previous = [processor._attention_backend for processor in processors]
    try:
        if dispatcher_name:
            for processor in processors:
                processor._attention_backend = dispatcher_name
        with _slicing(backend, limit_bytes):
            yield
    finally:
        for processor, name in zip(processors, previous, strict=True):
            processor._attention_backend = name


def attention_function(backend: str, limit_bytes: int) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    dispatcher_name = _dispatcher_name(backend) or AttentionBackendName.NATIVE

    def compute(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        with _slicing(backend, limit_bytes):
            return dispatch_attention_fn(query, key, value, backend=dispatcher_name)

    return compute


def _slicing(backend: str, limit_bytes: int) -> AbstractContextManager[object]:
    return SlicedAttention(limit_bytes) if BACKENDS[backend].scores == "slice" else nullcontext()


def _dispatcher_name(backend: str) -> AttentionBackendName | None:
    """Name a backend in diffusers' dispatcher after diffusers has checked and loaded it; None for ours."""
    if not BACKENDS[backend].dispatcher_name:
        return None
    try:
        with attention_backend(BACKENDS[backend].dispatcher_name):
            return AttentionBackendName(BACKENDS[backend].dispatcher_name)
    except Exception as error:
        raise InputError(
            setting="attention", problem=f"is {backend}, which diffusers cannot use ({error})",
            expected="a kernel that is installed", remedy="Set `attention` to auto.",
        ) from error  # fmt: skip


_NUM_RUNS = 3
_NUM_ROWS = 16  # of the queries whose results are compared
# The largest ratio of the error's root mean square to that of the result. It is about 1 for a wrong result.
_MAX_ERROR = 0.1
_TEMPORARY: tuple[Trouble, ...] = ("device_memory", "host_memory")


def try_backends(
    backends: Iterable[str], heads: int, tokens: int, head_dim: int, dtype: str, limit_bytes: int
) -> Iterator[dict[str, Any]]:
    """Yield for each backend its median seconds, its error and its operation, or why it cannot be used.

    A reason that may be gone at the next trial, such as a lack of memory, is marked by `passes`. After an
    error that may stop the device, another process has to try the remaining backends.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    shape = (1, tokens, heads, head_dim)
    for backend in backends:
        try:
            torch.manual_seed(0)
            inputs = [torch.randn(shape, device=device, dtype=getattr(torch, dtype)) for _ in range(3)]
            yield {"backend": backend, **_try(attention_function(backend, limit_bytes), *inputs)}
        except Exception as error:  # noqa: BLE001 - whatever a kernel raises, the next one is tried
            yield {"backend": backend, "failed": first_line(error), **_temporary_mark(error)}
            if trouble_of(error) == "device":
                return


def _temporary_mark(error: Exception) -> dict[str, bool]:
    """Mark an error that may be gone at the next trial. What is larger than the card never fits."""
    sizes = memory_sizes(str(error))
    is_too_large = sizes.get("tried", 0) > sizes.get("capacity", inf)
    return {"passes": True} if trouble_of(error) in _TEMPORARY and not is_too_large else {}


@torch.inference_mode()
def _try(compute: Callable[..., Tensor], query: Tensor, key: Tensor, value: Tensor) -> dict[str, Any]:
    operation, result = operation_of(lambda: compute(query, key, value))
    rows = torch.linspace(0, query.shape[1] - 1, _NUM_ROWS, device=query.device).long()
    expected = _attention_in_fp32(query[:, rows], key, value)
    error = ((result[:, rows].float() - expected).square().mean() / expected.square().mean()).sqrt().item()
    if not error <= _MAX_ERROR:
        return {"failed": f"its results differ by {error:.2g} of their size"}
    seconds = list[float]()
    for _ in range(_NUM_RUNS):
        start = time.perf_counter()
        compute(query, key, value).flatten()[0].item()  # waits for the result
        seconds.append(time.perf_counter() - start)
    return {"seconds": median(seconds), "error": error, "kernel": operation}


def _attention_in_fp32(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    query, key, value = (tensor.float().transpose(1, 2) for tensor in (query, key, value))
    scores = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5
    return (scores.softmax(-1) @ value).transpose(1, 2)
