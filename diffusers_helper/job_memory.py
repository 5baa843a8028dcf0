"""One job's memory: its plan, the store that carries it out, and what happens when it was too large."""

from __future__ import annotations

import json
import logging
import os
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import torch

from diffusers_helper.files import write_atomic
from diffusers_helper.machine.kernels import seen_kernel
from diffusers_helper.machine.local import Local
from diffusers_helper.machine.sysfs import host_memory
from diffusers_helper.memory.device import Device, open_device
from diffusers_helper.memory.flush import EXCEPTION_CLEANUP, WORKER_START
from diffusers_helper.memory.shortage import (
    OutOfDeviceMemory,
    Shortage,
    is_out_of_memory,
    read_shortage,
)
from diffusers_helper.memory.store import Store
from diffusers_helper.models.loaders import Models
from diffusers_helper.planning.budget import Demand, JobPlan
from diffusers_helper.planning.estimates import Calibration
from diffusers_helper.planning.job import demands_for, learned_levels
from diffusers_helper.planning.profiles import Machine, Profile, Setting, detect, profile_for
from diffusers_helper.planning.recovery import MAX_STEPS, Ladder, LearnedLevels
from diffusers_helper.request import GenerationRequest
from diffusers_helper.vae.passes import DTYPES, NotFinite
from diffusers_helper.vae.plan import Tiles

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


class _Parts:
    """A model's parts as the profile wants them on the device."""

    def __init__(self, models: Models, profile: Profile) -> None:
        self._models, self.profile = models, profile
        self.part, self.blocks = models.part, models.blocks

    def compute_dtype(self, name: str) -> torch.dtype | None:
        if name == "vae" and self.profile.vae_dtype.value in DTYPES:
            return DTYPES[self.profile.vae_dtype.value]
        return self._models.compute_dtype(name)


def machine_of(device: Device, environ: Mapping[str, str]) -> Machine:
    """What the kernel says of the machine, set right by what torch computes on."""
    seen = detect(environ)
    if not device.has_gpu:
        return Machine("cpu", "", "CPU", host_memory().total or device.total_bytes)
    properties = torch.cuda.get_device_properties(device.torch_device)
    if torch.version.hip is None:
        return Machine("cuda", "", properties.name, device.total_bytes)
    arch = properties.gcnArchName.split(":")[0]
    # Of an APU torch may show only what the firmware set aside.
    total = max(seen.total_bytes, device.total_bytes) if seen.is_apu else device.total_bytes
    return Machine("rocm", arch, properties.name, total, seen.is_apu)


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
        local: Local,
    ) -> None:
        """Plans. Nothing is loaded, and the device is asked for no more than what it is.

        Args:
            height, width: of the video in pixels.

        Raises:
            DoesNotFit: if no plan keeps within the cap.
            InputError: for a value in the environment that cannot be used.
            LongtakeError: if a local model's files cannot be read.
        """
        self._device = open_device(torch_device=models.device)
        machine = machine_of(self._device, local.environ)
        profile = profile_for(machine, local.environ)
        profile = profile.with_kernel(seen_kernel(local.kernels, machine.card))
        calibration = None
        if local.calibration is not None:
            calibration = Calibration.read(local.calibration, machine.card)
        budget = profile.budget(request.vram_cap_gb, request.preserved_gb)

        def demands(profile: Profile) -> tuple[Demand, ...]:
            return demands_for(request, models.info, profile, height, width, calibration)

        def learned(profile: Profile) -> LearnedLevels:
            return learned_levels(local.learned, request, models.info, profile, height, width)

        self._demands_for, self._demands = demands, demands(profile)
        self._parts, self._overflow = _Parts(models, profile), Path(os.devnull)
        self._learned_for, self._learned = learned, learned(profile)
        self._ladder = Ladder(budget, self._demands, self._learned.read())
        self._stage = ""
        self.warn: Callable[[str], None] = _log.warning

    @property
    def plan(self) -> JobPlan:
        """The one in force."""
        return self._ladder.plan

    def __enter__(self) -> Self:
        tile, wanted = self.plan.vae_tile_px, self._demands[0].vae_tile_px
        if tile != wanted:
            self.warn(
                f"The VAE works in tiles of {tile} pixels instead of {wanted}, as there is not "
                "enough memory for larger ones; the pixels differ slightly."
            )
        self.store = Store(self._device, self._parts, self.plan)
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
            yield network

    def note_overflow(self, file: Path, is_known: bool) -> None:
        """Where it is noted that the VAE's numbers have overflowed, and whether they have in an earlier run.

        Raises:
            DoesNotFit: if they have, and the VAE does not fit in fp32.
        """
        self._overflow = file
        if is_known:
            self._use_fp32()

    @property
    def tiles(self) -> Tiles:
        """The VAE's, by the plan in force."""
        return Tiles.of(self.plan.vae_tile_px or 0)

    def attempt(self, work: Callable[[], _T]) -> _T:
        """Does it, and does it again with a smaller plan when the device's memory runs out.

        Where the VAE's type has overflowed, it computes in fp32 from then on, in later runs of the job too.

        Raises:
            OutOfDeviceMemory: if no smaller plan is left.
            DoesNotFit: if the VAE does not fit in fp32.
            NotFinite: if fp32 does not help.
        """
        while True:
            try:
                return work()
            except Exception as error:
                overflowed = isinstance(error, NotFinite) and not self._is_wide
                if not (is_out_of_memory(error) or overflowed):
                    raise
                shortage = None if overflowed else read_shortage(str(error))
                traceback.clear_frames(error.__traceback__)
            # Out here the exception is gone, and with it the tensors of its frames.
            self.store.clear()
            self.store.flush(EXCEPTION_CLEANUP)
            if shortage is None:
                self._widen()
            else:
                self._shrink(shortage)

    @property
    def _is_wide(self) -> bool:
        dtype = self._parts.compute_dtype("vae") or self._parts.part("vae").dtype
        return dtype == torch.float32

    def _use_fp32(self) -> None:
        """For the VAE, from here on."""
        before = self._parts.profile
        fp32 = Setting("fp32", f"{before.vae_dtype.value} overflowed", "this job")
        self._parts.profile = replace(before, vae_dtype=fp32)
        self._demands = self._demands_for(self._parts.profile)
        self._learned = self._learned_for(self._parts.profile)
        self._ladder.renew(self._demands)
        write_atomic(self._overflow, b"")

    def _widen(self) -> None:
        tile = self.plan.vae_tile_px
        self._use_fp32()
        self.store.follow(self.plan)
        smaller = self.plan.vae_tile_px
        tiles = f", in tiles of {smaller} pixels instead of {tile}" if smaller != tile else ""
        self.warn(f"The VAE's numbers overflowed; it works in fp32 from here on{tiles}.")

    def _shrink(self, shortage: Shortage) -> None:
        _log.warning("out of memory in stage %s: %s", self._stage, shortage.text)
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

    @contextmanager
    def kept_in(self, file: Path) -> Iterator[None]:
        """On leaving, also by an exception, the stages so far are in the file."""
        try:
            yield
        finally:
            with suppress(OSError):  # on a full disk the job's own end is what has to be told
                self.save(file)

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
