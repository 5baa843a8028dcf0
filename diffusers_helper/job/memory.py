"""The memory management of one job: its plans, their execution, and smaller plans if memory runs out."""

import json
import logging
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import asdict, replace
from functools import partial
from statistics import median
from types import TracebackType
from typing import Any, Self, TypeVar, cast

import torch
from torch import Tensor, nn

from diffusers_helper.attention.fused import fused_norms
from diffusers_helper.attention.slices import encoder_attention
from diffusers_helper.cancel import CancelToken
from diffusers_helper.errors import LongtakeError
from diffusers_helper.events import STAGES, Stage
from diffusers_helper.families.packing import DEFAULT_CHUNK
from diffusers_helper.files import write_atomic
from diffusers_helper.job.plans import MemoryPlans
from diffusers_helper.memory.device import Device
from diffusers_helper.memory.store import Store
from diffusers_helper.models.sizes import TRANSFORMERS
from diffusers_helper.output.report import Report
from diffusers_helper.planning.out_of_memory import (
    OutOfDeviceMemory,
    OutOfMemory,
    is_out_of_memory,
    read_out_of_memory,
)
from diffusers_helper.planning.smaller_plans import MAX_STEPS
from diffusers_helper.planning.vae import Task, Tiles, VaePlan, Video
from diffusers_helper.planning.variables import FP32_VARIABLE
from diffusers_helper.provenance.job_folder import CrashRecord, JobFolder
from diffusers_helper.vae.engine import VideoPart, retry
from diffusers_helper.vae.families import vae_family
from diffusers_helper.vae.passes import DTYPES, PRECISIONS

_log = logging.getLogger(__name__)
_T = TypeVar("_T", Tensor, dict[str, Tensor])
VAE_STAGES: dict[Task, str] = {"encode": "vae_encode", "decode": "decode"}
_IN_NO_TYPE = "Try another prompt, picture or guidance. If it occurs again, the model's files may be damaged."
_NOT_IN_FP32 = (
    "Set `attention` to sliced, in case a kernel of attention is at fault, or try another prompt, picture or "
    f"guidance. {FP32_VARIABLE}=1 has such a stage repeated in fp32, in which a step may take minutes here."
)


def _is_finite(result: Tensor | Mapping[str, Tensor]) -> bool:
    tensors = [result] if isinstance(result, Tensor) else result.values()
    return all(bool(tensor.isfinite().all()) for tensor in tensors)


