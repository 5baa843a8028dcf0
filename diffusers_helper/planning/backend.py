"""What differs between cards: the factors of memory, the types they compute well in, and torch's kernels."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import ceil
from typing import Literal

from diffusers_helper.attention.backends import BACKENDS, NATIVE, slice_size
from diffusers_helper.planning.cards.reported import RATIOS
from diffusers_helper.planning.variables import FP32_VARIABLE, Setting
from diffusers_helper.units import GB

Attention = Literal["fused", "math"]

MARGIN = 1.02
"""The factor for the scatter of the formulas' fits, in all stages (`benchmarks/calibrate_memory.py`)."""

SCORE_BYTES = 8
"""The bytes for each pair of tokens and each head in SDPA's math kernel: scores and softmax in fp32."""

# The attributes of `Backend` by card (gfx name), family of cards or platform of torch, each with its source.
FACTORS: dict[str, dict[str, float]] = {
    # With room; from the Strix Halo notes, and not measured
    "gfx1151": {"attention_factor": 1.5},
    # The workspaces of MIOpen: InvokeAI's constants for its VAE on ROCm; not measured by Longtake
    "rocm": {"conv_decode": 2.0, "conv_encode": 4.0},
    # The workspaces of cuDNN 9.19 on an H200 (docs/log/gpu.md)
    "cuda": {"conv_decode": 1.5, "conv_encode": 2.0},
}


@dataclass(frozen=True, slots=True)
class Backend:
    """The memory behaviour of a machine's kernels, as multiples of what the formulas count.

    "math" attention holds the matrix of all scores in fp32. The VAE's kernels may have a workspace.
    """

    attention: Attention = "fused"
    attention_factor: float = 1.0
    conv_decode: float = 1.0
    conv_encode: float = 1.0
    attention_backend: str = NATIVE
    slice_bytes: int = 0

    def score_bytes(self, heads: int, tokens: int, head_dim: int) -> int:
        scores = BACKENDS[self.attention_backend].scores
        if scores == "slice":
            return slice_size(tokens, head_dim, self.slice_bytes)[1]
        stores_all = scores == "all" or (scores == "as chosen" and self.attention == "math")
        return ceil(SCORE_BYTES * heads * tokens**2 * self.attention_factor) if stores_all else 0


def reserve_of(card: str, family: str) -> Setting[int]:
    if family == "cpu":
        return Setting(0, "every tensor is counted", "docs/amd-memory.md")
    ratio = RATIOS.get(card, {}).get("reserve")
    reason = "the driver's context and the workspaces of MIOpen and BLAS"
    if ratio is None:
        return Setting(GB, reason, "not measured")
    return Setting(round(GB * ratio), reason, "measured on such a card")


NO_BF16 = ("gfx103x",)
"""The families that emulate bf16: 3.1 TFLOP/s on an RX 6600 XT, beside 15.6 in fp16 and 8.4 in fp32, by
reports of others (torch-performance-test-data 186 and 199)."""

SLOW_FP32 = ("gfx1151", "gfx1200")
"""The families whose products in fp32 run at 0.8 to 1.4 TFLOP/s, by reports of others: RDNA 3.5
(rocm-libraries 5946) and RDNA4 (torch-performance-test-data 173)."""


def wider_types(family: str, dtype: str, network: str, environ: Mapping[str, str]) -> tuple[str, ...]:
    """List the types in which a stage is repeated, one after the other, if its result is not finite.

    The first result has the type `dtype`. On cards with slow fp32, a step of the transformer would take
    minutes, so a user has to ask for it.
    """
    is_slow = family in SLOW_FP32 and network.startswith("transformer") and environ.get(FP32_VARIABLE) != "1"
    tries_bf16 = dtype == "fp16" and family not in ("cpu", *NO_BF16)
    return (*(("bf16",) if tries_bf16 else ()), *(() if is_slow else ("fp32",)))


def missing_kernels(arch: str, arch_list: Collection[str]) -> tuple[str, str] | None:
    """Say what is wrong, and its remedy, if the installed torch has no kernels for a card."""
    archs = sorted({name.partition(":")[0] for name in arch_list})
    is_rocm = archs and all(re.fullmatch("gfx[0-9a-f]+", name) for name in archs)
    if not arch or not is_rocm or arch in archs:
        return None
    remedy = "Install AMD's build of PyTorch for this card with webui.sh."
    if arch.startswith("gfx103"):
        remedy = f"Set HSA_OVERRIDE_GFX_VERSION=10.3.0, so that it runs the kernels of gfx1030. Or: {remedy}"
    return f"This card is {arch}, and the installed PyTorch has kernels for {', '.join(archs)} only.", remedy
