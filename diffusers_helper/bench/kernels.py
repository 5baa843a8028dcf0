"""The speed of copies, products, attention and convolutions at the sizes of FramePack's networks."""

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from cache.conv_probe import candidates, convolution_work
from cache.conv_rungs import ConvCase
from cache.trial import try_candidates
from diffusers_helper.bench.context import Case, Context, Figures, profile_in
from diffusers_helper.families.framepack import CONFIGS
from diffusers_helper.files import replacing
from diffusers_helper.loading.networks import empty_network
from diffusers_helper.machine.local import disk_speed
from diffusers_helper.machine.routes import RouteStore
from diffusers_helper.planning.estimates import OWN_WINDOW, largest_bucket, latent_tokens
from diffusers_helper.vae.convolutions import conv_cases
from diffusers_helper.vae.passes import DTYPES

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
    return latent_tokens(*largest_bucket(_SIDE, _MULTIPLE)) + TEXT_TOKENS + VISION_TOKENS


def products(context: Context) -> Iterator[Case]:
    tokens = full_tokens() // 16 * 16 if context.has_gpu else _CPU_TOKENS
    on_cpu = "" if context.has_gpu else "it is emulated on a CPU"
    kinds: dict[str, tuple[Callable[..., Tensor], torch.dtype, torch.dtype, str]] = {
        "bf16": (functional.linear, torch.bfloat16, torch.bfloat16, ""),
        "fp16": (functional.linear, torch.float16, torch.float16, on_cpu),
        "fp32": (functional.linear, torch.float32, torch.float32, ""),
        "fp8 weights, cast to bf16": (_cast_linear, torch.bfloat16, torch.float8_e4m3fn, ""),
        "int8 weights, cast to bf16": (_cast_linear, torch.bfloat16, torch.int8, ""),
        "fp8": (_fp8_product, torch.float8_e4m3fn, torch.float8_e4m3fn, on_cpu),
        "int8": (lambda x, weight: torch._int_mm(x, weight.t()), torch.int8, torch.int8, ""),
    }
    for label, (linear, inputs, weights, reason) in kinds.items():
        yield label, reason or partial(_product, context, linear, inputs, weights, tokens)


def _product(
    context: Context, linear: Callable[..., Tensor], inputs: torch.dtype, weights: torch.dtype, tokens: int
) -> Figures:
    seconds = operations = 0.0
    for in_features, out_features in _LAYERS:
        x = _random(context, inputs, tokens, in_features)
        weight = _random(context, weights, out_features, in_features)
        seconds += context.time(partial(linear, x, weight), runs=2 if context.has_gpu else 1).median
        operations += 2.0 * tokens * in_features * out_features
    return {
        "operations_per_second": operations / seconds, "seconds": seconds, "tokens": tokens,
        "is_reduced": not context.has_gpu,
    }  # fmt: skip


def _random(context: Context, dtype: torch.dtype, *shape: int) -> Tensor:
    values = torch.randn(shape, device=context.torch_device)
    return values.mul_(20).to(dtype) if dtype == torch.int8 else values.mul_(0.1).to(dtype)


def _cast_linear(x: Tensor, weight: Tensor) -> Tensor:
    return functional.linear(x, weight.to(x.dtype))


def _fp8_product(x: Tensor, weight: Tensor) -> Tensor:
    scale = torch.ones((), device=x.device)
    return cast(Any, torch)._scaled_mm(x, weight.t(), scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16)


def attention(context: Context) -> Iterator[Case]:
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


_SAMPLE_BYTES = 128 * 1024**2
_COPIES = 4


def host(context: Context) -> Iterator[Case]:
    yield "copy within main memory", lambda: {"host_copy_bytes_per_second": _host_copy(context)}
    yield "disk", partial(_disk, context)


def _host_copy(context: Context) -> float:
    source, target = (torch.ones(_SAMPLE_BYTES, dtype=torch.uint8) for _ in range(2))
    return _SAMPLE_BYTES / context.time(lambda: target.copy_(source)).median


