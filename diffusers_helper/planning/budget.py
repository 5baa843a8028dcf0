"""What of a model stays on the device and what is streamed: decided from integers, before anything is loaded.

The rule: resident weights <= cap - max(preserved, working set + reserve), and no plan's peak exceeds the cap.
A transformer's blocks that do not fit are copied in ahead of their turn, through a ring of `RING_BLOCKS`
slots that lies in the preserved memory and is part of the peak.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from diffusers_helper.errors import InputError

GB = 1024**3
RING_BLOCKS = 2
# What a default of preserved memory leaves for weights at least, as 18 of 20 GB do.
LEFT_FOR_WEIGHTS = 2 * GB


@dataclass(frozen=True, slots=True)
class Weights:
    """A model's weights as they lie on the device.

    Attributes:
        name: the part's name in the registry.
        total_bytes: all of them.
        block_bytes: those of each block that can be streamed, in the order they run. The rest is always
            resident while the model is in use.
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
    """One use of one model: "text", "text_2", "vae_encode", "vision", "sample" or "decode".

    Attributes:
        working_bytes: most that inputs, activations and outputs take at a time.
    """

    name: str
    model: Weights
    working_bytes: int


@dataclass(frozen=True, slots=True)
class Demand:
    """What a job needs with one size of the VAE's tiles (pixels; None where nothing is tiled)."""

    vae_tile_px: int | None
    stages: tuple[Stage, ...]


@dataclass(frozen=True, slots=True)
class Budget:
    """What there is.

    Attributes:
        total_bytes: the device's memory.
        cap_bytes: most that this process may hold there, in all.
        preserved_bytes: what weights leave free, at least.
        reserve_bytes: what the process holds that no tensor shows: context, MIOpen's and BLAS' workspaces.
        is_default: whether preserved_bytes is a default, which gives way to a small cap.
    """

    total_bytes: int
    cap_bytes: int
    preserved_bytes: int
    reserve_bytes: int
    is_default: bool = False

    def with_cap(self, cap_bytes: int) -> Budget:
        """The same under another cap."""
        return replace(self, cap_bytes=cap_bytes)

    @property
    def preserved_in_force(self) -> int:
        """A default leaves LEFT_FOR_WEIGHTS; a person's own value stands."""
        if not self.is_default:
            return self.preserved_bytes
        return max(0, min(self.preserved_bytes, self.cap_bytes - LEFT_FOR_WEIGHTS))


