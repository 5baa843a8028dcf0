"""The decision what of a model stays on the device and what is streamed, made before anything is loaded.

The rule: resident weights <= cap - max(preserved, working set + reserve), and no plan's peak exceeds the cap.
A transformer's blocks that do not fit are copied in ahead of their turn, through a ring of `RING_BLOCKS`
slots that lies in the preserved memory and is part of the peak. All figures are whole bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from diffusers_helper.errors import InputError
from diffusers_helper.units import GB, gb_text

MAX_VRAM_USAGE_GB: float = 20.0
"""The cap in GB of 1024^3 bytes for Radeons of up to 24 GB, as far as the card leaves 3.5 GB free; the memory
document sets it so. It is the limit in the lines about memory where a device has no cap."""

RING_BLOCKS = 2
# The least that a default of preserved memory leaves for weights, as 18 of 20 GB do.
LEFT_FOR_WEIGHTS = 2 * GB


@dataclass(frozen=True, slots=True)
class Weights:
    """A model's weights as they lie on the device.

    Attributes:
        block_bytes: The bytes of each block that can be streamed, in the order they run. The others are
            always resident while the model is in use.
    """

    name: str
    total_bytes: int
    block_bytes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if min((self.total_bytes, *self.block_bytes)) < 0 or sum(self.block_bytes) > self.total_bytes:
            raise ValueError(f"{self.name}: blocks of {sum(self.block_bytes)} of {self.total_bytes} bytes")

    @property
    def fixed_bytes(self) -> int:
        return self.total_bytes - sum(self.block_bytes)


@dataclass(frozen=True, slots=True)
class Stage:
    """One use of one model ("text", "text_2", "vae_encode", "vision", "sample" or "decode").

    Its `working_bytes` are the most that inputs, activations and outputs take at a time.
    """

    name: str
    model: Weights
    working_bytes: int


@dataclass(frozen=True, slots=True)
class Demand:
    """The needs of a job with one size of the VAE's tiles (in pixels; None where nothing is tiled)."""

    vae_tile_px: int | None
    stages: tuple[Stage, ...]


@dataclass(frozen=True, slots=True)
class Budget:
    """The memory that a job may use.

    Attributes:
        cap_bytes: The most that this process may hold there, in all.
        preserved_bytes: The least that weights leave free.
        reserve_bytes: The memory that no tensor shows: the context, and MIOpen's and BLAS' workspaces.
        is_default: Whether preserved_bytes is a default, which is lowered under a small cap.
    """

    total_bytes: int
    cap_bytes: int
    preserved_bytes: int
    reserve_bytes: int
    is_default: bool = False

    def with_cap(self, cap_bytes: int) -> Budget:
        """Return the same budget under another cap."""
        return replace(self, cap_bytes=cap_bytes)

    @property
    def preserved_in_force(self) -> int:
        """Return the preserved bytes: a default leaves LEFT_FOR_WEIGHTS, a person's own value is kept."""
        if not self.is_default:
            return self.preserved_bytes
        return max(0, min(self.preserved_bytes, self.cap_bytes - LEFT_FOR_WEIGHTS))


@dataclass(frozen=True, slots=True)
class StagePlan:
    """The plan of one stage.

    Attributes:
        resident_bytes: Weights that stay on the device for the stage.
        resident_blocks, streamed_blocks: Indices of blocks, ascending.
        ring_bytes: The device side of the ring; 0 where nothing is streamed.
        slot_bytes: One slot of the ring, as large as the largest streamed block.
        streamed_bytes: The bytes that are copied in for one forward pass.
        others_bytes: Weights of other models that stay on the device meanwhile.
        peak_bytes: Others + resident + ring + working + reserve; never more than the cap.
        evict: Names of models that leave the device before.
        reason: A sentence for people.
    """

    stage: str
    model: str
    resident_bytes: int
    resident_blocks: tuple[int, ...]
    streamed_blocks: tuple[int, ...]
    ring_bytes: int
    slot_bytes: int
    streamed_bytes: int
    working_bytes: int
    reserve_bytes: int
    others_bytes: int
    peak_bytes: int
    evict: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class JobPlan:
    """The plan of all stages of a job.

    Attributes:
        keep_all_resident: Whether all models fit at once and stay on the device between the stages.
        smallest_cap_bytes: The cap below which the job would be refused.
    """

    budget: Budget
    stages: tuple[StagePlan, ...]
    vae_tile_px: int | None
    keep_all_resident: bool
    peak_bytes: int
    smallest_cap_bytes: int

    def stage(self, name: str) -> StagePlan:
        """Return the plan of a stage.

        Raises:
            KeyError: If the job has no such stage.
        """
        for plan in self.stages:
            if plan.stage == name:
                return plan
        raise KeyError(name)


