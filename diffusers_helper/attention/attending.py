"""A network that computes its attention by diffusers' dispatcher or in slices, and the trial of these ways.

The trial finds the speed of ways at one shape, and compares their results with fp32 math. A package that was
built for another card may end the process, so the trial runs in one of its own.
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

from diffusers_helper.attention.operation import operation_of
from diffusers_helper.attention.ways import NATIVE, WAYS, slice_of
from diffusers_helper.errors import InputError, first_line
from diffusers_helper.foreign_errors import Trouble, memory_sizes, trouble_of


class Sliced(TorchFunctionMode):
    """A context in which this thread's calls of SDPA are computed in slices of queries.

    SDPA's math kernel stores the scores of all tokens with each other: 65 GB at FramePack's size. Here only
    those of some queries of one head are stored, as each query's result depends on no other query.
    """

    def __init__(self, limit_bytes: int) -> None:
        """Prepare a context in which one slice may take so much memory."""
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
    *, in_halves: bool | None = None,
) -> Tensor:  # fmt: skip
    """Return what SDPA does with these arguments, (B, H, N, D) and (B, H, M, D).

    A GPU multiplies in fp16, which RDNA2 does twice and later cards up to a hundred times as fast as in fp32,
    and torch's softmax computes in fp32 inside. A head whose values overflow fp16 is computed in fp32.

    Args:
        limit_bytes: The memory that one slice may take.
        attn_mask: Of a shape that broadcasts to (B, H, N, M), whether a query sees a key, or what is added
            to its scores.
        in_halves: Whether products are computed in fp16; None for the device's own choice.
    """
    if dropout_p or is_causal or enable_gqa:
        raise NotImplementedError("No network that is sliced asks for these.")
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    queries, _ = slice_of(key.shape[-2], query.shape[-1], limit_bytes)
    result = torch.empty_like(query)
    mask = None if attn_mask is None else attn_mask.expand(*query.shape[:-1], key.shape[-2])

    def attend(place: tuple[int, ...], dtype: torch.dtype) -> None:
        keys, values = key[place].to(dtype).T, value[place].to(dtype)
        for begin in range(0, query.shape[2], queries):
            rows = (*place, slice(begin, begin + queries))
            # The queries are scaled before the product, so that fp16 holds the scores.
            scores = (query[rows].float() * factor).to(dtype) @ keys
            if mask is not None:
                _apply(mask[rows], scores)
            result[rows] = torch.softmax(scores, -1, out=scores) @ values
            del scores  # before the next ones are made

    has_halves = query.is_cuda if in_halves is None else in_halves
    for place in product(*map(range, query.shape[:2])):
        attend(place, torch.float16 if has_halves else torch.float32)
        if has_halves and not bool(result[place].isfinite().all()):
            attend(place, torch.float32)
    return result


def _apply(mask: Tensor, scores: Tensor) -> None:
    if mask.dtype == torch.bool:
        # Nobody reads the result of a query that sees nothing; with -inf it would be NaN.
        scores.masked_fill_(~mask, torch.finfo(scores.dtype).min)
    else:
        scores.add_(mask)


@contextmanager
def attending(network: nn.Module, way: str, limit_bytes: int) -> Iterator[None]:
    """Make the blocks of a network compute attention in one way within the context.

    The choice is an attribute of the network's processors of attention. diffusers' own choice for the whole
    process stays as it is, for this network without the context and for all others. Where attention is
    sliced, one slice may take `limit_bytes`.

    Raises:
        InputError: If diffusers cannot use the kernel.
    """
    backend = None if way == NATIVE else _backend(way)
    # The refiner of the text has another kind of processor: it is short, and not all kernels take its mask.
    every = (getattr(module, "processor", None) for module in network.modules())
    processors: list[Any] = [one for one in every if hasattr(one, "_attention_backend")]
    before = [processor._attention_backend for processor in processors]
    try:
        if backend:
            for processor in processors:
                processor._attention_backend = backend
        with _slices(way, limit_bytes):
            yield
    finally:
        for processor, own in zip(processors, before, strict=True):
            processor._attention_backend = own


def attention_of(way: str, limit_bytes: int) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Return the function that computes attention (B, N, H, D) in one way; its errors are `attending`'s."""
    backend = _backend(way) or AttentionBackendName.NATIVE

    def compute(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        with _slices(way, limit_bytes):
            return dispatch_attention_fn(query, key, value, backend=backend)

    return compute


def _slices(way: str, limit_bytes: int) -> AbstractContextManager[object]:
    return Sliced(limit_bytes) if WAYS[way].scores == "slice" else nullcontext()


def _backend(way: str) -> AttentionBackendName | None:
    """Return a way's name in the dispatcher, None for our own, after diffusers has checked and loaded it."""
    if not WAYS[way].backend:
        return None
    try:
        with attention_backend(WAYS[way].backend):
            return AttentionBackendName(WAYS[way].backend)
    except Exception as error:
        raise InputError(
            setting="attention", found=f"is {way}, which diffusers cannot use ({error})",
            expected="a kernel that is installed", remedy="Set `attention` to auto.",
        ) from error  # fmt: skip


_RUNS = 3
_ROWS = 16  # of the queries whose results are compared
# The ratio of the error's root mean square to that of the result from which on the result is wrong, whatever
# deviation a person accepts. That of something else is about 1.
_WRONG = 0.1
_PASSING: tuple[Trouble, ...] = ("device_memory", "host_memory")


def try_ways(
    ways: Iterable[str], heads: int, tokens: int, head_dim: int, dtype: str, limit_bytes: int
) -> Iterator[dict[str, Any]]:
    """Yield for each way its median seconds, its error and its operation, or why it cannot be used.

    A reason that may be gone at the next trial, as a lack of memory, is marked by `passes`. After an error
    that may stop the device, the rest is left to another process.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    shape = (1, tokens, heads, head_dim)
    for way in ways:
        try:
            torch.manual_seed(0)
            inputs = [torch.randn(shape, device=device, dtype=getattr(torch, dtype)) for _ in range(3)]
            yield {"way": way, **_tried(attention_of(way, limit_bytes), *inputs)}
        except Exception as error:  # noqa: BLE001 - whatever a kernel raises, the next one is tried
            yield {"way": way, "failed": first_line(error), **_mark_of(error)}
            if trouble_of(error) == "device":
                return


def _mark_of(error: Exception) -> dict[str, bool]:
    """Return the mark of an error that may be gone at the next trial; nothing for others.

    What is larger than the card's memory will never fit.
    """
    sizes = memory_sizes(str(error))
    is_too_large = sizes.get("tried", 0) > sizes.get("capacity", inf)
    return {"passes": True} if trouble_of(error) in _PASSING and not is_too_large else {}


@torch.inference_mode()
def _tried(compute: Callable[..., Tensor], query: Tensor, key: Tensor, value: Tensor) -> dict[str, Any]:
    operation, found = operation_of(lambda: compute(query, key, value))
    rows = torch.linspace(0, query.shape[1] - 1, _ROWS, device=query.device).long()
    expected = _in_fp32(query[:, rows], key, value)
    error = ((found[:, rows].float() - expected).square().mean() / expected.square().mean()).sqrt().item()
    if not error <= _WRONG:
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
