"""The store, which executes the plans of `planning.budget`. No other part of a job moves weights."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn

from diffusers_helper.memory.device import Device
from diffusers_helper.memory.flush import FlushStage, flush_rocm_allocator
from diffusers_helper.memory.residency import Resident
from diffusers_helper.memory.staging import Staging
from diffusers_helper.memory.status import clear_cache_near_limit, log_memory_status, low_memory_warning
from diffusers_helper.planning.budget import JobPlan, StagePlan
from diffusers_helper.units import gb_text

_log = logging.getLogger(__name__)
# The points at which the memory document (docs/amd-memory.md) flushes: before a stage's model is loaded,
# after all others have left, and after a stage's models have left.
_FLUSH_BEFORE: dict[str, FlushStage] = {
    "text": "post-unload/text-enc",
    "sample": "post-unload/transformer",
    "sample_low": "post-unload/transformer",
}
_FLUSH_AFTER: dict[str, FlushStage] = {
    "text_2": "post-text-encoding",
    "vae_encode": "post-vae-encoding",
    "vision": "post-clip-vision",
    "sample": "post-transformer-unload",
    "sample_low": "post-transformer-unload",
    "decode": "post-vae-decode",
}
_STATUS = {"sample": "Transformer", "sample_low": "Transformer", "decode": "VAE"}


class Source(Protocol):
    """The source of the networks in main memory.

    `blocks` are those that can be streamed, in the order in which they run. `compute_dtype` is the weights'
    type on the device; None for the stored type. `stays_on_device` is called for a network that is on the
    device as a whole and stays there, so that main memory need not keep it.
    """

    def component(self, name: str) -> Any: ...

    def blocks(self, name: str) -> Sequence[nn.Module]: ...

    def compute_dtype(self, name: str) -> torch.dtype | None: ...

    def stays_on_device(self, name: str) -> None: ...


@dataclass(frozen=True, slots=True)
class StageRecord:
    """The record of one use of a model, with sizes of tensors on the device, and seconds since the start.

    `resident_bytes` are the weights that stayed there, including those of other models.
    """

    stage: str
    model: str
    section: int | None
    begin: float
    end: float
    predicted_bytes: int
    measured_bytes: int
    resident_bytes: int
    streamed_bytes: int
    is_complete: bool


class Store:
    """The store of a job's networks, which moves each to the device as the plan says, and off it again.

    Only one thread may use it. Its `log` has "load vae", "unload vae", "flush post-vae-decode" and so on.
    """

    def __init__(
        self, device: Device, source: Source, plan: JobPlan, warn: Callable[[str], None] = _log.warning
    ) -> None:
        self.device = device
        self.log = list[str]()
        self.records = list[StageRecord]()
        self._source = source
        self._staging = Staging(device.torch_device)
        self._residents: dict[str, Resident] = {}
        self._bytes_streamed = 0  # by those that have left
        self._start_time = time.monotonic()
        self._warn = warn
        self._has_warned_of_decode = False
        self.follow(plan)

    @property
    def bytes_streamed(self) -> int:
        return self._bytes_streamed + sum(resident.bytes_streamed for resident in self._residents.values())

    @property
    def peak_bytes(self) -> int:
        return max((record.measured_bytes for record in self.records), default=0)

    def follow(self, plan: JobPlan) -> None:
        self.clear()
        self.plan = plan
        self.device.limit(plan.budget.cap_bytes - plan.budget.reserve_bytes)

    def has(self, name: str) -> bool:
        return name in self._residents

    def clear(self) -> None:
        for name in list(self._residents):
            self._unload(name)

    def flush(self, stage: FlushStage) -> None:
        self.log.append(f"flush {stage}")
        garbage, cache, pool = map(gb_text, flush_rocm_allocator(stage, device=self.device))
        _log.info("[%s] Gave back: cache %s GB, pool %s GB; garbage was %s GB", stage, cache, pool, garbage)

    @contextmanager
    def on_device(self, stage: str, section: int | None = None) -> Iterator[Any]:
        """Yield a stage's network on the device, as a whole or with blocks that are streamed.

        On exit the network leaves the device, unless the plan keeps all models there. After an exception it
        always leaves.
        """
        plan = self.plan.stage(stage)
        network = self._source.component(plan.model)
        others_bytes = sum(
            resident.num_bytes for name, resident in self._residents.items() if name != plan.model
        )
        start_time = time.monotonic() - self._start_time
        streamed_before = self.bytes_streamed
        is_complete = False
        try:
            self._make_room(plan, type(network).__name__)
            self.device.reset_peak()
            with self.device:
                self._load(plan, network)
                yield network
            is_complete = True
        finally:
            self.records.append(
                StageRecord(
                    stage=plan.stage,
                    model=plan.model,
                    section=section,
                    begin=start_time,
                    end=time.monotonic() - self._start_time,
                    predicted_bytes=plan.peak_bytes - plan.reserve_bytes - plan.others_bytes + others_bytes,
                    measured_bytes=self.device.peak_bytes(),
                    resident_bytes=plan.resident_bytes + others_bytes,
                    streamed_bytes=self.bytes_streamed - streamed_before,
                    is_complete=is_complete,
                )
            )
            # After a failure, the network's state is unknown. The flush follows after the exception's tensors
            # are freed, too.
            if not (is_complete and self.plan.keep_all_resident):
                self._unload(plan.model)
            if is_complete and not self.plan.keep_all_resident and plan.stage in _FLUSH_AFTER:
                self.flush(_FLUSH_AFTER[plan.stage])

    def _make_room(self, plan: StagePlan, class_name: str) -> None:
        if not self.plan.keep_all_resident and plan.stage in _FLUSH_BEFORE:
            self.flush(_FLUSH_BEFORE[plan.stage])
        if plan.stage in _STATUS:
            log_memory_status(self.device, f"[Before {_STATUS[plan.stage]} Load] ")
        clear_cache_near_limit(self.device, class_name)
        if plan.stage == "decode" and not self.plan.keep_all_resident and not self._has_warned_of_decode:
            warning = low_memory_warning(self.device, plan.peak_bytes - plan.reserve_bytes)
            self._has_warned_of_decode = bool(warning)  # once per job is enough
            if warning:
                self._warn(warning)

    def _load(self, plan: StagePlan, network: nn.Module) -> None:
        name = plan.model
        if (resident := self._residents.get(name)) and resident.streamed == plan.streamed_blocks:
            return
        self._unload(name)
        self.log.append(f"load {name}")
        self._residents[name] = Resident(
            network,
            self._staging,
            preserved_bytes=self.plan.budget.preserved_bytes,
            blocks=self._source.blocks(name),
            streamed=plan.streamed_blocks,
            dtype=self._source.compute_dtype(name),
        )
        if self.plan.keep_all_resident and not plan.streamed_blocks:
            self._source.stays_on_device(name)

    def _unload(self, name: str) -> None:
        if resident := self._residents.pop(name, None):
            resident.close()
            self._bytes_streamed += resident.bytes_streamed
            self.log.append(f"unload {name}")