class DoesNotFit(InputError):
    """A cap that no plan keeps within.

    Attributes:
        demands: The alternative demands, none of which fits.
        stage: Name of the first stage that does not fit.
        smallest_cap_bytes: A cap at which it would work, and below which nothing does.
        remedies: Three sentences; together they are `remedy`.
    """

    code = "does_not_fit"

    def __init__(self, budget: Budget, demands: Sequence[Demand]) -> None:
        least = min(demands, key=lambda demand: smallest_cap(budget, demand.stages))
        stage = next(one for one in least.stages if smallest_cap(budget, (one,)) > budget.cap_bytes)
        self.budget, self.demands, self.stage = budget, tuple(demands), stage.name
        self.smallest_cap_bytes = smallest_cap(budget, least.stages)
        weights, working = least_resident(stage.model), stage.working_bytes + budget.reserve_bytes
        cap = gb_text(self.smallest_cap_bytes, up=True)
        by_cap = f"Set `vram_cap_gb` to {cap} or more."
        if self.is_too_large:
            by_cap = f"It would fit into {cap} GB; this device has {gb_text(budget.total_bytes)} GB."
        by_preserved = "Or lower `preserved_gb`, which holds weights back."
        if weights + working > budget.cap_bytes:
            by_preserved = "To lower `preserved_gb` alone is not enough."
        by_size = "Or choose a smaller `resolution`."
        if len(demands) == 1 and demands[0].vae_tile_px:  # smaller tiles were not tried
            by_size = "Or choose a smaller `resolution`, or leave out `vae_tile`."
        self.remedies = (by_cap, by_preserved, by_size)
        super().__init__(
            f"Stage {stage.name} does not fit into {gb_text(budget.cap_bytes)} GB: "
            f"{gb_text(weights, up=True)} GB of {stage.model.name}'s weights must be on the device, "
            f"working takes {gb_text(working, up=True)} GB, and {gb_text(budget.preserved_in_force)} GB are "
            "preserved.",
            " ".join(self.remedies),
            setting="vram_cap_gb",
        )

    @property
    def is_too_large(self) -> bool:
        """Return whether the device itself is smaller than the smallest cap."""
        return self.smallest_cap_bytes > self.budget.total_bytes

    @property
    def is_preserved(self) -> bool:
        """Return whether less preserved memory alone would do."""
        freed = replace(self.budget, preserved_bytes=0, is_default=False)
        return min(smallest_cap(freed, demand.stages) for demand in self.demands) <= freed.cap_bytes

    @property
    def least(self) -> JobPlan:
        """Return the plan under the smallest cap that works."""
        return plan_job(self.budget.with_cap(self.smallest_cap_bytes), self.demands)


@lru_cache(maxsize=64)
def _spread_order(count: int) -> tuple[int, ...]:
    """Return 0 to count - 1 in an order whose beginnings are spread evenly: by reversed bits.

    Resident blocks between streamed ones give the copies time. Since the first n are among the first n + 1, a
    larger cap never streams more.
    """
    bits = max(1, (count - 1).bit_length())
    reversed_bits = (int(f"{number:0{bits}b}"[::-1], 2) for number in range(1 << bits))
    return tuple(index for index in reversed_bits if index < count)


@dataclass(frozen=True, slots=True)
class _Split:
    """A split of blocks: the first `count` of the spread order are resident, the others are streamed."""

    count: int
    resident_bytes: int
    slot_bytes: int

    @property
    def ring_bytes(self) -> int:
        return RING_BLOCKS * self.slot_bytes


@lru_cache(maxsize=256)
def _splits(model: Weights) -> tuple[_Split, ...]:
    order = _spread_order(len(model.block_bytes))
    largest = 0
    slots: list[int] = []  # the largest block from each place of the order on
    for index in reversed(order):
        slots.append(largest)
        largest = max(largest, model.block_bytes[index])
    slots = [*slots, largest][::-1]
    resident = model.fixed_bytes
    splits: list[_Split] = []
    for count, slot in enumerate(slots):
        if count:
            resident += model.block_bytes[order[count - 1]]
        splits.append(_Split(count, resident, slot))
    return tuple(splits)


def least_resident(model: Weights) -> int:
    """Return the bytes on the device when as many blocks as possible are streamed, with the ring."""
    return min(split.resident_bytes + split.ring_bytes for split in _splits(model))


def _peak(budget: Budget, split: _Split, working_bytes: int, others_bytes: int = 0) -> int:
    return others_bytes + split.resident_bytes + split.ring_bytes + working_bytes + budget.reserve_bytes


