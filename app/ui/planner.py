"""The memory plan of what the form asks for: by arithmetic, in this process, before anything is loaded."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from app.ui.pictures import Pictures
from app.ui.text import MEMORY_STAGES, cap_gb, gb
from diffusers_helper.buckets import nearest_bucket
from diffusers_helper.errors import InputError, LongtakeError
from diffusers_helper.machine.disk import DiskSpeeds
from diffusers_helper.machine.kernels import seen_kernel
from diffusers_helper.machine.local import Local
from diffusers_helper.machine.sysfs import host_memory
from diffusers_helper.models.registry import ModelInfo
from diffusers_helper.planning.budget import (
    GB,
    Budget,
    Demand,
    DoesNotFit,
    JobPlan,
    plan_job,
    smallest_cap,
)
from diffusers_helper.planning.estimates import Calibration, largest_bucket
from diffusers_helper.planning.job import (
    VideoPlan,
    demands_for,
    longest_text,
    network_folders,
    plan_video,
    weights_speed,
)
from diffusers_helper.planning.profiles import Profile, detect, profile_for
from diffusers_helper.request import GenerationRequest

MEMORY_SETTINGS = ("vram_cap_gb", "preserved_gb")
_DEMANDS_KNOWN = 128


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why nothing fits, and what would.

    Attributes:
        stage: the first that does not fit.
        least: the plan under the smallest cap that works.
        is_preserved: whether less preserved memory alone would do.
    """

    stage: str
    budget: Budget
    least: JobPlan
    is_preserved: bool


def _this_profile() -> Profile:
    return profile_for(detect(os.environ), os.environ)


@dataclass(frozen=True)
class Planner:
    """Plans for one machine. Safe from any thread.

    Attributes:
        profile: of the machine that the engine computes on.
        calibration: what was measured there.
        local: what is kept of the machine while the page is up, by `doctor` and by jobs.
        pictures: sizes of those that were handed in; a video's shape follows from its picture's.
    """

    profile: Profile = field(default_factory=_this_profile)
    calibration: Calibration = field(default_factory=Calibration)
    local: Local = field(default_factory=Local)
    pictures: Pictures = field(default_factory=Pictures)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)
    _demands: dict[object, tuple[Demand, ...]] = field(default_factory=dict, init=False, repr=False)  # pyright: ignore[reportUnknownVariableType]

    @cached_property
    def disks(self) -> DiskSpeeds:
        """How fast weights come from the disk."""
        return DiskSpeeds(self.local.disks)

    @property
    def defaults(self) -> dict[str, float]:
        """Cap and preserved memory of this machine in GB, as the form shows them."""
        settings = (self.profile.cap_bytes, self.profile.preserved_bytes)
        values = (_tenths(setting.value) for setting in settings)
        return dict(zip(MEMORY_SETTINGS, values, strict=True))

    @property
    def most_gb(self) -> float:
        """What the form's sliders go up to."""
        total = self.profile.machine.total_bytes
        return _tenths(total) if total else 192.0

    def own(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """The form's memory settings as a request has them: None where they are this machine's."""
        return {
            name: None if settings[name] == default else settings[name]
            for name, default in self.defaults.items()
            if name in settings
        }

    def plan(
        self, request: GenerationRequest, info: ModelInfo, shape: tuple[int, int] | None
    ) -> VideoPlan | Refusal:
        """The plan, or why there is none.

        Args:
            shape: height and width of the video; None where the picture is not known.

        Raises:
            LongtakeError: if a local model's files cannot be read.
        """
        height, width = shape or largest_bucket(request.resolution or info.side, info.multiple)
        profile = self.profile.with_kernel(seen_kernel(self.local.kernels, self.profile.machine.card))
        demands = self._known_demands(request, info, profile, height, width)
        try:
            return plan_video(
                request, info, profile,
                shape=(height, width),
                demands=demands,
                learned=self.local.learned,
                free_ram_bytes=host_memory().available or None,
                disk_speed=lambda: weights_speed(info, self.disks.ask),
            )  # fmt: skip
        except DoesNotFit as error:
            budget = self.profile.budget(request.vram_cap_gb, request.preserved_gb)
            least = plan_job(budget.with_cap(error.smallest_cap_bytes), demands)
            freed = replace(budget, preserved_bytes=0, is_default=False)
            lower = min(smallest_cap(freed, demand.stages) for demand in demands)
            return Refusal(error.stage, budget, least, lower <= budget.cap_bytes)

    def _known_demands(
        self, request: GenerationRequest, info: ModelInfo, profile: Profile, height: int, width: int
    ) -> tuple[Demand, ...]:
        """What is read from the model's files is read once: the form asks with each move of a slider."""
        texts = longest_text(request, info), request.cfg > 1
        # A model of the hub comes while the page is up.
        folders = network_folders(info)
        key = info.name, folders, height, width, texts, request.vae_tile, profile.attention.value
        with self._lock:
            if key in self._demands:
                return self._demands[key]
        found = demands_for(request, info, profile, height, width, self.calibration)
        with self._lock:
            if len(self._demands) >= _DEMANDS_KNOWN:
                self._demands.clear()
            self._demands[key] = found
        return found

    @property
    def knows_the_size(self) -> bool:
        """Whether there is a cap to plan with; of some cards only the driver knows it."""
        return self.profile.cap_bytes.value > 0

    def check(self, request: GenerationRequest, info: ModelInfo) -> Refusal | None:
        """Why a request would be refused before anything is loaded, None if it would not be.

        What cannot be planned here the engine judges.
        """
        if not self.knows_the_size and request.vram_cap_gb is None:
            return None
        size = self.pictures.judge(request.image)
        if isinstance(size, InputError):
            return None
        side = request.resolution or info.side
        try:
            shape = nearest_bucket(size.used_height, size.used_width, side, info.multiple)
            found = self.plan(request, info, shape)
        except LongtakeError:
            return None
        return found if isinstance(found, Refusal) else None


def _tenths(count: int) -> float:
    scale = 10 if count >= GB else 1000
    return math.floor(scale * count / GB) / scale


# What a smaller picture makes smaller; the VAE works in pieces of one size.
_BY_SIZE = ("sample",)


def refusal(found: Refusal) -> InputError:
    """The sentence that the panel says, for the start."""
    cap, smallest = found.budget.cap_bytes, found.least.smallest_cap_bytes
    least = gb(smallest, up=True)
    message = (
        f"Does not fit: “{MEMORY_STAGES[found.stage]}” needs more than a cap of {cap_gb(cap)} GB leaves; "
        f"the smallest cap that works is {least} GB"
    )
    too_large = smallest > found.budget.total_bytes
    message += f", and this device has {cap_gb(found.budget.total_bytes)} GB." if too_large else "."
    raised = "" if too_large else f"set VRAM Cap to {least} GB or more"
    lowered = "lower GPU Inference Preserved Memory" if found.is_preserved else ""
    heaviest = max(found.least.stages, key=lambda stage: stage.peak_bytes).stage
    smaller = "choose a smaller Resolution" if heaviest in _BY_SIZE and not found.is_preserved else ""
    ways = " or ".join(filter(None, (lowered, raised, smaller))) or "choose another model"
    return InputError(message, f"{ways[0].upper()}{ways[1:]}.")
