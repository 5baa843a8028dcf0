"""The memory that weights leave free: what the default costs, and the least that a job's plan needs."""

from __future__ import annotations

import math
from dataclasses import dataclass

from diffusers_helper.planning.budget import Budget, Demand, DoesNotFit, JobPlan, plan_job
from diffusers_helper.units import GB, gb_bytes, gb_text


@dataclass(frozen=True, slots=True)
class PreservedChoice:
    """The preserved memory in force, and the automatic one.

    With the automatic one as many weights stay on the device as the estimated working memory allows. It is
    the largest value that holds nothing back.

    Attributes:
        plan: The plan with the preserved memory in force.
        automatic: The plan with the automatic one.
    """

    plan: JobPlan
    automatic: JobPlan

    @property
    def saved_bytes(self) -> int:
        """Return how many bytes fewer each forward pass of the transformer copies with the automatic one."""
        now, then = (one.stage("sample").streamed_bytes for one in (self.plan, self.automatic))
        return now - then

    @property
    def words(self) -> str:
        """Return why memory is left idle and what the automatic value would save; empty for nothing."""
        if self.saved_bytes <= 0:
            return ""
        budget, sample = self.plan.budget, self.plan.stage("sample")
        why = "as docs/amd-memory.md sets it against fragmentation" if budget.is_default else "as was set"
        then = self.automatic.stage("sample")
        return (
            f"{gb_text(budget.preserved_in_force)} of {gb_text(budget.cap_bytes)} GB are preserved, {why}, "
            f"so {gb_text(sample.resident_bytes)} GB of the transformer stay on the device and "
            f"{gb_text(sample.streamed_bytes)} GB are streamed in each pass. If only "
            f"{gb_text(self.automatic.budget.preserved_bytes)} GB were preserved, as the estimates allow, "
            f"{gb_text(then.resident_bytes)} GB would stay and each pass would copy "
            f"{gb_text(self.saved_bytes)} GB less."
        )


def preserved_choice(plan: JobPlan, demand: Demand) -> PreservedChoice | None:
    """Return the choice for a plan that was made for a demand; None if there is no other plan."""
    budget = plan.budget
    try:
        freed = plan_job(_preserving(budget, 0), (demand,))
    except DoesNotFit:
        return None
    kept = max(stage.resident_bytes + stage.others_bytes for stage in freed.stages)
    tenths = math.floor((budget.cap_bytes - kept) * 10 / GB)  # the setting has steps of a tenth of a GB
    return PreservedChoice(plan, plan_job(_preserving(budget, gb_bytes(max(0, tenths) / 10)), (demand,)))


def _preserving(budget: Budget, preserved_bytes: int) -> Budget:
    return Budget(
        budget.total_bytes, budget.cap_bytes, preserved_bytes, budget.reserve_bytes, is_default=False
    )
