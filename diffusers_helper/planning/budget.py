"""Plans, made before anything is loaded, for which weights stay on the device and which are streamed.

The rule is: resident weights <= cap - max(preserved, working set + reserve), and no plan's peak exceeds the
cap. Blocks that do not fit are copied to the device ahead of their turn, through a ring of `RING_BLOCKS`
slots. The ring lies in the preserved memory and is part of the peak. Weights that cannot be streamed may take
some of the preserved memory, so it never makes a job impossible. All figures are whole bytes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate
from typing import Self

from diffusers_helper.attention.backends import NATIVE
from diffusers_helper.errors import InputError
from diffusers_helper.models.sizes import Weights
from diffusers_helper.planning.variables import Setting
from diffusers_helper.units import compared_gb, gb_text

PLAIN_ATTENTION = Setting(NATIVE, "", "")

MAX_VRAM_USAGE_GB: float = 20.0
"""The largest default cap for Radeons of up to 24 GB, in GB of 1024^3 bytes. The value comes from the memory
document (docs/amd-memory.md). The log lines about memory show it as the limit of a device without a cap."""

RING_BLOCKS = 2


@dataclass(frozen=True, slots=True)
class Stage:
    """One use of one model, with the peak of the memory that inputs, activations and outputs take.

    Its name is "text", "text_2", "vae_encode", "vision", "sample", "sample_low" or "decode".
    """

    name: str
    model: Weights
    working_bytes: int


@dataclass(frozen=True, slots=True)
class Demand:
    vae_tile_px: int | None
    stages: tuple[Stage, ...]
    attention: Setting[str] = PLAIN_ATTENTION


@dataclass(frozen=True, slots=True)
class Budget:
    """The memory that a job may use, and the most to which a default cap is raised; 0 for a fixed cap.

    `reserve_bytes` are outside of tensors: the driver's context, and the workspaces of MIOpen and BLAS.
    """

    total_bytes: int
    cap_bytes: int
    preserved_bytes: int
    reserve_bytes: int
    is_default: bool = False
    max_cap_bytes: int = 0
    helper: "Budget | None" = None

    def with_cap(self, cap_bytes: int) -> Self:
        return replace(self, cap_bytes=cap_bytes, max_cap_bytes=0)

    def preserving(self, preserved_bytes: int) -> Self:
        return replace(self, preserved_bytes=preserved_bytes, is_default=False)


@dataclass(frozen=True, slots=True)
class StagePlan:
    """The plan of one stage, whose peak is the sum of others, resident, ring, working and reserve."""

    stage: str
    model: str
    resident_bytes: int
    resident_blocks: tuple[int, ...]
    streamed_blocks: tuple[int, ...]
    ring_bytes: int
    streamed_bytes: int
    working_bytes: int
    reserve_bytes: int
    others_bytes: int
    peak_bytes: int
    reason: str

    @property
    def held_bytes(self) -> int:
        return self.resident_bytes + self.others_bytes


@dataclass(frozen=True, slots=True)
class JobPlan:
    """The plan of all stages of a job, whose models stay on the device if they all fit at once.

    `stages` and `peak_bytes` leave out what a second card, the `helper`, does.
    """

    budget: Budget
    stages: tuple[StagePlan, ...]
    vae_tile_px: int | None
    keep_all_resident: bool
    peak_bytes: int
    smallest_cap_bytes: int
    helper: "JobPlan | None" = None

    @property
    def held_bytes(self) -> int:
        return max(plan.held_bytes for plan in self.stages)

    @property
    def preserved_bytes(self) -> int:
        """The preserved memory in force, which is less than in the budget if weights cannot leave."""
        return min(self.budget.preserved_bytes, self.budget.cap_bytes - self.held_bytes)

    @property
    def all_stages(self) -> tuple[StagePlan, ...]:
        helper_stages = self.helper.stages if self.helper else ()  # of which the last one decodes
        return (*helper_stages[:-1], *self.stages, *helper_stages[-1:])

    def of(self, stage: str) -> "JobPlan":
        if self.helper and stage in {plan.stage for plan in self.helper.stages}:
            return self.helper
        return self

    def stage(self, name: str) -> StagePlan:
        return {plan.stage: plan for plan in self.all_stages}[name]


class DoesNotFit(InputError):
    """A refusal of a job that no plan fits under the cap.

    `side` is the largest `resolution` that fits; 0 for none, None if it is not known.
    """

    code = "does_not_fit"

    def __init__(
        self,
        budget: Budget,
        demands: Sequence[Demand],
        side: int | None = None,
        *,
        fits_in_int8: bool = False,
    ) -> None:
        smallest_demand = min(demands, key=lambda demand: smallest_cap(budget, demand.stages))
        stages = smallest_demand.stages
        stage = next(stage for stage in stages if smallest_cap(budget, (stage,)) > budget.cap_bytes)
        self.budget, self.demands, self.stage, self.side = budget, tuple(demands), stage.name, side
        self.smallest_cap_bytes = smallest_cap(budget, stages)
        weights = gb_text(min_resident_bytes(stage.model), round_up=True)
        working_set = gb_text(stage.working_bytes + budget.reserve_bytes, round_up=True)
        compared_bytes = budget.total_bytes if self.is_too_large else budget.cap_bytes
        present, cap = compared_gb(compared_bytes, self.smallest_cap_bytes)
        limit = gb_text(budget.cap_bytes) if self.is_too_large else present
        by_size = f"set `resolution` to {side} or less" if side else "choose a smaller `resolution`"
        has_fixed_tile = len(demands) == 1 and demands[0].vae_tile_px  # smaller ones were not tried
        remedies = (
            "" if self.is_too_large else f"set `vram_cap_gb` to {cap} or more",
            "set `weight_dtype` to int8" if fits_in_int8 else "",
            "" if side == 0 else by_size,
            "leave out `vae_tile`" if has_fixed_tile else "",
        )
        sentences = [f"{remedy}." for remedy in remedies if remedy]
        self.remedies = (
            *([f"It would fit into {cap} GB; this device has {present} GB."] if self.is_too_large else []),
            *(f"Or {text}" if index else text.capitalize() for index, text in enumerate(sentences)),
            *(["No smaller `resolution` fits."] if side == 0 else []),
        )
        super().__init__(
            f"Stage {stage.name} does not fit into {limit} GB: "
            f"{weights} GB of {stage.model.name}'s weights must be on the device, and the working set takes "
            f"{working_set} GB.",
            " ".join(self.remedies),
            setting="vram_cap_gb",
        )

    @property
    def is_too_large(self) -> bool:
        return self.smallest_cap_bytes > self.budget.total_bytes

    @property
    def smallest_plan(self) -> JobPlan:
        return plan_job(self.budget.with_cap(self.smallest_cap_bytes), self.demands)


@lru_cache(maxsize=64)
def _spread_order(count: int) -> tuple[int, ...]:
    """Order the indices by their reversed bits, so that any first n are evenly spread.

    The first n blocks of this order become resident. Resident blocks between streamed ones give the copies
    time. A larger cap only adds blocks to the resident ones, so it never streams more.
    """
    bits = max(1, (count - 1).bit_length())
    reversed_bits = (int(f"{number:0{bits}b}"[::-1], 2) for number in range(1 << bits))
    return tuple(index for index in reversed_bits if index < count)


@dataclass(frozen=True, slots=True)
class _Split:
    """A split of blocks: the first `count` of the spread order are resident, the others are streamed."""

    count: int
    resident_bytes: int
    ring_bytes: int = 0

    @property
    def num_bytes(self) -> int:
        return self.resident_bytes + self.ring_bytes


@lru_cache(maxsize=256)
def _splits(model: Weights) -> tuple[_Split, ...]:
    """List the splits from the smallest to the largest, the whole model on the device.

    Those are left out that take as much memory as others that stream less, since two slots may be larger than
    all that is streamed.
    """
    sizes = [model.block_bytes[index] for index in _spread_order(len(model.block_bytes))]
    resident = accumulate(sizes, initial=model.fixed_bytes)
    # The size of the largest block at or after each index of the order
    slots = [*accumulate(reversed(sizes), max, initial=0)][::-1]
    splits = [
        _Split(count, size, RING_BLOCKS * slot)
        for count, (size, slot) in enumerate(zip(resident, slots, strict=True))
    ]
    needs = [*accumulate((split.num_bytes for split in reversed(splits)), min)][::-1]
    smaller = zip(splits, needs, needs[1:], strict=False)
    return (*(split for split, need, next_need in smaller if need < next_need), splits[-1])


def min_resident_bytes(model: Weights) -> int:
    return _splits(model)[0].num_bytes


def _peak(budget: Budget, split: _Split, working_bytes: int, others_bytes: int = 0) -> int:
    return others_bytes + split.num_bytes + working_bytes + budget.reserve_bytes


def _fits(budget: Budget, split: _Split, working_bytes: int, others_bytes: int = 0) -> bool:
    weight_bytes = split.resident_bytes + others_bytes + budget.preserved_bytes
    return max(weight_bytes, _peak(budget, split, working_bytes, others_bytes)) <= budget.cap_bytes


def plan_stage(budget: Budget, stage: Stage, others_bytes: int = 0) -> StagePlan:
    """Plan a stage with as many of its weights on the device as the budget allows, or raise DoesNotFit.

    If not even the fewest leave the preserved memory free, the fewest stay. `others_bytes` are of models that
    stay beside this one.
    """
    splits = _splits(stage.model)
    bytes_beside = stage.working_bytes, others_bytes
    if _peak(budget, splits[0], *bytes_beside) > budget.cap_bytes:
        raise DoesNotFit(budget, (Demand(None, (stage,)),))
    preserving = [split for split in splits if _fits(budget, split, *bytes_beside)]
    split = preserving[-1] if preserving else splits[0]
    order = _spread_order(len(stage.model.block_bytes))
    streamed = tuple(sorted(order[split.count :]))
    return StagePlan(
        stage=stage.name,
        model=stage.model.name,
        resident_bytes=split.resident_bytes,
        resident_blocks=tuple(sorted(order[: split.count])),
        streamed_blocks=streamed,
        ring_bytes=split.ring_bytes,
        streamed_bytes=sum(stage.model.block_bytes[index] for index in streamed),
        working_bytes=stage.working_bytes,
        reserve_bytes=budget.reserve_bytes,
        others_bytes=others_bytes,
        peak_bytes=_peak(budget, split, *bytes_beside),
        reason=_reason(budget, stage, split),
    )


def _reason(budget: Budget, stage: Stage, split: _Split) -> str:
    blocks = len(stage.model.block_bytes)
    if split.count == blocks:
        return f"All of {stage.model.name} fits."
    need = stage.working_bytes + budget.reserve_bytes + split.ring_bytes
    preserved = min(budget.preserved_bytes, budget.cap_bytes - split.resident_bytes)
    reason = f"the working set takes {gb_text(need)} GB"
    if preserved >= need:
        reason = f"{gb_text(preserved)} GB are preserved"
    cap = gb_text(budget.cap_bytes)
    return f"{split.count} of {blocks} blocks stay on the device: of {cap} GB, {reason}."


def plan_job(budget: Budget, demands: Sequence[Demand]) -> JobPlan:
    """Plan a job for the first demand that fits, with a cap that is raised if it is not fixed."""
    if budget.helper and (helped_plan := _plan_with_helper(budget, budget.helper, demands)):
        return helped_plan
    smallest = min(smallest_cap(budget, demand.stages) for demand in demands)
    if smallest > max(budget.cap_bytes, budget.max_cap_bytes):
        raise DoesNotFit(budget.with_cap(max(budget.cap_bytes, budget.max_cap_bytes)), demands)
    budget = replace(budget, cap_bytes=max(budget.cap_bytes, smallest))
    demand = next(demand for demand in demands if smallest_cap(budget, demand.stages) <= budget.cap_bytes)
    models = {stage.model.name: stage.model for stage in demand.stages}
    all_resident = _Split(0, sum(model.total_bytes for model in models.values()))
    keeps_all = all(_fits(budget, all_resident, stage.working_bytes) for stage in demand.stages)
    plans: list[StagePlan] = []
    resident: dict[str, Weights] = {}
    for stage in demand.stages:
        others = (model.total_bytes for name, model in resident.items() if name != stage.model.name)
        plans.append(plan_stage(budget, stage, sum(others)))
        if keeps_all:
            resident[stage.model.name] = stage.model
    peak = max(plan.peak_bytes for plan in plans)
    return JobPlan(budget, tuple(plans), demand.vae_tile_px, keeps_all, peak, smallest)


def _plan_with_helper(budget: Budget, helper: Budget, demands: Sequence[Demand]) -> JobPlan | None:
    """Plan a job in which the second card does all but sampling; None if that does not pay.

    It pays unless everything fits on the first card. The second one has to decode in tiles at least as large.
    """
    without_helper = replace(budget, helper=None)
    tile = 0
    try:
        if (plan := plan_job(without_helper, demands)).keep_all_resident:
            return None
        tile = plan.vae_tile_px or 0
    except DoesNotFit:
        pass  # it may fit on both cards
    try:
        plan = plan_job(without_helper, [_only(demands[0], samples=True)])
        helper_plan = plan_job(helper, [_only(demand, samples=False) for demand in demands])
    except DoesNotFit:
        return None
    if (helper_plan.vae_tile_px or 0) < tile:
        return None
    # Nothing else comes to the first card, so the transformer stays there, even where a part is streamed.
    return replace(
        plan, budget=replace(plan.budget, helper=helper), vae_tile_px=helper_plan.vae_tile_px,
        keep_all_resident=True, helper=helper_plan,
    )  # fmt: skip


def _only(demand: Demand, *, samples: bool) -> Demand:
    stages = (stage for stage in demand.stages if stage.name.startswith("sample") is samples)
    return replace(demand, stages=tuple(stages))


def smallest_cap(budget: Budget, stages: Sequence[Stage]) -> int:
    demands = (min_resident_bytes(stage.model) + stage.working_bytes for stage in stages)
    return max(demands) + budget.reserve_bytes
