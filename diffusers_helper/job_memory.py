"""One job's memory: its plan, the store that carries it out, and what happens when it was too large."""

from __future__ import annotations

import json
import logging
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from diffusers_helper.job_folder import write_atomic
from diffusers_helper.loaders import Models
from diffusers_helper.memory.budget import Budget, Demand, JobPlan, gb_bytes
from diffusers_helper.memory.device import Device, open_device
from diffusers_helper.memory.estimates import demands, text_tokens, tile_steps
from diffusers_helper.memory.flush import EXCEPTION_CLEANUP, WORKER_START
from diffusers_helper.memory.networks import networks
from diffusers_helper.memory.recovery import MAX_STEPS, Ladder, LearnedLevels
from diffusers_helper.memory.shortage import (
    OutOfDeviceMemory,
    Shortage,
    is_out_of_memory,
    read_shortage,
)
from diffusers_helper.memory.store import Store
from diffusers_helper.request import GenerationRequest
from diffusers_helper.vae import set_tile

_log = logging.getLogger(__name__)
_T = TypeVar("_T")
_WORDS = {
    "text": "encoding the prompt",
    "text_2": "encoding the prompt",
    "vae_encode": "encoding the picture",
    "vision": "looking at the picture",
    "sample": "sampling",
    "decode": "decoding",
}


@dataclass(frozen=True, slots=True)
class Setup:
    """What a job's plans are made from."""

    device: Device
    device_name: str
    budget: Budget
    demands: tuple[Demand, ...]


def plan_setup(request: GenerationRequest, models: Models, height: int, width: int) -> Setup:
    device = open_device(torch_device=models.device)
    on_cpu = not device.has_gpu
    cap = device.total_bytes if request.vram_cap_gb is None else gb_bytes(request.vram_cap_gb)
    preserved = 0 if request.preserved_gb is None else gb_bytes(request.preserved_gb)
    budget = Budget(device.total_bytes, cap, preserved, 0, request.preserved_gb is None)
    known = networks(models.info, on_cpu=on_cpu)
    demand = demands(
        known, height, width, tile_steps(256, request.vae_tile), text=text_tokens(request.prompt)
    )
    return Setup(device, "cpu", budget, demand)


class JobMemory:
    """Where the networks of one job compute, and what is done when the device's memory runs out.

    Enter it around the job: on leaving, nothing is left on the device.

    Attributes:
        store: the owner of what is on the device; there while entered.
        warn: told what a person should know; the job's report sets it.
    """

    def __init__(
        self,
        request: GenerationRequest,
        models: Models,
        height: int,
        width: int,
        *,
        learned: Path | None = None,
    ) -> None:
        """Plans. Nothing is loaded, and the device is asked for no more than its size.

        Args:
            height, width: of the video in pixels.
            learned: file that remembers plans which were too large; None to remember nothing.

        Raises:
            DoesNotFit: if no plan keeps within the cap.
        """
        self._models = models
        self._setup = setup = plan_setup(request, models, height, width)
        key = f"{setup.device_name}, {models.info.name}, {width}x{height}, {setup.budget.cap_bytes}"
        self._learned = LearnedLevels(learned, key)
        self._ladder = Ladder(setup.budget, setup.demands, self._learned.read())
        self._preferred_tile = setup.demands[0].vae_tile_px
        self._stage = ""
        self.warn: Callable[[str], None] = _log.warning

    @property
    def plan(self) -> JobPlan:
        """The one in force."""
        return self._ladder.plan

    def __enter__(self) -> Self:
        tile = self.plan.vae_tile_px
        if tile != self._preferred_tile:
            self.warn(
                f"The VAE works in tiles of {tile} pixels instead of {self._preferred_tile}, as there is not "
                "enough memory for larger ones; the pixels differ slightly."
            )
        weights = {stage.model.name: stage.model for stage in self._setup.demands[0].stages}
        self.store = Store(self._setup.device, self._models, weights, self.plan)
        self.store.flush(WORKER_START)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.store.clear()
        if trace is not None:
            # The frames that the exception keeps hold tensors.
            traceback.clear_frames(trace)
            self.store.flush(EXCEPTION_CLEANUP)
        self.store.device.limit(None)

    @contextmanager
    def on_device(self, stage: str, section: int | None = None) -> Iterator[Any]:
        """The network of a stage ("text", "text_2", "vae_encode", "vision", "sample" or "decode")."""
        self._stage = stage
        plan = self.plan.stage(stage)
        with self.store.on_device(
            plan.model, working_bytes=plan.working_bytes, stage=stage, section=section
        ) as network:
            if plan.model == "vae" and self.plan.vae_tile_px is not None:
                set_tile(network, self.plan.vae_tile_px)
            yield network

    def attempt(self, work: Callable[[], _T]) -> _T:
        """Does it, and does it again with a smaller plan when the device's memory runs out.

        Raises:
            OutOfDeviceMemory: if no smaller plan is left.
        """
        while True:
            try:
                return work()
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                shortage = read_shortage(str(error))
                traceback.clear_frames(error.__traceback__)
            # Out here the exception is gone, and with it the tensors of its frames.
            self._shrink(shortage)

    def _shrink(self, shortage: Shortage) -> None:
        _log.warning("out of memory in stage %s: %s", self._stage, shortage.text)
        self.store.clear()
        self.store.flush(EXCEPTION_CLEANUP)
        change = self._ladder.step_down(self._stage)
        if change is None:
            raise OutOfDeviceMemory(shortage)
        self._learned.write(self._ladder.level)
        self.store.follow(self.plan)
        self.warn(
            f"The device's memory ran out while {_WORDS[self._stage]}; {change}. "
            f"Trying again ({self._ladder.retries} of at most {MAX_STEPS})."
        )

    def usage(self) -> dict[str, int | None]:
        """The figures of the Finished event."""
        return {
            "peak_device_bytes": self.store.peak_bytes,
            "cap_bytes": self.plan.budget.cap_bytes,
            "bytes_streamed": self.store.bytes_streamed,
            "retries": self._ladder.retries,
            "vae_tile_px": self.plan.vae_tile_px,
        }

    def save(self, file: Path) -> None:
        """The stages so far, planned and measured, as JSON."""
        budget = self.plan.budget
        record = {
            **self.usage(),
            "preserved_bytes": budget.preserved_in_force,
            "reserve_bytes": budget.reserve_bytes,
            "plan_peak_bytes": self.plan.peak_bytes,
            "keep_all_resident": self.plan.keep_all_resident,
            "stages": [asdict(stage) for stage in self.store.records],
        }
        write_atomic(file, json.dumps(record, indent=1).encode() + b"\n")
