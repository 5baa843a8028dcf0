"""What estimates came to on cards, and the ratios by which this corrects later estimates.

The rows are in `cards/reported`, where scripts/hardware_table.py writes them. There are none yet, as no card
was measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from diffusers_helper.planning.cards.reported import STAGES

# A ratio outside of these is a mistake in a report, rather than a property of a card.
_LEAST, _MOST = 0.25, 4.0


@dataclass(frozen=True, slots=True)
class MeasuredStage:
    """One stage of one measured job.

    Attributes:
        card: The gfx name of an AMD card, or "cuda".
        torch: The version of torch.
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
        card: The card.
        stage: The stage.
        rows: The rows; None for those of the reports.
    """
    known = MEASURED if rows is None else rows
    return max((row.ratio for row in known if (row.card, row.stage) == (card, stage)), default=None)


def corrected(num_bytes: int, card: str, stage: str, rows: Sequence[MeasuredStage] | None = None) -> int:
    """Return an estimate in bytes as measured rows correct it; without a row of its card, unchanged."""
    ratio = measured_ratio(card, stage, rows)
    return num_bytes if ratio is None else ceil(num_bytes * ratio)