@dataclass(frozen=True, slots=True)
class StagePlan:
    """How one stage runs.

    Attributes:
        stage, model: names.
        resident_bytes: weights that stay on the device for the stage.
        resident_blocks, streamed_blocks: indices of blocks, ascending.
        ring_bytes: the device side of the ring; 0 where nothing is streamed.
        slot_bytes: one slot of the ring: the largest streamed block.
        streamed_bytes: what is copied in for one forward pass.
        others_bytes: weights of other models that stay on the device meanwhile.
        peak_bytes: others + resident + ring + working + reserve; never more than the cap.
        evict: names of models that leave the device before.
        reason: a sentence for people.
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
    """How all stages of a job run.

    Attributes:
        keep_all_resident: all models fit at once, and stay on the device between the stages and after.
        peak_bytes: the highest of the stages'.
        smallest_cap_bytes: with one byte less the job would be refused.
    """

    budget: Budget
    stages: tuple[StagePlan, ...]
    vae_tile_px: int | None
    keep_all_resident: bool
    peak_bytes: int
    smallest_cap_bytes: int

    def stage(self, name: str) -> StagePlan:
        """Raises KeyError if the job has no such stage."""
        for plan in self.stages:
            if plan.stage == name:
                return plan
        raise KeyError(name)


class DoesNotFit(InputError):
    """No plan keeps within the cap.

    Attributes:
        smallest_cap_bytes: a cap at which it would work, and below which nothing does.
        stage: the first stage that does not fit.
        remedies: three sentences; together they are `remedy`.
    """

    def __init__(self, budget: Budget, stage: Stage, smallest_cap_bytes: int) -> None:
        preserved, name = budget.preserved_in_force, stage.model.name
        weights, working = least_resident(stage.model), stage.working_bytes + budget.reserve_bytes
        message = (
            f"Stage {stage.name} does not fit into {gb_text(budget.cap_bytes)} GB: "
            f"{gb_text(weights, up=True)} GB of {name}'s weights must be on the device, working takes "
            f"{gb_text(working, up=True)} GB, and {gb_text(preserved)} GB are preserved."
        )
        cap = gb_text(smallest_cap_bytes, up=True)
        by_cap = f"Set --vram-cap-gb to {cap} or more."
        if smallest_cap_bytes > budget.total_bytes:
            by_cap = f"It would fit into {cap} GB; this device has {gb_text(budget.total_bytes)} GB."
        by_preserved = "Or lower --preserved-gb, which holds weights back."
        if weights + working > budget.cap_bytes:
            by_preserved = "Lowering --preserved-gb alone is not enough."
        self.remedies = (by_cap, by_preserved, "Or choose a smaller --resolution, or --vae-tile auto.")
        super().__init__(message, " ".join(self.remedies))
        self.smallest_cap_bytes, self.stage = smallest_cap_bytes, stage.name


def gb_text(count: int, *, up: bool = False) -> str:
    """Bytes as GB (1024^3) for people: two decimals, four below 1 GB; `up` never shows less than there is."""
    scale = 100 if count >= GB else 10_000
    whole = -(-count * scale // GB) if up else round(count * scale / GB)
    return f"{whole / scale:.2f}" if scale == 100 else f"{whole / scale:.4f}".rstrip("0").rstrip(".")


def gb_bytes(count: float) -> int:
    """GB (1024^3), as people give them, as bytes."""
    return math.floor(count * GB)


@lru_cache(maxsize=64)
def _spread_order(count: int) -> tuple[int, ...]:
    """0 to count - 1 so that the indices before any place lie evenly: by reversed bits.

    Resident blocks between streamed ones give the copies time. That the first n are among the first n + 1 is
    what makes a larger cap never stream more.
    """
    bits = max(1, (count - 1).bit_length())
    reversed_bits = (int(f"{number:0{bits}b}"[::-1], 2) for number in range(1 << bits))
    return tuple(index for index in reversed_bits if index < count)


@dataclass(frozen=True, slots=True)
class _Split:
    """The first `count` blocks of the spread order resident, the rest streamed."""

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
    """Bytes on the device when as many blocks as possible are streamed, the ring included."""
    return min(split.resident_bytes + split.ring_bytes for split in _splits(model))


def _fits(budget: Budget, split: _Split, working_bytes: int, others_bytes: int = 0) -> bool:
    weights = split.resident_bytes + others_bytes
    return (
        weights + budget.preserved_in_force <= budget.cap_bytes
        and weights + split.ring_bytes + working_bytes + budget.reserve_bytes <= budget.cap_bytes
    )


def plan_stage(budget: Budget, stage: Stage, already_resident: Sequence[Weights] = ()) -> StagePlan:
    """As many of the stage's weights on the device as the budget allows.

    Other models stay there only where this one fits beside them whole; else all of them leave first, so that
    there is one large model at a time.

    Raises:
        DoesNotFit: if no split keeps within the cap.
    """
    splits = _splits(stage.model)
    others = [model for model in already_resident if model.name != stage.model.name]
    beside = sum(model.total_bytes for model in others)
    evict: tuple[str, ...] = ()
    if not _fits(budget, splits[-1], stage.working_bytes, beside):
        evict, beside = tuple(model.name for model in others), 0
    fitting = [split for split in splits if _fits(budget, split, stage.working_bytes, beside)]
    if not fitting:
        raise DoesNotFit(budget, stage, smallest_cap(budget, (stage,)))
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
        peak_bytes=beside
        + split.resident_bytes
        + split.ring_bytes
        + stage.working_bytes
        + budget.reserve_bytes,
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
    """The plan for the first of the demands that fits; give them by preference, largest tiles first.

    Raises:
        DoesNotFit: if none does.
    """
    for demand in demands:
        if smallest_cap(budget, demand.stages) <= budget.cap_bytes:
            return _plan(budget, demand, min(smallest_cap(budget, other.stages) for other in demands))
    least = min(demands, key=lambda demand: smallest_cap(budget, demand.stages))
    stage = next(stage for stage in least.stages if smallest_cap(budget, (stage,)) > budget.cap_bytes)
    raise DoesNotFit(budget, stage, smallest_cap(budget, least.stages))


def _plan(budget: Budget, demand: Demand, smallest: int) -> JobPlan:
    models = {stage.model.name: stage.model for stage in demand.stages}
    total = sum(model.total_bytes for model in models.values())
    whole = _Split(0, total, 0)
    keep = all(_fits(budget, whole, stage.working_bytes) for stage in demand.stages)
    plans: list[StagePlan] = []
    for place, stage in enumerate(demand.stages):
        # What the stages before have brought onto the device is still there.
        beside = {other.model.name: other.model for other in demand.stages[:place]} if keep else {}
        plans.append(plan_stage(budget, stage, tuple(beside.values())))
    peak = max(plan.peak_bytes for plan in plans)
    return JobPlan(budget, tuple(plans), demand.vae_tile_px, keep, peak, smallest)


def smallest_cap(budget: Budget, stages: Sequence[Stage]) -> int:
    """The smallest cap under which each stage fits, one model at a time: exact to the byte."""
    return max(_smallest_cap(budget, stage) for stage in stages)


def _smallest_cap(budget: Budget, stage: Stage) -> int:
    def need(split: _Split) -> int:
        working = split.resident_bytes + split.ring_bytes + stage.working_bytes + budget.reserve_bytes
        kept = split.resident_bytes + budget.preserved_bytes
        if budget.is_default and split.resident_bytes <= LEFT_FOR_WEIGHTS:
            # The default gives way until LEFT_FOR_WEIGHTS are left, and to nothing below that.
            kept = split.resident_bytes
        return max(working, kept)

    return min(need(split) for split in _splits(stage.model))