def _disk(context: Context) -> Figures:
    """Measure writing with a sync, and reads that bypass the page cache where the system allows it."""
    sample = context.folder / "sample"
    content = torch.randint(256, (_SAMPLE_BYTES,), dtype=torch.uint8)
    start_time = time.perf_counter()
    with replacing(sample) as temporary:
        temporary.write_bytes(content.numpy().data)
    seconds = time.perf_counter() - start_time
    read = disk_speed(sample)
    sample.unlink()
    return {"disk_write_bytes_per_second": _SAMPLE_BYTES / seconds, "disk_read_bytes_per_second": read}


def bus(context: Context) -> Iterator[Case]:
    for name, is_pinned in (("", False), ("pinned_", True)):
        yield f"{name}copies".replace("_", " "), partial(_bus, context, name, is_pinned)


def _bus(context: Context, name: str, is_pinned: bool) -> Figures:
    size = 2 * _SAMPLE_BYTES
    on_host = torch.ones(size, dtype=torch.uint8, pin_memory=is_pinned)
    on_card = torch.ones(size, dtype=torch.uint8, device=context.torch_device)

    def speed(target: torch.Tensor, source: torch.Tensor) -> float:
        def copy() -> None:
            for _ in range(_COPIES):
                target.copy_(source, non_blocking=is_pinned)

        return _COPIES * size / context.time(copy).median

    return {
        f"host_to_device_{name}bytes_per_second": speed(on_card, on_host),
        f"device_to_host_{name}bytes_per_second": speed(on_host, on_card),
    }


_CPU_TILE, _CPU_WINDOW = 64, 2  # the full size would take a CPU minutes
_QUICK_SHAPES = 6


def convolutions(context: Context) -> Iterator[Case]:
    """Yield each distinct convolution of a picture and of a section's windows, or some of them.

    If a backend has ended the process, the convolution is measured again without it.
    """
    find_mode = context.environ.get("MIOPEN_FIND_MODE", "default").lower()
    routes = RouteStore(context.folder / f"routes-{find_mode}")
    profile = profile_in(context)
    dtype = DTYPES.get(profile.vae_dtype.value, torch.float32)
    tile = profile.vae_tile.value if context.has_gpu else _CPU_TILE
    windows = (OWN_WINDOW,) if context.has_gpu else (_CPU_WINDOW,)
    vae = empty_network("vae", CONFIGS["vae"])
    cases = conv_cases(vae, dtype, context.torch_device, tile, tile, windows)
    if context.is_quick:
        sorted_cases, count = (
            sorted(cases, key=lambda case: case.multiplications),
            min(_QUICK_SHAPES, len(cases)),
        )
        cases = [sorted_cases[(2 * index + 1) * len(cases) // (2 * count)] for index in range(count)]
    for case in cases:
        deadly = tuple(routes.get(case).deadly)
        without = f", without {' and '.join(deadly)}" if deadly else ""
        yield f"{_words(case)}{without}", partial(_measured, context, case, routes, deadly)


def _words(case: ConvCase) -> str:
    sizes = "x".join(map(str, case.shape)), "x".join(map(str, case.weight))
    stride = "" if set(case.stride) == {1} else f", stride {'x'.join(map(str, case.stride))}"
    return f"{case.dtype} {sizes[0]} with {sizes[1]}{stride}"


def _measured(context: Context, case: ConvCase, routes: RouteStore, deadly: tuple[str, ...]) -> Figures:
    make_work = partial(convolution_work, asdict(case), device=context.torch_device)
    first_seconds = dict[str, float]()
    for candidate in candidates(case):
        if candidate not in deadly:
            start = time.perf_counter()
            with routes.trying(case, candidate) as results:
                results += try_candidates([(make_work, [candidate])])
            first_seconds[candidate] = time.perf_counter() - start
    route = routes.get(case)
    plain = {} if case.rocm != "none" else {"miopen": "plain"}  # other platforms have no MIOpen

    def named(by_rung: dict[str, Any]) -> Figures:
        return {plain.get(rung, rung): value for rung, value in by_rung.items()}

    return {
        "milliseconds": named(route.measured), "first_seconds": named(first_seconds),
        "fastest": plain.get(route.rung, route.rung) or None,
        "failed_ways": named(route.failed), "is_reduced": not context.has_gpu,
    }  # fmt: skip
