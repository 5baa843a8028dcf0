"""The memory that weights leave free: what it costs, and the least that the estimates ask for."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from diffusers_helper.planning.budget import Budget, Demand, JobPlan, plan_job
from diffusers_helper.units import GB, gb_bytes, gb_text


@dataclass(frozen=True, slots=True)
class PreservedChoice:
    """The preserved memory in force, and the one with the fewest copies.

    With that one, as many weights stay on the device as the estimated working memory allows. It is the
    largest value that holds nothing back.

    Attributes:
        passes: The number of the transformer's forward passes in the whole video.
    """

    plan: JobPlan
    fewest_copies: JobPlan
    passes: int

    @property
    def saved_bytes(self) -> int:
        """Return how many bytes fewer each forward pass of the transformer copies with the other one."""
        now, then = (one.stage("sample").streamed_bytes for one in (self.plan, self.fewest_copies))
        return now - then

    @property
    def words(self) -> str:
        """Return why memory is left idle and what the other value would save; empty for nothing."""
        if self.saved_bytes <= 0:
            return ""
        budget, sample = self.plan.budget, self.plan.stage("sample")
        why = "as docs/amd-memory.md sets it against fragmentation" if budget.is_default else "as was set"
        then, least = self.fewest_copies.stage("sample"), self.fewest_copies.preserved_bytes
        return (
            f"{gb_text(self.plan.preserved_bytes)} of {gb_text(budget.cap_bytes)} GB are preserved, {why}, "
            f"so {gb_text(sample.resident_bytes)} GB of the transformer stay on the device and "
            f"{gb_text(sample.streamed_bytes)} GB are streamed in each pass. If only "
            f"{gb_text(least)} GB were preserved, as the estimates allow, {gb_text(then.resident_bytes)} GB "
            f"would stay and each pass would copy {gb_text(self.saved_bytes)} GB less, which is "
            f"{gb_text(self.passes * self.saved_bytes)} GB in the whole video."
        )


def fewest_copies(plan: JobPlan, demand: Demand) -> JobPlan:
    """Return the plan with the fewest copies beside one that was made for a demand."""
    budget = plan.budget
    freed = plan_job(_preserving(budget, 0), (demand,))
    kept = max(stage.resident_bytes + stage.others_bytes for stage in freed.stages)
    tenths = math.floor((budget.cap_bytes - kept) * 10 / GB)  # the setting has steps of a tenth of a GB
    return plan_job(_preserving(budget, gb_bytes(max(0, tenths) / 10)), (demand,))


def _preserving(budget: Budget, preserved_bytes: int) -> Budget:
    return replace(budget, preserved_bytes=preserved_bytes, is_default=False)
