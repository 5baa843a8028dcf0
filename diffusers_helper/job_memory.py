"""The memory of one job: its plans, the store that executes them, and smaller plans after a shortage."""

from __future__ import annotations

import json
import logging
import traceback
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, replace
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

import torch
from torch import nn

from diffusers_helper.cancel import CancelToken
from diffusers_helper.events import STAGES
from diffusers_helper.files import write_atomic
from diffusers_helper.machine.local import Local
from diffusers_helper.machine.sysfs import host_memory
from diffusers_helper.memory.cancel_hooks import cancellable
from diffusers_helper.memory.device import Device, open_device
from diffusers_helper.memory.flush import EXCEPTION_CLEANUP, WORKER_START
from diffusers_helper.memory.retry import retry
from diffusers_helper.memory.shortage import (
    OutOfDeviceMemory,
    Shortage,
    is_out_of_memory,
    read_shortage,
)
from diffusers_helper.memory.store import Store
from diffusers_helper.models.loaders import Models
from diffusers_helper.output.job_folder import JobFolder
from diffusers_helper.planning.budget import Demand, JobPlan
from diffusers_helper.planning.death_note import DeathNote
from diffusers_helper.planning.estimates import Calibration
from diffusers_helper.planning.job import demands_for, learned_levels
from diffusers_helper.planning.profiles import Machine, Profile, Setting, detect, profile_in_force
from diffusers_helper.planning.recovery import MAX_STEPS, Ladder, LearnedLevels
from diffusers_helper.request import GenerationRequest
from diffusers_helper.vae.engine import Part
from diffusers_helper.vae.passes import DTYPES
from diffusers_helper.vae.plan import Task, Tiles, VaePlan, Video
from diffusers_helper.vae.windows import OWN_CHUNK

_log = logging.getLogger(__name__)
_T = TypeVar("_T")
_VAE_STAGES: dict[Task, str] = {"encode": "vae_encode", "decode": "decode"}


def machine_of(device: Device, environ: Mapping[str, str]) -> Machine:
    """Return the kernel's facts about the machine, corrected by the device that torch computes on."""
    seen = detect(environ)
    if not device.has_gpu:
        return Machine("cpu", "", "CPU", host_memory().total or device.total_bytes)
    properties = torch.cuda.get_device_properties(device.torch_device)
    if torch.version.hip is None:
        return Machine("cuda", "", properties.name, device.total_bytes)
    arch = properties.gcnArchName.split(":")[0]
    # For an APU, torch may show only the memory that the firmware set aside.
    total = max(seen.total_bytes, device.total_bytes) if seen.is_apu else device.total_bytes
    return Machine("rocm", arch, properties.name, total, seen.is_apu)


class MemoryPlans:
    """The memory plans of one job, each smaller than the one before; nothing is loaded or moved.

    Attributes:
        device: The device that will compute.
    """

    def __init__(
        self,
        request: GenerationRequest,
        models: Models,
        height: int,
        width: int,
        local: Local,
        *,
        overflowed: bool = False,
    ) -> None:
        """Make the first plan, with what earlier jobs have learned.

        Args:
            request: The settings of the video.
            models: The request's model, which need not be loaded.
            height: The video's height in pixels.
            width: The video's width in pixels.
            local: The settings of this machine.
            overflowed: Whether the VAE is known to overflow in this job.

        Raises:
            DoesNotFit: If no plan keeps within the cap.
            InputError: For a value in the environment that cannot be used.
            LongtakeError: If a local model's files cannot be read.
        """
        self.device = open_device(torch_device=models.device)
        machine = machine_of(self.device, local.environ)
        profile = profile_in_force(machine, local)
        calibration = Calibration.read(local.calibration, machine.card)

        def needs(profile: Profile) -> tuple[tuple[Demand, ...], LearnedLevels]:
            return (
                demands_for(request, models.info, profile, height, width, calibration),
                learned_levels(local.learned, request, models.info, profile, height, width),
            )

        self._profile, self._needs = profile, needs
        self.demands, self._learned = needs(profile)
        budget = profile.budget(request.vram_cap_gb, request.preserved_gb)
        self._ladder = Ladder(budget, self.demands, self._learned.read())
        if overflowed:
            self.use_fp32()

    @property
    def plan(self) -> JobPlan:
        """Return the plan in force."""
        return self._ladder.plan

    @property
    def retries(self) -> int:
        """Return how often a smaller plan was made."""
        return self._ladder.retries

    @property
    def vae_dtype(self) -> torch.dtype | None:
        """Return the type that the VAE computes in; None for the type of its weights."""
        return DTYPES.get(self._profile.vae_dtype.value)

    def use_fp32(self) -> None:
        """Plan for a VAE that computes in fp32 from now on.

        Raises:
            DoesNotFit: If it does not fit in fp32.
        """
        before = self._profile
        fp32 = Setting("fp32", f"{before.vae_dtype.value} overflowed", "this job")
        self._profile = replace(before, vae_dtype=fp32)
        self.demands, self._learned = self._needs(self._profile)
        self._ladder.renew(self.demands)

    def step_down(self, stage: str) -> str | None:
        """Make a smaller plan after a stage ran out of memory, and remember it for later jobs.

        Returns:
            The change in words for a person, or None if no smaller plan is left.
        """
        return self._remember(self._ladder.step_down(stage))

    def step_to_end(self, stage: str) -> str | None:
        """Make the smallest plan after a stage has ended processes, and remember it for later jobs.

        Returns:
            The change in words for a person, or None if there is no smaller plan.
        """
        return self._remember(self._ladder.step_to_end(stage))

    @property
    def is_apu(self) -> bool:
        """Return whether the device shares the main memory."""
        return self._profile.machine.is_apu

    def _remember(self, change: str | None) -> str | None:
        if change is not None:
            self._learned.write(self._ladder.level)
        return change


