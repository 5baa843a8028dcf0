"""The speed of matrix products and of attention at the sizes of FramePack's transformer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from diffusers_helper.bench.context import Case, Context, Figures
from diffusers_helper.families.framepack import CONFIGS
from diffusers_helper.planning.estimates import largest_bucket, latent_tokens

_HEADS, _HEAD_DIM = (CONFIGS["transformer"][name] for name in ("num_attention_heads", "attention_head_dim"))
_WIDTH = _HEADS * _HEAD_DIM
# The layers' inputs and outputs: attention's projections, the two layers of the feed-forward part, and the
# layer at the end of a single block.
_LAYERS = ((_WIDTH, _WIDTH), (_WIDTH, 4 * _WIDTH), (4 * _WIDTH, _WIDTH), (5 * _WIDTH, _WIDTH))
_SIDE, _MULTIPLE = 640, 32
TEXT_TOKENS, VISION_TOKENS = 256, 729
_CPU_TOKENS = 128  # the full size would take a CPU minutes
_MATH_TOKENS = 4096  # with all tokens the scores alone take 66 GB
_KERNELS = {
    "flash": SDPBackend.FLASH_ATTENTION, "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION, "math": SDPBackend.MATH,
}  # fmt: skip


def full_tokens() -> int:
    """Return the number of tokens of a section at 640 pixels with the longest prompt."""
    return latent_tokens(*largest_bucket(_SIDE, _MULTIPLE)) + TEXT_TOKENS + VISION_TOKENS


def products(context: Context) -> Iterator[Case]:
    """Yield the products of all layers in each type, and the ways to compute with 8-bit weights."""
    tokens = full_tokens() // 16 * 16 if context.has_gpu else _CPU_TOKENS
    on_cpu = "" if context.has_gpu else "it is emulated on a CPU"
    ways: dict[str, tuple[Callable[..., Tensor], torch.dtype, torch.dtype, str]] = {
        "bf16": (functional.linear, torch.bfloat16, torch.bfloat16, ""),
        "fp16": (functional.linear, torch.float16, torch.float16, on_cpu),
        "fp32": (functional.linear, torch.float32, torch.float32, ""),
        "fp8 weights, cast to bf16": (_cast_linear, torch.bfloat16, torch.float8_e4m3fn, ""),
        "int8 weights, cast to bf16": (_cast_linear, torch.bfloat16, torch.int8, ""),
        "fp8": (_fp8_product, torch.float8_e4m3fn, torch.float8_e4m3fn, on_cpu),
        "int8": (_int8_product, torch.int8, torch.int8, ""),
    }
    for label, (way, inputs, weights, reason) in ways.items():
        yield label, reason or partial(_product, context, way, inputs, weights, tokens)


def _product(
    context: Context, way: Callable[..., Tensor], inputs: torch.dtype, weights: torch.dtype, tokens: int
) -> Figures:
    seconds = operations = 0.0
    for width, result in _LAYERS:
        x, weight = (_random(context, dtype, *shape) for dtype, shape in (
            (inputs, (tokens, width)), (weights, (result, width)),
        ))  # fmt: skip
        seconds += context.time(partial(way, x, weight), runs=2 if context.has_gpu else 1).median
        operations += 2.0 * tokens * width * result
    return {
        "operations_per_second": operations / seconds, "seconds": seconds, "tokens": tokens,
        "is_reduced": not context.has_gpu,
    }  # fmt: skip


def _random(context: Context, dtype: torch.dtype, *shape: int) -> Tensor:
    values = torch.randn(shape, device=context.torch_device)
    return values.mul_(20).to(dtype) if dtype == torch.int8 else values.mul_(0.1).to(dtype)


def _cast_linear(x: Tensor, weight: Tensor) -> Tensor:
    """Compute as the product does with weights that are stored in 8 bit."""
    return functional.linear(x, weight.to(x.dtype))


def _int8_product(x: Tensor, weight: Tensor) -> Tensor:
    return torch._int_mm(x, weight.t())


def _fp8_product(x: Tensor, weight: Tensor) -> Tensor:
    one = torch.ones((), device=x.device)
    return cast(Any, torch)._scaled_mm(x, weight.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)


def attention(context: Context) -> Iterator[Case]:
    """Yield each kernel of SDPA in bf16, and torch's own choice in bf16 and fp16."""
    tokens = full_tokens() if context.has_gpu else _CPU_TOKENS
    halves = (("bf16", torch.bfloat16), ("fp16", torch.float16))
    for name, dtype in halves if context.has_gpu else (*halves[:1], ("fp32", torch.float32)):
        yield f"torch's choice, {name}", partial(_attention, context, dtype, tokens, None)
    for name, kernel in _KERNELS.items():
        reason = "a CPU has no such kernel" if not context.has_gpu and name in ("efficient", "cudnn") else ""
        count = min(tokens, _MATH_TOKENS) if name == "math" else tokens
        yield f"{name}, bf16", reason or partial(_attention, context, torch.bfloat16, count, kernel)
    if context.has_gpu and not context.is_quick:
        yield "math, bf16, all tokens", partial(_attention, context, torch.bfloat16, tokens, SDPBackend.MATH)


def _attention(context: Context, dtype: torch.dtype, tokens: int, kernel: SDPBackend | None) -> Figures:
    with context.device:
        q, k, v = (_random(context, dtype, 1, _HEADS, tokens, _HEAD_DIM) for _ in range(3))

    def run() -> Tensor:
        if kernel is None:
            return functional.scaled_dot_product_attention(q, k, v)
        with sdpa_kernel(kernel):
            return functional.scaled_dot_product_attention(q, k, v)

    measured = context.time(run, runs=2)
    return {
        "seconds": measured.median, "tokens": tokens, "peak_bytes": measured.peak_bytes,
        "operations_per_second": 4.0 * _HEADS * tokens**2 * _HEAD_DIM / measured.median,
        "is_reduced": tokens < full_tokens(),
    }  # fmt: skip
