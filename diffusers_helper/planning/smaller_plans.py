"""The smaller memory plans that a job tries after it ran out of memory, and that later jobs start with.

The estimates behind a plan were measured on other machines and can be too low on this one. Each step down
halves the memory for weights beyond the least that they need. If it was the VAE that failed, its tiles become
smaller, too. A job takes at most three steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from diffusers_helper.machine.local import Facts
from diffusers_helper.planning.budget import Budget, Demand, JobPlan, StagePlan, least_resident, plan_job
from diffusers_helper.units import gb_text

MAX_STEPS = 3
_VAE_STAGES = ("vae_encode", "decode")
# The share of the memory beyond their minimum that weights may take, by the level of the plan.
_SHARES = (1.0, 0.5, 0.25, 0.0)


@dataclass(frozen=True, slots=True)
class Level:
    """The size of a plan: how many steps down it takes for the weights and for the VAE's tiles.

    A failure of the VAE counts for both, since its weights take memory, too.

    Attributes:
        weights: The number of steps down for the weights, an index into `_SHARES`.
        tile: The number of the largest tile sizes that are left out.
    """

    weights: int = 0
    tile: int = 0

    def below(self, stage: str) -> Level:
        """Return the next level after `stage` has failed."""
        return Level(min(self.weights + 1, len(_SHARES) - 1), self.tile + (stage in _VAE_STAGES))


class Ladder:
    """The plans of one job, each smaller than the one before.

    Attributes:
        first: The plan before any shortage.
    """

    def __init__(self, budget: Budget, demands: Sequence[Demand], level: Level | None = None) -> None:
        """Make the first plan.

        Args:
            budget: The memory that the job may use.
            demands: The job's needs for each size of tiles, the largest first.
            level: The level to begin at, remembered from an earlier job; None for the largest plan.

        Raises:
            DoesNotFit: If no plan keeps within the cap.
        """
        self._budget, self._demands = budget, tuple(demands)
        self.first = self.plan = plan_job(budget, demands)
        self.level: Level = Level()
        self.retries = 0
        if level is not None and level != self.level:
            self.plan, self.level = self._plan(level), level

    def renew(self, demands: Sequence[Demand]) -> None:
        """Plan for other demands from now on, at the level in force.

        Raises:
            DoesNotFit: If no plan keeps within the cap.
        """
        self._demands = tuple(demands)
        self.first = plan_job(self._budget, demands)
        self.plan = self._plan(self.level)

    def step_down(self, stage: str) -> str | None:
        """Take a smaller plan after a stage has run out of memory.

        Returns:
            A description of the change, or None if there is no smaller plan or `MAX_STEPS` were taken.
        """
        if self.retries >= MAX_STEPS:
            return None
        before, level = self.plan, self.level
        for _ in _SHARES:
            level = level.below(stage)
            level = replace(level, tile=min(level.tile, len(self._demands) - 1))
            self.plan, self.level = self._plan(level), level
            if change := _difference(before, self.plan, stage):
                self.retries += 1
                return change
        return None

    def step_to_end(self, stage: str) -> str | None:
        """Take the smallest plan for a stage that has ended the engine's process instead of raising an error.

        For a stage of the VAE this means the smallest tiles. If these are fixed or already in use, and for
        all other stages, as few weights as possible stay on the device.

        Returns:
            A description of the change, or None if there is no smaller plan.
        """
        before, level = self.plan, self.level
        if stage in _VAE_STAGES:
            level = replace(level, tile=len(self._demands) - 1)
        for end in (level, replace(level, weights=len(_SHARES) - 1)):
            self.plan, self.level = self._plan(end), end
            if change := _difference(before, self.plan, stage):
                self.retries += 1
                return change
        return None

    @property
    def reason(self) -> str:
        """Return a description of how the plan in force differs from the first, or "" if it does not."""
        old, new = (max(map(_held, plan.stages)) for plan in (self.first, self.plan))
        return _changes(old, new, self.first.vae_tile_px, self.plan.vae_tile_px)

    def _plan(self, level: Level) -> JobPlan:
        demands = self._demands[min(level.tile, len(self._demands) - 1) :]
        if not level.weights:
            return plan_job(self.first.budget, demands)
        least = max(least_resident(stage.model) for demand in demands for stage in demand.stages)
        most = max(plan.resident_bytes + plan.others_bytes + plan.ring_bytes for plan in self.first.stages)
        room = least + int(max(0, most - least) * _SHARES[min(level.weights, len(_SHARES) - 1)])
        budget = self.first.budget
        preserved = max(budget.preserved_bytes, budget.cap_bytes - room)
        return plan_job(replace(budget, preserved_bytes=preserved, is_default=False), demands)


def _difference(before: JobPlan, after: JobPlan, stage: str) -> str:
    """Return a description of what changes for the stage that failed, or "" if nothing does."""
    tiles = (before.vae_tile_px, after.vae_tile_px) if stage in _VAE_STAGES else (None, None)
    return _changes(_held(before.stage(stage)), _held(after.stage(stage)), *tiles)


def _changes(held: int, holds: int, tile_px: int | None, new_tile_px: int | None) -> str:
    changes: list[str] = []
    if holds < held:
        changes.append(f"{gb_text(holds)} GB of weights stay on the device instead of {gb_text(held)}")
    if tile_px != new_tile_px:
        changes.append(f"the VAE works in tiles of {new_tile_px} pixels instead of {tile_px}")
    return " and ".join(changes)


def _held(plan: StagePlan) -> int:
    return plan.resident_bytes + plan.others_bytes


class LearnedLevels:
    """The level at which the last job with the same card, model, size and cap ended."""

    def __init__(self, facts: Facts, key: str) -> None:
        self._facts, self._key = facts, key

    def read(self) -> Level:
        entry = self._facts.read(self._key)
        weights, tile = entry.get("weights", 0), entry.get("tile", 0)
        if not all(isinstance(value, int) and 0 <= value < 100 for value in (weights, tile)):
            return Level()
        return Level(min(weights, len(_SHARES) - 1), tile)

    def write(self, level: Level) -> None:
        self._facts.write(self._key, {"weights": level.weights, "tile": level.tile})
