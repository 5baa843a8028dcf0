"""Part 3: the speeds of products, attention, element-wise work and copies, which no step can exceed.

The shapes are those of the transformer's layers at the size of the trial's video. Weights in 8 bit have a
scale for each row, and so have the inputs, which are quantised for each product.
"""

import mmap
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import torch
from diffusers.models.embeddings import apply_rotary_emb
from diffusers.models.normalization import RMSNorm
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.gpu_trial.trial import NEEDS_GPU, Case, Figures, Trial, deviation
from diffusers_helper.attention.backends import LIBRARIES
from diffusers_helper.attention.blas import preferred_library
from diffusers_helper.attention.fused import rotation_matrices
from diffusers_helper.memory.residency import Resident
from diffusers_helper.memory.staging import Staging
from diffusers_helper.planning.estimates import latent_tokens
from diffusers_helper.weights.reading import weight_files

_TEXT_TOKENS = 256 + 729  # of the longest prompt, and of the picture
_FP8_MOST, _INT8_MOST = 448, 127
_COPY_BYTES = 2**30
_KERNELS = {
    "torch's choice": None, "flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}  # fmt: skip


def ceilings(trial: Trial) -> Iterator[Case]:
    """Yield every speed."""
    config: Any = cast(Any, trial.network("transformer")).config
    heads, head_dim = config.num_attention_heads, config.attention_head_dim
    tokens = latent_tokens(*trial.shape) + (_TEXT_TOKENS if not trial.is_tiny else 0)
    yield from _products(trial, heads * head_dim, tokens)
    yield from _attention(trial, heads, tokens, head_dim)
    yield from _elementwise(trial, heads, tokens, head_dim)
    yield from _copies(trial, weight_files(trial.model / "transformer")[0])


Quantised = tuple[Tensor, Tensor]


def quantised(x: Tensor, most: float, dtype: torch.dtype) -> Quantised:
    """Return a matrix in 8 bit, and the scales (rows, 1) in fp32 that its rows were divided by."""
    scale = x.abs().amax(1, keepdim=True).float().clamp_(min=1e-12) / most
    values = x.float() / scale
    return (values if dtype.is_floating_point else values.round()).to(dtype), scale


def product_fp8(x: Quantised, weight: Quantised) -> Tensor:
    """Return the product (M, N) in bf16 of matrices (M, K) and (N, K) in fp8 with scales of their rows."""
    return cast(Any, torch)._scaled_mm(
        x[0], weight[0].t(), scale_a=x[1], scale_b=weight[1].t(), out_dtype=torch.bfloat16,
        use_fast_accum=True,
    )  # fmt: skip


def product_int8(x: Quantised, weight: Quantised) -> Tensor:
    """Return the same of matrices in int8."""
    return (torch._int_mm(x[0], weight[0].t()).float() * x[1] * weight[1].t()).to(torch.bfloat16)


_EIGHT_BIT: dict[str, tuple[Callable[..., Tensor], float, torch.dtype]] = {
    "fp8": (product_fp8, _FP8_MOST, torch.float8_e4m3fn), "int8": (product_int8, _INT8_MOST, torch.int8),
}  # fmt: skip


def _products(trial: Trial, width: int, tokens: int) -> Iterator[Case]:
    """Yield five layers in bf16, fp8 and int8."""
    many, few = tokens // 16 * 16, (32 if trial.is_tiny else _TEXT_TOKENS // 16 * 16)
    quantise = trial.compiled(quantised, dynamic=True)
    for rows, inputs, outputs in (
        (many, width, width), (many, width, 4 * width), (many, 4 * width, width), (many, 5 * width, width),
        (few, width, 4 * width),
    ):  # fmt: skip
        name, shape = f"product {rows}x{inputs}x{outputs}", (rows, inputs, outputs)
        yield f"{name}, bf16", partial(_product, trial, shape)
        for library in LIBRARIES["cuda" if torch.version.hip is None else "rocm"][1:]:
            by_library = partial(_by_library, library, partial(_product, trial, shape))
            yield f"{name}, bf16 by {library}", by_library if trial.device.has_gpu else NEEDS_GPU
        for kind, (way, most, dtype) in _EIGHT_BIT.items():
            reason = NEEDS_GPU if kind == "fp8" and not trial.device.has_gpu else ""
            rounded = partial(quantise, most=most, dtype=dtype)
            yield f"{name}, {kind}", reason or partial(_product, trial, shape, way, rounded)


def _by_library(library: str, work: Callable[[], Figures]) -> Figures:
    with preferred_library(library):
        return work()


def _product(
    trial: Trial, shape: tuple[int, int, int], way: Callable[..., Tensor] | None = None,
    quantise: Callable[[Tensor], Quantised] | None = None,
) -> Figures:  # fmt: skip
    """Measure a product, and in 8 bit also with the quantising of its input, and its deviation from bf16."""
    rows, inputs, outputs = shape
    x = trial.random(rows, inputs, dtype=torch.bfloat16)
    weight = trial.random(outputs, inputs, dtype=torch.bfloat16, scale=inputs**-0.5)

    def speed(work: Callable[[], Tensor]) -> float:
        return 2 * rows * inputs * outputs / trial.time(work)["seconds"]

    plain = partial(functional.linear, x, weight)
    if way is None or quantise is None:
        return {"operations_per_second": speed(plain)}
    ours, kept = quantise(x), quantise(weight)
    return {
        "operations_per_second": speed(partial(way, ours, kept)),
        "with_quantising_operations_per_second": speed(lambda: way(quantise(x), kept)),
        "deviation": deviation(way(ours, kept), plain()),
    }  # fmt: skip


def _attention(trial: Trial, heads: int, tokens: int, head_dim: int) -> Iterator[Case]:
    """Yield each kernel of SDPA, and comfy-kitchen's in 8 bit."""
    needs_gpu = "" if trial.device.has_gpu else NEEDS_GPU

    def attend(kernel: SDPBackend | None, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        with sdpa_kernel([kernel]) if kernel else nullcontext():
            return functional.scaled_dot_product_attention(query, key, value)

    def attend_in_int8(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return import_module("comfy_kitchen").int8_attention(query, key, value)

    def measured(way: Callable[..., Tensor]) -> Figures:
        inputs = trial.random(3, 1, heads, tokens, head_dim, dtype=torch.bfloat16)
        figures = trial.time(lambda: way(*inputs))
        figures["operations_per_second"] = 4 * heads * tokens**2 * head_dim / figures["seconds"]
        return {**figures, "deviation": deviation(way(*inputs), attend(None, *inputs))}

    for name, kernel in _KERNELS.items():
        reason = needs_gpu if name in ("cudnn", "efficient") else ""
        yield f"attention, {name}", reason or partial(measured, partial(attend, kernel))
    lacks = trial.lacks_kitchen or needs_gpu
    yield "attention, comfy-kitchen int8", lacks or partial(measured, attend_in_int8)


def _elementwise(trial: Trial, heads: int, tokens: int, head_dim: int) -> Iterator[Case]:
    """Yield the norm and rotation of queries or keys, and the modulation, plain and fused.

    The bytes are those that a kernel has to read and write at least.
    """
    x = trial.random(1, tokens, heads, head_dim)
    norm = RMSNorm(head_dim, eps=1e-6).to(x.device, x.dtype).requires_grad_(False)
    cos, sin = trial.random(2, tokens, head_dim // 2, dtype=torch.float32).repeat_interleave(2, -1)
    shift, scale = trial.random(2, 1, 1, heads * head_dim)
    flat, matrices = x.flatten(2), rotation_matrices((cos, sin))

    def rotated() -> Tensor:
        return cast(Any, apply_rotary_emb)(norm(x), (cos, sin), sequence_dim=1)

    def modulated() -> Tensor:
        return functional.layer_norm(flat, flat.shape[-1:], eps=1e-6) * (1 + scale) + shift

    def in_kitchen(function: str, *arguments: Any) -> Tensor:
        return getattr(import_module("comfy_kitchen"), function)(*arguments)

    for name, plain, fused in (
        ("norm and rotation", rotated, partial(in_kitchen, "rms_rope1", x, matrices, norm.weight, 1e-6)),
        ("modulation", modulated, partial(in_kitchen, "adaln", flat, scale, shift, 1e-6)),
    ):
        yield f"{name}, plain", partial(trial.speed, plain, 2 * x.nbytes)
        yield f"{name}, compiled", partial(trial.speed, trial.compiled(plain), 2 * x.nbytes)
        yield f"{name}, comfy-kitchen", trial.lacks_kitchen or partial(trial.speed, fused, 2 * x.nbytes)


def _copies(trial: Trial, file: Path) -> Iterator[Case]:
    """Yield copies of a file in the kernel's memory to the device, and from the file to other main memory."""
    size = min(_COPY_BYTES, file.stat().st_size // 4096 * 4096)
    place = torch.empty(size, dtype=torch.uint8, device=trial.torch_device)
    host = torch.empty(size, dtype=torch.uint8)
    read_only, writable = (mapped(file, size, flag) for flag in (0, mmap.PROT_WRITE))

    holder, staging = nn.Module(), Staging(trial.torch_device)
    holder.weight = nn.Parameter(writable, requires_grad=False)

    def staged() -> None:
        Resident(holder, staging).close()

    def pinned() -> Figures:
        source = host.pin_memory()
        return trial.speed(lambda: place.copy_(source, non_blocking=True), size)

    yield "copy, pinned", pinned if trial.device.has_gpu else NEEDS_GPU
    yield "copy, mapped for reading", partial(trial.speed, lambda: place.copy_(read_only), size)
    yield "copy, mapped for writing", partial(trial.speed, lambda: place.copy_(writable), size)
    yield "copy, mapped anew", partial(trial.speed, lambda: place.copy_(mapped(file, size, 0)), size)
    yield "copy, as Longtake places weights", partial(trial.speed, staged, size)
    yield "copy, within main memory", partial(trial.speed, lambda: host.copy_(writable), size)


def mapped(file: Path, size: int, flag: int) -> Tensor:
    """Return the first bytes of a file, mapped privately for reading and what `flag` adds (`mmap.PROT_*`)."""
    with file.open("rb") as stream:
        pages = mmap.mmap(stream.fileno(), size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | flag)
    return torch.frombuffer(pages, dtype=torch.uint8)