def _fits(budget: Budget, split: _Split, working_bytes: int, others_bytes: int = 0) -> bool:
    kept = split.resident_bytes + others_bytes + budget.preserved_in_force
    return max(kept, _peak(budget, split, working_bytes, others_bytes)) <= budget.cap_bytes


def plan_stage(budget: Budget, stage: Stage, already_resident: Sequence[Weights] = ()) -> StagePlan:
    """Plan a stage with as many of its weights on the device as the budget allows.

    Other models stay there only where this one fits beside them whole. Otherwise all of them leave first, so
    that there is one large model at a time.

    Raises:
        DoesNotFit: If no split keeps within the cap.
    """
    splits = _splits(stage.model)
    others = [model for model in already_resident if model.name != stage.model.name]
    beside = sum(model.total_bytes for model in others)
    evict: tuple[str, ...] = ()
    if not _fits(budget, splits[-1], stage.working_bytes, beside):
        evict, beside = tuple(model.name for model in others), 0
    fitting = [split for split in splits if _fits(budget, split, stage.working_bytes, beside)]
    if not fitting:
        raise DoesNotFit(budget, (Demand(None, (stage,)),))
    split = fitting[-1]
    order = _spread_order(len(stage.model.block_bytes))
    streamed = tuple(sorted(order[split.count :]))
    return StagePlan(
        stage=stage.name,
        model=stage.model.name,
        resident_bytes=split.resident_bytes,
        resident_blocks=tuple(sorted(order[: split.count])),
        streamed_blocks=streamed,
        ring_bytes=split.ring_bytes,
        slot_bytes=split.slot_bytes,
        streamed_bytes=sum(stage.model.block_bytes[index] for index in streamed),
        working_bytes=stage.working_bytes,
        reserve_bytes=budget.reserve_bytes,
        others_bytes=beside,
        peak_bytes=_peak(budget, split, stage.working_bytes, beside),
        evict=evict,
        reason=_reason(budget, stage, split),
    )


def _reason(budget: Budget, stage: Stage, split: _Split) -> str:
    blocks = len(stage.model.block_bytes)
    if split.count == blocks:
        return f"All of {stage.model.name} fits."
    need, preserved = stage.working_bytes + budget.reserve_bytes, budget.preserved_in_force
    why = (
        f"{gb_text(preserved)} GB are preserved"
        if preserved >= need + split.ring_bytes
        else f"working takes {gb_text(need + split.ring_bytes)} GB"
    )
    return f"{split.count} of {blocks} blocks stay: of {gb_text(budget.cap_bytes)} GB, {why}."


def plan_job(budget: Budget, demands: Sequence[Demand]) -> JobPlan:
    """Return the plan for the first of the demands that fits; give them by preference, largest tiles first.

    Raises:
        DoesNotFit: If none of them fits.
    """
    for demand in demands:
        if smallest_cap(budget, demand.stages) <= budget.cap_bytes:
            return _plan(budget, demand, min(smallest_cap(budget, other.stages) for other in demands))
    raise DoesNotFit(budget, demands)


def _plan(budget: Budget, demand: Demand, smallest: int) -> JobPlan:
    models = {stage.model.name: stage.model for stage in demand.stages}
    total = sum(model.total_bytes for model in models.values())
    whole = _Split(0, total, 0)
    keep = all(_fits(budget, whole, stage.working_bytes) for stage in demand.stages)
    plans: list[StagePlan] = []
    for place, stage in enumerate(demand.stages):
        # The weights of the earlier stages are still on the device.
        beside = {other.model.name: other.model for other in demand.stages[:place]} if keep else {}
        plans.append(plan_stage(budget, stage, tuple(beside.values())))
    peak = max(plan.peak_bytes for plan in plans)
    return JobPlan(budget, tuple(plans), demand.vae_tile_px, keep, peak, smallest)


def smallest_cap(budget: Budget, stages: Sequence[Stage]) -> int:
    """Return, exact to the byte, the smallest cap under which each stage fits, one model at a time."""
    return max(_smallest_cap(budget, stage) for stage in stages)


def _smallest_cap(budget: Budget, stage: Stage) -> int:
    def need(split: _Split) -> int:
        # A default of preserved memory is lowered until LEFT_FOR_WEIGHTS are left, and no further.
        is_lowered = budget.is_default and split.resident_bytes <= LEFT_FOR_WEIGHTS
        kept = split.resident_bytes + (0 if is_lowered else budget.preserved_bytes)
        return max(_peak(budget, split, stage.working_bytes), kept)

    return min(need(split) for split in _splits(stage.model))
