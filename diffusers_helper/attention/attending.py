"""A network that computes its attention in a chosen way, by diffusers' dispatcher or in slices."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from diffusers.models.attention_dispatch import (
    AttentionBackendName,
    attention_backend,
    dispatch_attention_fn,
)
from torch import Tensor, nn

from diffusers_helper.attention.sliced import Sliced
from diffusers_helper.attention.ways import NATIVE, WAYS
from diffusers_helper.errors import InputError


@contextmanager
def attending(network: nn.Module, way: str, limit_bytes: int) -> Iterator[None]:
    """Make the blocks of a network compute attention in one way within the context.

    The choice is an attribute of the network's processors of attention. diffusers' own choice for the whole
    process stays as it is, for this network without the context and for all others.

    Args:
        network: The network.
        way: One of `ways.WAYS`.
        limit_bytes: The memory for one slice, where attention is sliced.

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
    """Return the function that computes attention (B, N, H, D) in one way.

    Raises:
        InputError: If diffusers cannot use the kernel.
    """
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
