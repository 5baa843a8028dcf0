"""The factors by which estimates of memory are multiplied, by card and platform.

The formulas (`estimates`, `vae_estimates`) count tensors, which are the same everywhere. What differs between
machines is here. Ratios that were measured on cards are in `cards/reported`, where scripts/hardware_table.py
writes them, and `estimates.Calibration` applies them.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Literal

from diffusers_helper.attention.ways import NATIVE, WAYS, slice_of
from diffusers_helper.planning.cards.reported import RATIOS
from diffusers_helper.planning.variables import Setting
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
    """The memory behaviour of a machine's kernels.

    Attributes:
        attention: The kind of kernel that SDPA chooses. "math" holds the matrix of all scores in fp32.
        attention_factor: The memory at the peak of attention, as a multiple of what the formula counts.
        conv_decode, conv_encode: The same for the VAE, whose kernels may have a workspace.
        way: The way in which the transformer computes attention, one of `attention.ways.WAYS`.
    """

    attention: Attention = "fused"
    attention_factor: float = 1.0
    conv_decode: float = 1.0
    conv_encode: float = 1.0
    way: str = NATIVE
    slice_bytes: int = 0

    def score_bytes(self, heads: int, tokens: int, head_dim: int) -> int:
        """Return the memory that the transformer's attention takes for scores."""
        kind = WAYS[self.way].scores
        if kind == "slice":
            return slice_of(tokens, head_dim, self.slice_bytes)[1]
        stores_all = kind == "all" or (kind == "as chosen" and self.attention == "math")
        return ceil(SCORE_BYTES * heads * tokens**2 * self.attention_factor) if stores_all else 0


def reserve_of(card: str, family: str) -> Setting[int]:
    """Return what a process holds on the device beside torch's tensors, in bytes."""
    if family == "cpu":
        return Setting(0, "every tensor is counted", "docs/amd-memory.md")
    ratio = RATIOS.get(card, {}).get("reserve")
    what = "the driver's context and the workspaces of MIOpen and BLAS"
    if ratio is None:
        return Setting(GB, what, "not measured")
    return Setting(round(GB * ratio), what, "measured on such a card")
