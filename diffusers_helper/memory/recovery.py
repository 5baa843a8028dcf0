"""What is tried when a plan turns out too large: smaller ones, at most three, remembered for the next job.

The estimates behind a plan are measured on some cards and can be too low on another. Each step down gives
weights half of the room they had, or has the VAE work in smaller tiles where it was the VAE that failed.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from diffusers_helper.memory.budget import (
    Budget,
    Demand,
    JobPlan,
    StagePlan,
    gb_text,
    least_resident,
    plan_job,
)

_log = logging.getLogger(__name__)

MAX_STEPS = 3
_VAE_STAGES = ("vae_encode", "decode")
# Of what weights may take beyond the least there is no way around.
_SHARES = (1.0, 0.5, 0.25, 0.0)


@dataclass(frozen=True, slots=True)
class Level:
    """How far down the plans are: how often the weights' room was halved, and the tile made smaller."""

    weights: int = 0
    tile: int = 0

    def below(self, stage: str) -> Level:
        """The next one after this stage has failed."""
        return Level(min(self.weights + 1, len(_SHARES) - 1), self.tile + (stage in _VAE_STAGES))


class Ladder:
    """The plans of one job, each smaller than the one before.

    Attributes:
        plan: the one in force.
        level: where it stands.
        retries: steps taken in this job.
    """

    def __init__(self, budget: Budget, demands: Sequence[Demand], level: Level | None = None) -> None:
        """Begins at a level that is remembered from an earlier job; None for the top.

        Raises:
            DoesNotFit: if no plan keeps within the cap.
        """
        self._budget, self._demands = budget, tuple(demands)
        self._first = self.plan = plan_job(budget, demands)
        self.level, self.retries = Level(), 0
        if level is not None and level != self.level:
            self.plan, self.level = self._plan(level), level

    def renew(self, demands: Sequence[Demand]) -> None:
        """The job needs something else from here on; the plans stay as small as they are.

        Raises:
            DoesNotFit: if no plan keeps within the cap.
        """
        self._demands = tuple(demands)
        self._first = plan_job(self._budget, demands)
        self.plan = self._plan(self.level)

    def step_down(self, stage: str) -> str | None:
        """A smaller plan, as the stage has run out of memory.

        Returns: what changes, for a person; None if there is no smaller plan, or enough were tried.
        """
        if self.retries >= MAX_STEPS:
            return None
        before, level = self.plan, self.level
        for _ in _SHARES:
            level = level.below(stage)
            self.plan, self.level = self._plan(level), level
            if change := _difference(before, self.plan, stage):
                self.retries += 1
                return change
        return None

    def _plan(self, level: Level) -> JobPlan:
        demands = self._demands[min(level.tile, len(self._demands) - 1) :]
        if not level.weights:
            return plan_job(self._budget, demands)
        least = max(least_resident(stage.model) for demand in demands for stage in demand.stages)
        most = max(plan.resident_bytes + plan.others_bytes + plan.ring_bytes for plan in self._first.stages)
        room = least + int(max(0, most - least) * _SHARES[min(level.weights, len(_SHARES) - 1)])
        preserved = max(self._budget.preserved_in_force, self._budget.cap_bytes - room)
        return plan_job(replace(self._budget, preserved_bytes=preserved, is_default=False), demands)


def _difference(before: JobPlan, after: JobPlan, stage: str) -> str | None:
    """What changes for the stage that failed; None if nothing does."""
    old, new = before.stage(stage), after.stage(stage)
    changes: list[str] = []
    if _held(new) < _held(old):
        kept, were = gb_text(_held(new)), gb_text(_held(old))
        changes.append(f"{kept} GB of weights stay on the device instead of {were}")
    if stage in _VAE_STAGES and before.vae_tile_px != after.vae_tile_px:
        changes.append(
            f"the VAE works in tiles of {after.vae_tile_px} pixels instead of {before.vae_tile_px}"
        )
    return " and ".join(changes) or None


def _held(plan: StagePlan) -> int:
    return plan.resident_bytes + plan.others_bytes


class LearnedLevels:
    """Where the last job of a card and size ended, in one small file. Without a file nothing is kept."""

    def __init__(self, file: Path | None, key: str) -> None:
        self._file, self._key = file, key

    def read(self) -> Level:
        entry = self._all().get(self._key)
        if not isinstance(entry, dict):
            return Level()
        levels = cast(dict[str, Any], entry)
        weights, tile = levels.get("weights", 0), levels.get("tile", 0)
        if not all(isinstance(value, int) and 0 <= value < 100 for value in (weights, tile)):
            return Level()
        return Level(min(weights, len(_SHARES) - 1), tile)

    def write(self, level: Level) -> None:
        """Also where it cannot be written: a job does not fail for that."""
        if self._file is None:
            return
        entries = {**self._all(), self._key: {"weights": level.weights, "tile": level.tile}}
        temporary = self._file.with_name(f".{self._file.name}.{secrets.token_hex(4)}.tmp")
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_text(json.dumps(entries, indent=1) + "\n", encoding="utf-8")
            os.replace(temporary, self._file)
        except OSError as error:
            _log.warning("%s cannot be written (%s)", self._file, error)
            with suppress(OSError):
                temporary.unlink(missing_ok=True)

    def _all(self) -> dict[str, Any]:
        if self._file is None:
            return {}
        try:
            entries = json.loads(self._file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return cast(dict[str, Any], entries) if isinstance(entries, dict) else {}
