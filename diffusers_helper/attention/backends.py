"""The backends of a transformer's attention, and what plans have to know of them, without torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Literal

from diffusers_helper.errors import InputError


@dataclass(frozen=True, slots=True)
class AttentionBackend:
    """A backend of attention: its name in diffusers, if any, and the package that it needs, if any.

    `source` says how to get the package. `scores` are those of queries with keys that it stores at a time.
    """

    label: str
    dispatcher_name: str = ""
    package: str = ""
    source: str = ""
    scores: Literal["none", "all", "slice", "as chosen"] = "none"
    is_tried: bool = False


NATIVE, SLICED, KITCHEN = "native", "sliced", "kitchen"
BACKENDS: Mapping[str, AttentionBackend] = {
    NATIVE: AttentionBackend("PyTorch's choice", "native", scores="as chosen", is_tried=True),
    SLICED: AttentionBackend("In slices", scores="slice"),
    "flash": AttentionBackend("PyTorch, flash", "_native_flash"),
    "efficient": AttentionBackend("PyTorch, memory-efficient", "_native_efficient"),
    "math": AttentionBackend("PyTorch, math", "_native_math", scores="all"),
    "triton": AttentionBackend(
        "Triton flash-attention", "flash", "flash_attn", "it is built from source", is_tried=True
    ),
    "aiter": AttentionBackend(
        "AITER", "aiter_fa2_hub", "kernels", "pip install kernels; it downloads the kernel"
    ),
    "sage": AttentionBackend(
        "SageAttention", "sage", "sageattention", "version 2 is built from source", is_tried=True
    ),
    KITCHEN: AttentionBackend(
        "comfy-kitchen, 8 bit", "", "comfy_kitchen", "pip install -r requirements-kernels.txt", is_tried=True
    ),
}

# The ways to compute the element-wise work of a transformer's blocks.
PLAIN, FUSED, COMPILED = "plain", "fused", "compiled"
BLOCKS: Mapping[str, str] = {PLAIN: "PyTorch alone", FUSED: "Fused", COMPILED: "Compiled"}
FAST_8_BIT = "fast8"  # fused, and products of weights in 8 bit with inputs that are rounded to int8

# The libraries of torch that multiply matrices. On ROCm, the second and third are hipBLAS and hipBLASLt.
TORCHS_CHOICE = "default"
LIBRARIES: Mapping[str, tuple[str, ...]] = {
    "cpu": (TORCHS_CHOICE,), "cuda": (TORCHS_CHOICE, "cublas", "cublaslt"),
    "rocm": (TORCHS_CHOICE, "cublas", "cublaslt", "ck"),
}  # fmt: skip

# The most that one slice takes. Smaller slices are slower (`benchmarks/attention.py`).
_MAX_SLICE_BYTES = 256 * 1024**2
_CAP_SHARE = 16
_FP32_BYTES = 4


def slice_bytes(cap_bytes: int) -> int:
    return min(_MAX_SLICE_BYTES, cap_bytes // _CAP_SHARE) if cap_bytes else _MAX_SLICE_BYTES


def slice_size(tokens: int, head_dim: int, limit_bytes: int) -> tuple[int, int]:
    """Compute the number of queries of one head in a slice, and the bytes that the slice takes.

    These are the head's keys and values in fp32, and for each query its scores, itself twice, and its result.
    """
    key_bytes = 2 * tokens * head_dim * _FP32_BYTES
    query_bytes = (tokens + 3 * head_dim) * _FP32_BYTES
    num_queries = min(tokens, max(1, (limit_bytes - key_bytes) // query_bytes))
    return num_queries, key_bytes + num_queries * query_bytes


def backend_problem(name: str, *, has_gpu: bool) -> str:
    """Say why this machine cannot use a backend; "" if it can, as far as that is known without trying it."""
    backend = BACKENDS[name]
    if not backend.package:
        return ""
    if not has_gpu:
        return "it needs a GPU"
    missing = find_spec(backend.package) is None
    return f"the package {backend.package} is not installed ({backend.source})" if missing else ""


def check_backend(name: str, *, has_gpu: bool) -> None:
    if problem := backend_problem(name, has_gpu=has_gpu):
        raise InputError(
            setting="attention", problem=f"is {name}, but {problem}", expected="a way that this machine has",
            remedy="Set `attention` to auto.",
        )  # fmt: skip


@cache
def candidate_backends() -> tuple[str, ...]:
    """List the backends that the automatic choice tries on a GPU, in their order of preference.

    A package that is installed while this process runs does not count, as diffusers does not see it either.
    """
    return tuple(
        name
        for name, backend in BACKENDS.items()
        if backend.is_tried and (not backend.package or find_spec(backend.package))
    )


def kernel_kind(operation: str) -> str:
    kinds = ("flash", "efficient", "cudnn", "math")
    return next((kind for kind in kinds if kind in operation), operation)
