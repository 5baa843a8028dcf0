"""The factors by which estimates of memory are multiplied, by card and platform.

The formulas (`estimates`, `vae_estimates`) count tensors, which are the same everywhere. What differs between
machines is here. Rows that were measured on cards are in `cards/reported`, where scripts/hardware_table.py
writes them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Literal

from diffusers_helper.attention.ways import NATIVE, WAYS, slice_of
from diffusers_helper.planning.cards.reported import STAGES
from diffusers_helper.planning.variables import Setting
from diffusers_helper.units import GB

# A ratio outside of these is a mistake in a report, rather than a property of a card.
_LEAST, _MOST = 0.25, 4.0
Attention = Literal["fused", "math"]
Factor = Literal["attention", "conv_decode", "conv_encode"]

MARGIN = 1.02
"""The factor for the scatter of the formulas' fits, in all stages (`benchmarks/calibrate_memory.py`)."""

SCORE_BYTES = 8
"""The bytes for each pair of tokens and each head in SDPA's math kernel: scores and softmax in fp32."""

_INVOKEAI = "InvokeAI's constants for its VAE on ROCm; not measured by Longtake"
_H200 = "an H200 with cuDNN 9.19, docs/log/gpu.md"
_PLAIN = Setting(1.0, "what the formula counts", "`benchmarks/calibrate_memory.py`, on a CPU")
# By card (gfx name), family of cards or platform of torch; the first that names a factor counts.
FACTORS: Mapping[str, Mapping[Factor, Setting[float]]] = {
    "gfx1151": {
        "attention": Setting(
            1.5, "what attention takes at its peak, with room", "the Strix Halo notes; not measured"
        )
    },
    "rocm": {
        "conv_decode": Setting(2.0, "the workspaces of MIOpen while a VAE decodes", _INVOKEAI),
        "conv_encode": Setting(4.0, "the workspaces of MIOpen while a VAE encodes", _INVOKEAI),
    },
    "cuda": {
        "conv_decode": Setting(1.5, "the workspaces of cuDNN while a VAE decodes", _H200),
        "conv_encode": Setting(2.0, "the workspaces of cuDNN while a VAE encodes", _H200),
    },
}
# What a process holds on the device beside torch's tensors, in bytes.
_RESERVES: Mapping[str, Setting[int]] = {
    "cpu": Setting(0, "every tensor is counted", "docs/amd-memory.md"),
    "gpu": Setting(GB, "the driver's context and the workspaces of MIOpen and BLAS", "not measured"),
}


@dataclass(frozen=True, slots=True)
class MeasuredStage:
    """One stage of one measured job.

    Attributes:
        card: The gfx name of an AMD card, or "cuda".
        runtime: ROCm or CUDA with its version, such as "ROCm 7.2".
        stage: The name of the stage as in `budget.Stage`; "reserve" for what torch does not count.
        planned_bytes: The uncorrected estimate of the stage's working memory (`Stage.working_bytes`), or the
            reserve.
        measured_bytes: The peak of the allocator in the stage, less the weights and the ring of the plan; for
            the reserve, the driver's peak less the allocator's.
    """

    card: str
    torch: str
    runtime: str
    stage: str
    planned_bytes: int
    measured_bytes: int

    def __post_init__(self) -> None:
        if not (self.planned_bytes > 0 and _LEAST <= self.ratio <= _MOST):
            raise ValueError(
                f"{self.card}, {self.stage}: {self.measured_bytes} of {self.planned_bytes} planned bytes; "
                f"expected {_LEAST:g} to {_MOST:g} times the plan"
            )

    @property
    def ratio(self) -> float:
        """Return the measured memory as a multiple of the estimate."""
        return self.measured_bytes / self.planned_bytes


MEASURED = tuple(MeasuredStage(*row) for row in STAGES)


def measured_ratio(card: str, stage: str, rows: Sequence[MeasuredStage] | None = None) -> float | None:
    """Return the largest ratio that was measured in a stage on such cards; None without a row.

    The largest, since a plan has to hold for every version of torch and for every video.

    Args:
        rows: The rows; None for those of the reports.
    """
    known = MEASURED if rows is None else rows
    return max((row.ratio for row in known if (row.card, row.stage) == (card, stage)), default=None)


def corrected(num_bytes: int, card: str, stage: str, rows: Sequence[MeasuredStage] | None = None) -> int:
    """Return an estimate in bytes as measured rows correct it; without a row of its card, unchanged."""
    ratio = measured_ratio(card, stage, rows)
    return num_bytes if ratio is None else ceil(num_bytes * ratio)


@dataclass(frozen=True, slots=True)
class Backend:
    """The memory behaviour of a machine's kernels.

    Attributes:
        attention: The kind of kernel that SDPA chooses. "math" holds the matrix of all scores in fp32.
        attention_factor: The memory at the peak of attention, as a multiple of what the formula counts.
        conv_decode: The memory that decoding takes, as a multiple of what kernels without workspace take.
        card: The card whose measured rows correct the estimates; "" for none.
        way: The way in which the transformer computes attention, one of `attention.ways.WAYS`.
    """

    attention: Attention = "fused"
    attention_factor: float = 1.0
    conv_decode: float = 1.0
    conv_encode: float = 1.0
    card: str = ""
    way: str = NATIVE
    slice_bytes: int = 0

    def score_bytes(self, heads: int, tokens: int, head_dim: int) -> int:
        """Return the memory that the transformer's attention takes for scores."""
        kind = WAYS[self.way].scores
        if kind == "slice":
            return slice_of(tokens, head_dim, self.slice_bytes)[1]
        stores_all = kind == "all" or (kind == "as chosen" and self.attention == "math")
        return ceil(SCORE_BYTES * heads * tokens**2 * self.attention_factor) if stores_all else 0


def factor(name: Factor, *places: str) -> Setting[float]:
    """Return a factor with its source, for the first of these cards, families or platforms that has it."""
    rows = (FACTORS.get(place, {}) for place in places)
    return next((row[name] for row in rows if name in row), _PLAIN)


def backend_of(card: str, family: str, kind: str, attention: Attention = "fused") -> Backend:
    """Return the behaviour of a card's kernels.

    Args:
        card: The name under which measurements of the card are stored (`Machine.card`).
        family: Its family, one of `profiles.FAMILIES`.
        kind: The platform of torch that serves it.
    """
    attending, decoding, encoding = (
        factor(name, card, family, kind).value for name in ("attention", "conv_decode", "conv_encode")
    )
    return Backend(attention, attending, decoding, encoding, card)


def reserve_of(card: str, family: str) -> Setting[int]:
    """Return the reserve of a card in bytes, which measured rows of the stage "reserve" correct."""
    found = _RESERVES["cpu" if family == "cpu" else "gpu"]
    ratio = measured_ratio(card, "reserve")
    if ratio is None:
        return found
    return Setting(round(found.value * ratio), found.reason, "measured on such a card")