class _Source:
    """A model's parts, in the types that the plans require on the device."""

    def __init__(self, models: Models, plans: MemoryPlans) -> None:
        self._models, self._plans = models, plans
        self.part, self.blocks = models.part, models.blocks

    def compute_dtype(self, name: str) -> torch.dtype | None:
        wanted = self._plans.vae_dtype if name == "vae" else None
        return wanted or self._models.compute_dtype(name)


class JobMemory:
    """The networks of one job on the device, and the answer when the device's memory runs out.

    It is the `vae.engine.Owner` of the model's VAE. Enter it around the job: on leaving, the device is empty,
    and the job's folder has the record of the stages.

    Attributes:
        store: The owner of everything on the device.
        cleanup_frequency: 0, as the store, not the VAE engine, returns the allocator's memory.
    """

    cleanup_frequency = 0

    def __init__(
        self,
        plans: MemoryPlans,
        models: Models,
        folder: JobFolder,
        *,
        cancel: CancelToken | None = None,
        on_stage: Callable[[str, int | None], None] = lambda stage, section: None,
        warn: Callable[[str], None] = _log.warning,
    ) -> None:
        """Prepare the device; nothing is loaded.

        Args:
            plans: The plans of the job.
            models: The job's model.
            folder: The folder for the record of the stages, and for the note that the VAE has overflowed.
            cancel: The token that ends a stage between two blocks of its network.
            on_stage: Called with each stage as it begins, and with the section's number.
            warn: Called with each sentence that a person should know.
        """
        self._plans, self._models, self._folder = plans, models, folder
        self._cancel, self._on_stage, self._warn = cancel or CancelToken(), on_stage, warn
        self._stage = ""
        self.store = Store(plans.device, _Source(models, plans), plans.plan)

    def __enter__(self) -> Self:
        tile, wanted = self._plans.plan.vae_tile_px, self._plans.demands[0].vae_tile_px
        if tile != wanted:
            self._warn(
                f"The VAE works in tiles of {tile} pixels instead of {wanted}, as there is not "
                "enough memory for larger ones; the pixels differ slightly."
            )
        self.store.flush(WORKER_START)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError):  # on a full disk, the end of the job is what has to be reported
            self.save()
        self.store.clear()
        if trace is not None:
            # The frames that the exception keeps hold tensors.
            traceback.clear_frames(trace)
            self.store.flush(EXCEPTION_CLEANUP)
        self.device.limit(None)

    def run(self, stage: str, work: Callable[[Any], _T], section: int | None = None) -> _T:
        """Do a stage's work with its network on the device, again with a smaller plan if memory runs out.

        Args:
            stage: "text", "text_2", "vision" or "sample".
            work: A function of the network.
            section: The number of the section, None before the first.

        Raises:
            OutOfDeviceMemory: If no smaller plan is left.
        """

        def attempt() -> _T:
            with self._on_device(stage, section) as network, cancellable(network, self._cancel):
                return work(network)

        return retry(attempt, self._cure_for)

    def _cure_for(self, error: Exception) -> Callable[[], None] | None:
        return partial(self.step_down, read_shortage(str(error))) if is_out_of_memory(error) else None

    def _on_device(self, stage: str, section: int | None) -> AbstractContextManager[Any]:
        self._stage = stage
        self._on_stage(stage, section)
        plan = self._plans.plan.stage(stage)
        return self.store.on_device(
            plan.model, working_bytes=plan.working_bytes, stage=stage, section=section
        )

    @property
    def vae(self) -> nn.Module:
        """Return the model's VAE."""
        return self._models.part("vae")

    @property
    def device(self) -> Device:
        """Return the device that computes."""
        return self.store.device

    def plan_vae(self, task: Task, video: Video) -> VaePlan:
        """Return the job's plan for a task of the VAE: in tiles, and in its own windows of time."""
        tiles = Tiles.of(self._plans.plan.vae_tile_px or 0)
        working_bytes = self._plans.plan.stage(_VAE_STAGES[task]).working_bytes
        return VaePlan(task, "windows", OWN_CHUNK, tiles, working_bytes, False, "By the job's plan.")

    def vae_use(self, task: Task, height: int, width: int) -> tuple[int, str, int]:
        """Return the tile, the precision and the chunk with which the VAE works now; see `recipe.VaeUse`."""
        plan = self.plan_vae(task, Video(1, height, width))
        # All sides from here on give one tile, and so the same pixels.
        side = -(-max(height, width) // 32) * 32
        dtype = self._plans.vae_dtype or self._models.compute_dtype("vae") or self.vae.dtype
        precision = next(name for name, one in DTYPES.items() if one == dtype)
        return min(plan.tiles.side or side, max(side, 64)), precision, plan.chunk

    def vae_on_device(self, task: Task, part: Part | None) -> AbstractContextManager[nn.Module]:
        """Yield the VAE on the device, in the type of the job's plan."""
        return self._on_device(_VAE_STAGES[task], part.number if part else None)

    def use_fp32(self) -> None:
        """Let the VAE compute in fp32 from now on, also in later runs of the job.

        Raises:
            DoesNotFit: If it does not fit in fp32.
        """
        self._empty()
        tile = self._plans.plan.vae_tile_px
        self._plans.use_fp32()
        write_atomic(self._folder.overflow, b"")
        self.store.follow(self._plans.plan)
        smaller = self._plans.plan.vae_tile_px
        tiles = f", in tiles of {smaller} pixels instead of {tile}" if smaller != tile else ""
        self._warn(f"The VAE's numbers overflowed; it works in fp32 from here on{tiles}.")

    def step_down(self, shortage: Shortage) -> None:
        """Continue with a smaller plan after the current stage ran out of memory.

        Raises:
            OutOfDeviceMemory: If no smaller plan is left.
        """
        self._empty()
        _log.warning("out of memory in stage %s: %s", self._stage, shortage.text)
        change = self._plans.step_down(self._stage)
        if change is None:
            raise self._hopeless(shortage)
        self.store.follow(self._plans.plan)
        self._warn(
            f"The device's memory ran out while {STAGES[self._stage].running}; {change}. "
            f"Trying again ({self._plans.retries} of at most {MAX_STEPS})."
        )

    def heed(self, note: DeathNote) -> None:
        """Use the smallest plan from the beginning, since lack of memory has ended engines in this job.

        Raises:
            OutOfDeviceMemory: If there is no smaller plan to try.
        """
        if note.change:
            return  # an earlier engine has done it, and plans remember it
        change = self._plans.step_to_end(note.stage)
        if change is None:
            raise self._hopeless(read_shortage(note.text))
        self.store.follow(self._plans.plan)
        replace(note, change=change).write(self._folder.shortage)
        self._warn(
            f"The device's memory ran out while {STAGES[note.stage].running}, and the driver ended the "
            f"engine; {change}."
        )

    def _hopeless(self, shortage: Shortage) -> OutOfDeviceMemory:
        return OutOfDeviceMemory(shortage, smaller_plans=self._plans.retries, is_apu=self._plans.is_apu)

    def _empty(self) -> None:
        self.store.clear()
        self.store.flush(EXCEPTION_CLEANUP)

    def usage(self) -> dict[str, int | None]:
        """Return the figures of the Finished event."""
        plan = self._plans.plan
        return {
            "peak_device_bytes": self.store.peak_bytes,
            "cap_bytes": plan.budget.cap_bytes,
            "bytes_streamed": self.store.bytes_streamed,
            "retries": self._plans.retries,
            "vae_tile_px": plan.vae_tile_px,
        }

    def save(self) -> None:
        """Write the record of the stages so far, planned and measured, as JSON."""
        plan = self._plans.plan
        record = {
            **self.usage(),
            "preserved_bytes": plan.budget.preserved_in_force,
            "reserve_bytes": plan.budget.reserve_bytes,
            "plan_peak_bytes": plan.peak_bytes,
            "keep_all_resident": plan.keep_all_resident,
            "stages": [asdict(stage) for stage in self.store.records],
        }
        write_atomic(self._folder.memory, json.dumps(record, indent=1).encode() + b"\n")
