"""The plan with which a job begins, and the smaller ones that it tries after it ran out of memory.

Each step down halves the memory for weights beyond the least that they need. If it was the VAE that failed,
its tiles become smaller, too. Later jobs start with the plan that a job ended with.

Every layer computes in 16 or 32 bit, so a smaller type is only a way of storing weights. int8 is as small as
fp8 and more precise. It pays if it keeps all blocks on the device. If blocks are streamed, each of them is
rounded again in every pass, which takes the processor much longer than copying it.
"""

import math
from bisect import bisect
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Self

from diffusers_helper.errors import InputError, LongtakeError
from diffusers_helper.families.family import is_eight_bit
from diffusers_helper.lora_choice import lora_summary
from diffusers_helper.machine.local import Facts
from diffusers_helper.models.registry import ModelInfo
from diffusers_helper.planning.budget import (
    Budget,
    Demand,
    DoesNotFit,
    JobPlan,
    min_resident_bytes,
    plan_job,
)
from diffusers_helper.planning.estimates import largest_bucket
from diffusers_helper.planning.profiles import YOU, Profile
from diffusers_helper.request import AUTO, SETTINGS, GenerationRequest
from diffusers_helper.units import GB, gb_bytes, gb_text

_STORED = SETTINGS["weight_dtype"].default
_IN_BF16 = "The model computes in bf16, which this card emulates slowly, because it does not fit in fp32."
_SIDE_STEP = 32  # between the resolutions that a refusal may name
MAX_STEPS = 3
_VAE_STAGES = ("vae_encode", "decode")
# Further settings that a plan depends on, beside those in every key
_KEYED = ("vae_chunk", "vae_threshold", "weight_dtype", "step_cache")
# The share of the memory beyond their minimum that weights may take, by the level of the plan.
_SHARES = (1.0, 0.5, 0.25, 0.0)

OwnDemandsOf = Callable[[GenerationRequest], Sequence[Demand]]
DemandsOf = Callable[[Profile, GenerationRequest, int, int], Sequence[Demand]]
"""A function from a profile, a request and a video's height and width to the demands, largest tiles first."""


@dataclass(frozen=True, slots=True)
class Level:
    """How many steps down a plan takes for the weights (an index of `_SHARES`) and for the VAE's tiles."""

    weights: int = 0
    tile: int = 0

    @classmethod
    def read(cls, learned: Facts, key: str) -> Self:
        entry = learned.read(key)
        return cls(min(entry.get("weights", 0), len(_SHARES) - 1), entry.get("tile", 0))


class PlanLevels:
    """The plan of a job that is in force, and those that it tries after it ran out of memory."""

    def __init__(self, budget: Budget, demands: Sequence[Demand], learned: Facts, key: str) -> None:
        self._budget = budget
        self._learned = learned
        self.level = Level.read(learned, key)
        self.retries = 0
        self.renew(demands, key)

    def renew(self, demands: Sequence[Demand], key: str) -> None:
        """Plan for other demands from now on, at the level in force, and store further ones for this key."""
        self.demands = tuple(demands)
        self._key = key
        self.first = plan_job(self._budget, demands)
        self.plan = self.first if self.level == Level() else self._plan(self.level)

    def step_down(self, stage: str) -> str | None:
        """Take a smaller plan after a stage has run out of memory, and describe it; None without one.

        After a failure of the VAE, fewer weights stay on the device, too, since the VAE's own are among them.
        """
        if self.retries >= MAX_STEPS:
            return None
        most, last = len(_SHARES) - 1, len(self.demands) - 1
        weights, tile = self.level.weights, self.level.tile
        is_vae = stage in _VAE_STAGES
        levels = [
            Level(min(weights + step, most), min(tile + step * is_vae, last))
            for step in range(1, len(_SHARES) + 1)
        ]
        return self._take(levels, stage)

    def step_to_end(self, stage: str) -> str | None:
        """Take the smallest plan for a stage that has ended the engine's process, and describe the change.

        For a stage of the VAE this means the smallest tiles. If these are fixed or already in use, and for
        all other stages, as few weights as possible stay on the device.
        """
        level = self.level
        if stage in _VAE_STAGES:
            level = replace(level, tile=len(self.demands) - 1)
        return self._take((level, replace(level, weights=len(_SHARES) - 1)), stage)

    def _take(self, levels: Sequence[Level], stage: str) -> str | None:
        before = self.plan
        for level in levels:
            self.plan, self.level = self._plan(level), level
            held = [plan.stage(stage).held_bytes for plan in (before, self.plan)]
            if change := _changes(before, self.plan, *held, tells_tiles=stage in _VAE_STAGES):
                self.retries += 1
                self._learned.write(self._key, asdict(level))
                return change
        return None

    @property
    def reason(self) -> str:
        return _changes(self.first, self.plan, self.first.held_bytes, self.plan.held_bytes)

    def _plan(self, level: Level) -> JobPlan:
        demands = self.demands[min(level.tile, len(self.demands) - 1) :]
        if not level.weights:
            return plan_job(self.first.budget, demands)
        least = max(min_resident_bytes(stage.model) for demand in demands for stage in demand.stages)
        most = max(plan.held_bytes + plan.ring_bytes for plan in self.first.stages)
        room = least + int(max(0, most - least) * _SHARES[min(level.weights, len(_SHARES) - 1)])
        budget = self.first.budget
        smaller = budget.preserving(max(budget.preserved_bytes, budget.cap_bytes - room))
        try:  # without the second card, whose estimates may have been too low as well
            return plan_job(replace(smaller, helper=None), demands)
        except DoesNotFit:
            if budget.helper is None:
                raise
            return plan_job(smaller, demands)


