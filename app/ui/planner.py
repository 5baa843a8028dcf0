"""The memory plan of the form's request, computed in this process before anything is loaded."""

import contextlib
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from app.machine import this_profile
from app.ui.pictures import Pictures
from diffusers_helper.errors import InputError, LongtakeError
from diffusers_helper.machine.local import DiskSpeeds, Local
from diffusers_helper.machine.sysfs import host_memory
from diffusers_helper.models.registry import ModelInfo
from diffusers_helper.models.sizes import Network
from diffusers_helper.planning import video
from diffusers_helper.planning.profiles import Profile
from diffusers_helper.planning.times import Forecast, forecast
from diffusers_helper.request import GenerationRequest
from diffusers_helper.units import GB, gb_text

_log = logging.getLogger(__name__)
MEMORY_SETTINGS = ("vram_cap_gb", "preserved_gb")
_FAST_BYTES = 4 * GB  # with larger weights, a video takes days on a CPU


@dataclass(frozen=True)
class Planner:
    """A planner for one machine, of which `doctor` and jobs keep `local` facts. Any thread may use it."""

    profile: Profile = field(default_factory=lambda: this_profile(os.environ))
    local: Local = field(default_factory=Local)
    pictures: Pictures = field(default_factory=Pictures)

    @cached_property
    def disks(self) -> DiskSpeeds:
        return DiskSpeeds(self.local.disks)

    @property
    def defaults(self) -> dict[str, float]:
        """This machine's cap and preserved memory in GB, and its VAE tile, as the form shows them."""
        budget = self.profile.budget()
        values = (float(gb_text(limit)) for limit in (budget.cap_bytes, budget.preserved_bytes))
        return {**dict(zip(MEMORY_SETTINGS, values, strict=True)), "vae_tile": self.profile.vae_tile.value}

    @property
    def max_gb(self) -> float:
        total = self.profile.machine.total_bytes
        return float(gb_text(total)) if total else 192.0

    def changed_memory(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        return {
            name: None if settings[name] == default else settings[name]
            for name, default in self.defaults.items()
            if name in settings
        }

    def takes_days(self, info: ModelInfo) -> bool:
        if self.profile.machine.kind != "cpu":
            return False
        with contextlib.suppress(LongtakeError):  # a start reports what is wrong with the files
            networks = video.known_networks(info, self.profile).values()
            return sum(network.file_bytes for network in networks) > _FAST_BYTES
        return False

    def plan(
        self,
        request: GenerationRequest,
        info: ModelInfo,
        shape: tuple[int, int] | None = None,
        transformer: Network | None = None,
    ) -> video.VideoPlan:
        """Plan a request; `shape` is the video's height and width, if they are known."""
        return video.plan_video(
            request, info,
            self.profile.with_measurements(self.local),  # which `doctor` and jobs may have changed since
            shape=shape,
            transformer=transformer,
            local=self.local,
            free_ram_bytes=host_memory().available or None,
            disk_speed=self.disks.ask,
        )  # fmt: skip

    def forecast(
        self, request: GenerationRequest, info: ModelInfo, shape: tuple[int, int] | None = None
    ) -> Forecast | None:
        with contextlib.suppress(LongtakeError):
            return forecast(self.plan(request, info, shape), self.profile, info)
        return None

    @property
    def has_cap(self) -> bool:
        """False for a card whose size only the driver knows: there is no cap to plan with."""
        return self.profile.cap_bytes.value > 0

    def check(self, request: GenerationRequest, info: ModelInfo) -> None:
        """Refuse a request that does not fit. The engine judges what cannot be planned here."""
        size = self.pictures.judge(request.image) if request.image else None
        if isinstance(size, InputError):
            return
        picture = size and (size.used_height, size.used_width)
        try:
            self.plan(request, info, info.shape_of(request, picture))
        except InputError:
            raise
        except LongtakeError as error:
            _log.info("the plan is left to the engine: %s", error)
