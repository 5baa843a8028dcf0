"""Attention by diffusers' dispatcher, in slices, or by the kernel of comfy-kitchen."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from diffusers.models.attention_dispatch import AttentionBackendName, attention_backend, dispatch_attention_fn
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from cache.kitchen import kitchen
from cache.replaced import ReplacedFunctions
from diffusers_helper.attention.backends import BACKENDS, KITCHEN, NATIVE, SLICED
from diffusers_helper.attention.slices import in_slices
from diffusers_helper.errors import InputError


def kitchen_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    """Compute SDPA with products in 8 bit. The text refiner's calls, which have masks, stay torch's."""
    if attn_mask is not None or dropout_p or is_causal:
        return scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    return kitchen().int8_attention(query, key, value, scale=scale)


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
        with _replacement(backend, limit_bytes):
            yield
    finally:
        for processor, name in zip(processors, previous, strict=True):
            processor._attention_backend = name


def attention_function(backend: str, limit_bytes: int) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    dispatcher_name = _dispatcher_name(backend) or AttentionBackendName.NATIVE

    def compute(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        with _replacement(backend, limit_bytes):
            return dispatch_attention_fn(query, key, value, backend=dispatcher_name)

    return compute


def _replacement(backend: str, limit_bytes: int) -> AbstractContextManager[object]:
    if backend == SLICED:
        return in_slices(limit_bytes)
    if backend == KITCHEN:
        return ReplacedFunctions({scaled_dot_product_attention: kitchen_attention})
    return nullcontext()


def _dispatcher_name(backend: str) -> AttentionBackendName | None:
    """Name a backend in diffusers' dispatcher after diffusers has checked and loaded it; None for ours."""
    if backend == KITCHEN and kitchen() is None:
        raise InputError(
            setting="attention", problem=f"is {backend}, which cannot be used here",
            expected="a kernel that is installed", remedy="Set `attention` to auto.",
        )  # fmt: skip
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