def _changes(before: JobPlan, after: JobPlan, held: int, holds: int, *, tells_tiles: bool = True) -> str:
    changes = list[str]()
    if before.helper and not after.helper:
        changes.append("the second card no longer helps")
    if holds < held:
        changes.append(f"{gb_text(holds)} GB of weights stay on the device instead of {gb_text(held)}")
    if tells_tiles and before.vae_tile_px != after.vae_tile_px:
        changes.append(
            f"the VAE works in tiles of {after.vae_tile_px} pixels instead of {before.vae_tile_px}"
        )
    return " and ".join(changes)


@dataclass(frozen=True, slots=True)
class FirstPlan:
    request: GenerationRequest
    profile: Profile
    levels: PlanLevels
    reason: str


def first_plan(
    request: GenerationRequest,
    info: ModelInfo,
    profile: Profile,
    height: int,
    width: int,
    demands_of: DemandsOf,
    learned: Facts,
    free_ram_bytes: int | None,
) -> FirstPlan:
    """Plan a job as it begins. The plan is the same on the page, on the command line and in a job.

    Where a card that emulates bf16 has no room for the computation in fp32, it computes in bf16 after all.
    DoesNotFit names the largest resolution that fits, and int8 if that would help.
    """
    budget = profile.budget(request.vram_cap_gb, request.preserved_gb)
    if not budget.cap_bytes:
        raise LongtakeError(
            "Only the driver knows how much memory this card has, so the plan is made when a video starts.",
            "Set `vram_cap_gb` to see a plan.",
        )

    def begin(height: int, width: int, request: GenerationRequest = request) -> FirstPlan:
        request, chosen_budget, reason = choose_streaming(
            request, budget, lambda request: demands_of(profile, request, height, width), free_ram_bytes
        )
        key = level_key(request, info, profile, height, width)
        demands = demands_of(profile, request, height, width)
        return FirstPlan(request, profile, PlanLevels(chosen_budget, demands, learned, key), reason)

    try:
        return begin(height, width)
    except DoesNotFit as error:
        if not profile.has_bf16:
            in_bf16 = replace(profile, has_bf16=True)
            first = first_plan(request, info, in_bf16, height, width, demands_of, learned, free_ram_bytes)
            return replace(first, reason=f"{first.reason} {_IN_BF16}".strip())
        is_wide = profile.machine.kind != "cpu" and not is_eight_bit(request.weight_dtype)
        raise _with_remedies(error, request, info, (height, width), begin, is_wide=is_wide) from None


def _with_remedies(
    error: DoesNotFit, request: GenerationRequest, info: ModelInfo, shape: tuple[int, int],
    begin: Callable[..., object], *, is_wide: bool,
) -> DoesNotFit:  # fmt: skip
    def fits(*arguments: Any) -> bool:
        try:
            begin(*arguments)
        except InputError:
            return False
        return True

    shape_at = partial(largest_bucket, multiple=info.multiple, buckets_for=info.family.buckets)
    side = request.resolution or info.side
    sides = range(max(int(SETTINGS["resolution"].low), info.multiple), side, _SIDE_STEP)
    count = bisect(sides, 0, key=lambda side: 0 if fits(*shape_at(side)) else 1)
    fits_in_int8 = is_wide and fits(*shape, replace(request, weight_dtype="int8"))
    largest = sides[count - 1] if count else 0
    return DoesNotFit(error.budget, error.demands, largest, fits_in_int8=fits_in_int8)


def level_key(request: GenerationRequest, info: ModelInfo, profile: Profile, height: int, width: int) -> str:
    machine = profile.machine
    size = f" {round(machine.total_bytes / GB)} GB" if machine.kind == "rocm" and not machine.is_apu else ""
    cap = "the card's"
    if request.vram_cap_gb is not None or profile.cap_bytes.source == YOU:
        cap = str(profile.budget(request.vram_cap_gb).cap_bytes)
    if profile.helper_bytes:
        cap += f", with {gb_text(profile.helper_bytes)} GB on a second card"
    model = info.folder or info.name
    # A level counts down from the largest tiles that such a job may use, so these settings belong to the key.
    vae = f"VAE {profile.vae_dtype.value}, tiles {request.vae_tile or 'auto'}"
    others = {name: getattr(request, name) for name in _KEYED}
    vae += "".join(f", {name} {value}" for name, value in others.items() if value != SETTINGS[name].default)
    lora = f", LoRA {lora_summary(request.lora)}" if request.lora else ""
    return f"{machine.card}{size}, {model}, {width}x{height}, cap {cap}, {vae}{lora}"