class JobMemory:
    """The manager of the device's memory during one job, and the `vae.engine.VaeOwner` of the model's VAE.

    It is a context manager around the job. On exit it empties the device and writes the record of the stages
    to the job's folder.
    """

    def __init__(
        self, plans: MemoryPlans, folder: JobFolder, report: Report, cancel: CancelToken,
        before_vae: Callable[[Device], None] = lambda device: None,
    ) -> None:  # fmt: skip
        self._before_vae: Callable[[Device], None] | None = before_vae
        self.plans = plans
        self._folder = folder
        self._report = report
        self._cancel = cancel
        self._warn = report.warned
        self._stage = ""
        self.store = Store(plans.device, plans, plans.plan, report.warned)
        self._stores = [self.store]
        if plans.helper:
            self._stores.append(Store(plans.helper, plans, plans.plan.of("decode"), report.warned))

    def __enter__(self) -> Self:
        tile = self.plans.plan.vae_tile_px
        first_tile = self.plans.levels.demands[0].vae_tile_px
        if tile != first_tile:
            self._warn(
                f"The VAE works in tiles of {tile} pixels instead of {first_tile}, because there is not "
                "enough memory for larger ones. This changes the pixels slightly."
            )
        for store in self._stores:
            store.flush("worker-start")
        return self

    def __exit__(self, kind: object, error: object, trace: TracebackType | None) -> None:
        with suppress(OSError):  # on a full disk, only the end of the job is reported
            self.save()
        for store in self._stores:
            store.clear()
        if trace is not None:
            # The exception keeps frames whose variables hold tensors.
            traceback.clear_frames(trace)
        for store in self._stores:
            if trace is not None:
                store.flush("exception-cleanup")
            store.device.empty_cache()  # for the processes that try kernels, and the jobs that finish videos
            store.device.limit(None)

    def run(self, stage: str, work: Callable[[Any], _T], section: int | None = None) -> _T:
        """Do a stage's work with its network on the device.

        It is repeated with a smaller plan if the device's memory runs out (OutOfDeviceMemory if none is
        left), and in wider types if the result has values that are not finite.
        """
        result = self._attempt(stage, work, section)
        network = self.plans.plan.stage(stage).model
        tried_precisions = ""
        problem = f"Values that are not finite appeared while {STAGES[stage].running}"
        problem += f" section {section}" if section else ""
        for precision in self.plans.wider(network):
            if _is_finite(result):
                return result
            self._warn(f"{problem}{tried_precisions}, so this stage is repeated in {precision}.")
            tried_precisions = f", also in {precision}"
            with self._widened(network, DTYPES[precision]):
                result = self._attempt(stage, work, section)
        if _is_finite(result):
            return result
        remedy = _IN_NO_TYPE if "fp32" in tried_precisions else _NOT_IN_FP32
        raise LongtakeError(f"{problem}{tried_precisions}.", remedy, code="not_finite")

    def _attempt(self, stage: str, work: Callable[[Any], _T], section: int | None) -> _T:
        def attempt() -> _T:
            is_encoder = self.plans.plan.stage(stage).model not in TRANSFORMERS
            with (
                self._on_device(stage, section) as network,
                self._cancel.within(network),
                encoder_attention() if is_encoder else nullcontext(),
            ):
                return work(network)

        def recovery_from(error: Exception) -> Callable[[], None] | None:
            details = read_out_of_memory(str(error)) if is_out_of_memory(error) else None
            return details and partial(self.step_down, details)

        return retry(attempt, recovery_from)

    @contextmanager
    def _widened(self, network: str, dtype: torch.dtype) -> Iterator[None]:
        self._empty_devices()
        try:
            self.plans.widen((network, dtype))
            self._apply_plan()
            yield
        finally:
            self._empty_devices()
            self.plans.widen(None)
            self._apply_plan()

    def _on_device(self, stage: str, section: int | None) -> AbstractContextManager[Any]:
        plan = self.plans.plan.stage(stage)
        store = self._store_of(stage)
        if not store.has(plan.model):
            self.plans.models.read(plan.model, self._cancel, self._report.reading)
            if plan.streamed_blocks:
                self.plans.measure_copies(plan.model)
        self._stage = stage
        if stage not in ("text_2", "sample_low"):  # in events, two networks for one work are one stage
            self._report.stage(cast(Stage, stage), section)
        return store.on_device(stage, section)

    @property
    def vae(self) -> nn.Module:
        return self.plans.models.component("vae")

    @property
    def cleanup_frequency(self) -> int:
        """The number of pieces after which unused memory is given back; 0 leaves that to the store."""
        return self.plans.request.vae_cleanup

    @property
    def device(self) -> Device:
        return self._store_of("decode").device

    def _store_of(self, stage: str) -> Store:
        return self._stores[0 if (self.plans.plan.of(stage) is self.plans.plan) else -1]

    def _apply_plan(self) -> None:
        for store, plan in zip(self._stores, (self.plans.plan, self.plans.plan.of("decode")), strict=False):
            store.follow(plan)

    def plan_vae(self, task: Task, video: Video) -> VaePlan:
        tiles = Tiles.of(self.plans.plan.vae_tile_px or 0)
        working_bytes = self.plans.plan.stage(VAE_STAGES[task]).working_bytes
        chunk = self.plans.request.vae_chunk if task == "decode" else DEFAULT_CHUNK
        time_mode = "stream" if vae_family(self.vae).has_stream else "windows"
        return VaePlan(task, time_mode, chunk, tiles, working_bytes, "As the job's plan has it.")

    def vae_use(self, height: int, width: int) -> tuple[int, str, int]:
        plan = self.plan_vae("decode", Video(1, height, width))
        # Every larger tile would cover the whole picture, too, and give the same pixels.
        side = -(-max(height, width) // 32) * 32
        dtype = self.plans.compute_dtype("vae") or vae_family(self.vae).dtype
        return min(plan.tiles.side or side, max(side, 64)), PRECISIONS[dtype], plan.chunk

    @contextmanager
    def vae_on_device(self, task: Task, part: VideoPart | None) -> Iterator[nn.Module]:
        before_vae, self._before_vae = self._before_vae, None
        if before_vae:
            before_vae(self.device)
        with (
            self._on_device(VAE_STAGES[task], part.number if part else None) as vae,
            fused_norms(vae, self.plans.request.kernels),
        ):
            yield vae

    def widen(self) -> None:
        """Let the VAE compute in the next wider type, or raise DoesNotFit. Later runs keep that type."""
        self._empty_devices()
        tile = self.plans.plan.vae_tile_px
        precision = self.plans.widen_vae()
        write_atomic(self._folder.overflow, precision.encode())
        self._apply_plan()
        new_tile = self.plans.plan.vae_tile_px
        tiles = f", in tiles of {new_tile} pixels instead of {tile}" if new_tile != tile else ""
        self._warn(f"Values overflowed in the VAE, so it works in {precision} from now on{tiles}.")

    def step_down(self, details: OutOfMemory) -> None:
        self._empty_devices()
        _log.warning("out of memory in stage %s: %s", self._stage, details.text)
        change = self.plans.levels.step_down(self._stage)
        if change is None:
            raise self._out_of_memory(details)
        self._apply_plan()
        self._warn(
            f"The device's memory ran out while {STAGES[self._stage].running}; {change}. "
            f"The stage is tried again ({self.plans.levels.retries} of at most {MAX_STEPS} times)."
        )

    def apply(self, record: CrashRecord) -> None:
        """Use the smallest plan from the start, since a lack of memory has ended engines in this job."""
        if record.change:
            return  # an earlier engine has already made the change, and it is stored for later plans
        change = self.plans.levels.step_to_end(record.stage)
        if change is None:
            raise self._out_of_memory(read_out_of_memory(record.text))
        self._apply_plan()
        replace(record, change=change).write(self._folder.crash_record)
        self._warn(
            f"The device's memory ran out while {STAGES[record.stage].running}, and the driver ended the "
            f"engine; {change}."
        )

    def _out_of_memory(self, details: OutOfMemory) -> OutOfDeviceMemory:
        return OutOfDeviceMemory(details, smaller_plans=self.plans.levels.retries, is_apu=self.plans.is_apu)

    def _empty_devices(self) -> None:
        for store in self._stores:
            store.clear()
            store.flush("exception-cleanup")

    def keep_times(self, step_seconds: Sequence[float], latents: Sequence[int]) -> None:
        records = self._store_of("decode").records
        decodes = [record for record in records if record.stage == "decode" and record.section]
        timed_decodes = decodes[1:] or decodes  # the first may include a search for kernels
        seconds = sum(record.end - record.begin for record in timed_decodes)
        frames = sum(latents[(record.section or 1) - 1] for record in timed_decodes)
        if step_seconds and median(step_seconds):
            self.plans.keep_times(median(step_seconds), frames / seconds if seconds else 0.0)

    def usage(self) -> dict[str, int | None]:
        plan = self.plans.plan
        return {
            "peak_device_bytes": self.store.peak_bytes,
            "cap_bytes": plan.budget.cap_bytes,
            "bytes_streamed": sum(store.bytes_streamed for store in self._stores),
            "retries": self.plans.levels.retries,
            "vae_tile_px": plan.vae_tile_px,
        }

    def save(self) -> None:
        plan = self.plans.plan
        record = {
            **self.usage(),
            "preserved_bytes": plan.preserved_bytes,
            "reserve_bytes": plan.budget.reserve_bytes,
            "plan_peak_bytes": plan.peak_bytes,
            "keep_all_resident": plan.keep_all_resident,
            "stages": [asdict(stage) for stage in self.store.records],
        }
        if plan.helper:
            helper_store = self._stores[-1]
            facts = {"cap_bytes": plan.helper.budget.cap_bytes, "peak_device_bytes": helper_store.peak_bytes}
            record["helper"] = {**facts, "stages": [asdict(stage) for stage in helper_store.records]}
        write_atomic(self._folder.memory, json.dumps(record, indent=1).encode() + b"\n")
