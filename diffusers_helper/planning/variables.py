"""The environment variables of the engine that suit a family of cards, each with its reason.

MIOPEN_FALLBACK_README.md lists all variables that the memory document names, including those left out here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")

DOCUMENT = "the memory document, see docs/amd-memory.md"
# The same setting under its present and its older names. If the user has set any of them, Longtake sets none.
ALLOCATOR_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


@dataclass(frozen=True, slots=True)
class Setting(Generic[T]):
    """A value with its reason and its source, which is "you" for a value that the user has set."""

    value: T
    reason: str
    source: str


_FAST = Setting(
    "FAST",
    "skips the benchmark of all solvers before the first decode, which then took 7 s instead of 84 s on a "
    "7900 XTX",
    "MIOpen's documentation; YuE pull request 169",
)
_NAIVE = Setting("1", "the slow, naive kernel stays in the search, so a kernel is always found", DOCUMENT)
_XDLOPS = Setting("1", "the kernels for matrix cores stay in the search; only CDNA has such cores", DOCUMENT)
_AOTRITON = Setting(
    "1", "otherwise, SDPA falls back to the kernel that stores all scores", "PyTorch; unsloth 8225 and 8821"
)
_ALLOCATOR = Setting(
    "garbage_collection_threshold:0.8,max_split_size_mb:64",
    "keeps blocks small and returns memory early",
    DOCUMENT,
)
_PASSIVE = Setting("PASSIVE", "waiting threads leave the cores to the page and the encoder", "OpenMP")


def variables_for(family: str) -> dict[str, Setting[str]]:
    """Return the engine's environment variables for a family of cards."""
    if family == "cpu":
        return {"OMP_WAIT_POLICY": _PASSIVE}
    if family == "cuda":
        return {}
    found = {"MIOPEN_FIND_MODE": _FAST, "MIOPEN_DEBUG_CONV_DIRECT_NAIVE_CONV_FWD": _NAIVE}
    if family in ("gfx1100", "gfx1151", "gfx1200"):
        found["TORCH_ROCM_AOTRITON_ENABLE_EXPERIMENTAL"] = _AOTRITON
    if family == "cdna":
        found["MIOPEN_DEBUG_3D_CONV_IMPLICIT_GEMM_HIP_FWD_XDLOPS"] = _XDLOPS
    if family in ("gfx1100", "gfx1200", "gfx103x", "radeon"):
        found[ALLOCATOR_VARIABLES[0]] = _ALLOCATOR
    return found