def fewest_copies(plan: JobPlan, demands: Sequence[Demand]) -> JobPlan:
    """Plan with the largest preserved memory that holds no weights back, for one of these demands."""
    budget = plan.budget
    demand = next(demand for demand in demands if demand.vae_tile_px == plan.vae_tile_px)
    unpreserved = plan_job(budget.preserving(0), (demand,))
    free_bytes = budget.cap_bytes - unpreserved.held_bytes
    tenths = math.floor(free_bytes * 10 / GB)  # the setting has steps of a tenth of a GB
    return plan_job(budget.preserving(gb_bytes(max(0, tenths) / 10)), (demand,))


def waiting_bytes(request: GenerationRequest, plan: JobPlan, demands_of: OwnDemandsOf) -> int:
    streamed_bytes = plan.stage("sample").streamed_bytes
    if request.weight_dtype == _STORED:
        return streamed_bytes
    stored_bytes = _transformer_bytes(demands_of(replace(request, weight_dtype=_STORED)))
    return streamed_bytes * stored_bytes // _transformer_bytes(demands_of(request))


def _transformer_bytes(demands: Sequence[Demand]) -> int:
    return next(stage.model.total_bytes for stage in demands[0].stages if stage.name == "sample")


def choose_streaming(
    request: GenerationRequest, budget: Budget, demands_of: OwnDemandsOf, free_bytes: int | None
) -> tuple[GenerationRequest, Budget, str]:
    """Choose the type of the weights, and how much memory is preserved, as far as neither is set, and why.

    Where free main memory cannot hold the weights that would be streamed, as little memory is preserved as
    the estimates allow. If it cannot hold the remaining ones either, the weights are rounded to int8 where
    they then stay on the device.
    """
    chosen_request, reason = choose_weights(request, budget, demands_of)
    unchanged = chosen_request, budget, reason
    demands = demands_of(chosen_request)
    streamed_bytes = _streamed_bytes(budget, demands)
    if free_bytes is None or not budget.is_default or not streamed_bytes:
        return unchanged
    plan = plan_job(budget, demands)
    if (needed_bytes := waiting_bytes(chosen_request, plan, demands_of)) <= free_bytes:
        return unchanged
    fewest = fewest_copies(plan, demands)
    lower_budget = replace(fewest.budget, is_default=True)
    if waiting_bytes(chosen_request, fewest, demands_of) > free_bytes:
        chosen_request, reason = choose_weights(request, lower_budget, demands_of)
    if _streamed_bytes(lower_budget, demands_of(chosen_request)) == streamed_bytes:
        return unchanged
    reason = (
        f"Only {gb_text(free_bytes)} GB of main memory are free for {gb_text(needed_bytes)} GB of weights to "
        f"stream, so {gb_text(lower_budget.preserved_bytes)} GB are preserved instead of "
        f"{gb_text(budget.preserved_bytes)} GB, and more weights stay on the device. {reason}"
    )
    return chosen_request, lower_budget, reason.rstrip()


def choose_weights(
    request: GenerationRequest, budget: Budget, demands_of: OwnDemandsOf
) -> tuple[GenerationRequest, str]:
    """Choose the type of the weights that the budget suggests, if the request leaves it open, and say why."""
    if request.weight_dtype != AUTO:
        return request, ""
    stored = replace(request, weight_dtype=_STORED)
    small = replace(request, weight_dtype="int8")
    stored_streamed = _streamed_bytes(budget, demands_of(stored))
    if stored_streamed == 0:
        return stored, _keeps_type("all of the transformer stays on the device")
    try:
        int8_demands = demands_of(small)
    except InputError:  # the only refusal that the type of the files does not meet
        return stored, _keeps_type("they are in GGUF or have scales")
    if stored_streamed is None:  # if int8 does not fit either, the refusal names the cap that it needs
        return small, "The weights are rounded to int8, because they do not fit otherwise."
    int8_streamed = _streamed_bytes(budget, int8_demands)
    if int8_streamed == 0:
        return small, (
            "The weights are rounded to int8, because all of the transformer then stays on the device; "
            f"otherwise, {gb_text(stored_streamed)} GB would be streamed in each pass."
        )
    if int8_streamed is None or int8_streamed >= stored_streamed:
        return stored, _keeps_type("int8 would not be smaller")
    return stored, _keeps_type(
        f"in int8, {gb_text(int8_streamed)} GB would still be streamed in each pass, and be rounded each "
        "time; a copy in int8, which longtake models convert writes, needs no rounding"
    )


def _keeps_type(reason: str) -> str:
    return f"The weights keep the type of the files, because {reason}."


def _streamed_bytes(budget: Budget, demands: Sequence[Demand]) -> int | None:
    try:
        return plan_job(budget, demands).stage("sample").streamed_bytes
    except DoesNotFit:
        return None
