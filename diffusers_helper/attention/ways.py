"""The ways to compute a transformer's attention, and what plans have to know of them, without torch.

A further kernel that diffusers' dispatcher knows needs only an entry in `WAYS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Literal

from diffusers_helper.errors import InputError


@dataclass(frozen=True, slots=True)
class Way:
    """One way to compute attention.

    Attributes:
        backend: Its name in diffusers' dispatcher (`diffusers.models.attention_dispatch`); "" if it is ours.
        package: The module of the package that it needs; "" if torch has it.
        source: A phrase that says where the package can be had.
        scores: Which scores of queries with keys it stores at a time: none; those of all tokens; those of
            a slice; or what the kernel does that PyTorch chooses.
    """

    label: str
    backend: str = ""
    package: str = ""
    source: str = ""
    scores: Literal["none", "all", "slice", "as chosen"] = "none"
    is_tried: bool = False


NATIVE, SLICED = "native", "sliced"
WAYS: Mapping[str, Way] = {
    NATIVE: Way("PyTorch's choice", "native", scores="as chosen", is_tried=True),
    SLICED: Way("In slices", scores="slice"),
    "flash": Way("PyTorch, flash", "_native_flash"),
    "efficient": Way("PyTorch, memory-efficient", "_native_efficient"),
    "math": Way("PyTorch, math", "_native_math", scores="all"),
    "triton": Way("Triton flash-attention", "flash", "flash_attn", "it is built from source", is_tried=True),
    "aiter": Way("AITER", "aiter_fa2_hub", "kernels", "pip install kernels; it downloads the kernel"),
    "sage": Way("SageAttention", "sage", "sageattention", "version 2 is built from source", is_tried=True),
}

# The most that one slice takes. Smaller slices are slower (`benchmarks/attention.py`).
_MOST_SLICE_BYTES = 256 * 1024**2
_CAP_SHARE = 16
_FP32_BYTES = 4


def slice_bytes(cap_bytes: int) -> int:
    """Return the memory for one slice of attention under a cap in bytes, which is 0 if it is not known."""
    return min(_MOST_SLICE_BYTES, cap_bytes // _CAP_SHARE) if cap_bytes else _MOST_SLICE_BYTES


def slice_of(tokens: int, head_dim: int, limit_bytes: int) -> tuple[int, int]:
    """Return the number of queries of one head in a slice, and the bytes that the slice takes.

    A slice holds the keys and values of its head in fp32, and for each query its scores with all keys, the
    query itself before and after it is scaled, and its result. One query is the least.
    """
    keys, query = 2 * tokens * head_dim * _FP32_BYTES, (tokens + 3 * head_dim) * _FP32_BYTES
    queries = min(tokens, max(1, (limit_bytes - keys) // query))
    return queries, keys + queries * query


def check_way(name: str, *, has_gpu: bool) -> None:
    """Raise InputError for a way whose package is not installed, or that needs a GPU."""
    way = WAYS[name]
    if way.package and (not has_gpu or find_spec(way.package) is None):
        lacks = f"the package {way.package} is not installed ({way.source})" if has_gpu else "it needs a GPU"
        raise InputError(
            setting="attention", found=f"is {name}, but {lacks}", expected="a way that this machine has",
            remedy="Set `attention` to auto.",
        )  # fmt: skip


@cache
def _is_installed(package: str) -> bool:
    return find_spec(package) is not None


def tried_ways() -> tuple[str, ...]:
    """Return the ways that the automatic choice tries on a GPU, in their order of preference.

    A package that is installed while this process runs does not count, as diffusers does not see it either.
    """
    tried = (name for name, way in WAYS.items() if way.is_tried)
    return tuple(name for name in tried if not WAYS[name].package or _is_installed(WAYS[name].package))


def kernel_words(operation: str) -> str:
    """Return the kind of kernel that an operation of SDPA runs, such as "flash" or "math"."""
    kinds = ("flash", "efficient", "cudnn", "math")
    return next((kind for kind in kinds if kind in operation), operation)
