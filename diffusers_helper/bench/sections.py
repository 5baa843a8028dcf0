"""Whole sections, from picture and prompt to video, and the VAE's plans for one section."""

import json
import shutil
import time
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import torch
from PIL import Image
from torch import nn

from diffusers_helper.bench.context import (
    Case,
    Context,
    Figures,
    StandInModels,
    driver_peak,
    peaks,
    profile_in,
    stand_in,
)
from diffusers_helper.bench.steps import under_caps
from diffusers_helper.events import Event, StepDone
from diffusers_helper.families.packing import plan_sections
from diffusers_helper.families.step_caches import STEP_CACHES
from diffusers_helper.job.memory import VAE_STAGES
from diffusers_helper.loading.loaders import Models, load_models
from diffusers_helper.machine.local import Local
from diffusers_helper.memory.device import Device
from diffusers_helper.models.registry import DEFAULT_MODEL, find_model
from diffusers_helper.pipeline import generate
from diffusers_helper.planning.out_of_memory import OutOfMemory
from diffusers_helper.planning.vae import Task, VaePlan, VaeSettings, Video, vae_plans
from diffusers_helper.request import GenerationRequest
from diffusers_helper.vae.borrowed import BorrowedVaeOwner
from diffusers_helper.vae.engine import VaeEngine
from diffusers_helper.vae.families import vae_family
from diffusers_helper.vae.passes import DTYPES

_PROMPT = "the camera pans left"
_SECONDS, _STEPS, _FEW_STEPS = 1.0, 25, 4  # of one section
_SIDE, _CPU_SIDE = 640, 128
_SMALL_SIDE, _SMALL_CPU_SIDE = 320, 64


def job(context: Context) -> Iterator[Case]:
    yield "section", partial(_generate, context, lambda: load_models(find_model(DEFAULT_MODEL)))


def framepack(context: Context) -> Iterator[Case]:
    """Yield sections of FramePack at its full size: alone, under caps, and with each step cache.

    The weights are real if the context names a model. With random ones, a cache whose rule looks at the
    content skips other steps than with real ones.
    """

    @cache
    def models() -> Models:
        if context.model:
            return load_models(find_model(context.model, allow_folder=True))
        return StandInModels(context.folder, context.torch_device)

    make = partial(_generate, context, models)
    yield "section", make
    if context.is_quick:
        return

    def capped(cap: float, preserved: float | None = None) -> Figures:
        return make(steps=_FEW_STEPS, vram_cap_gb=cap, preserved_gb=preserved)

    yield from under_caps(context, capped)
    for name, cache_info in STEP_CACHES.items():
        yield f"with {cache_info.label}", partial(make, step_cache=name)


def _generate(context: Context, make: Callable[[], Models], **settings: Any) -> Figures:
    models = make()
    folder = context.folder / "job"
    steps_done = list[StepDone]()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    picture = folder / "picture.png"
    Image.linear_gradient("L").resize((256, 256)).convert("RGB").save(picture)
    steps = _FEW_STEPS if context.is_quick else _STEPS
    request = GenerationRequest(
        image=str(picture), prompt=_PROMPT, model=context.model or models.info.name,
        mode=models.info.modes[0], seconds=_SECONDS, **{"steps": steps, **settings},
    )  # fmt: skip

    def record_step(event: Event) -> None:
        if isinstance(event, StepDone):
            steps_done.append(event)

    start_time = time.perf_counter()
    with driver_peak(context.device) as driver:
        result = generate(
            request, models, on_event=record_step, folder=folder / "made", local=Local(context.environ)
        )
    seconds = time.perf_counter() - start_time
    record = json.loads((folder / "made" / "memory.json").read_text(encoding="utf-8"))
    length = result.frames / models.info.family.fps
    return {
        "seconds": seconds, "steps": request.steps, "skipped_steps": steps_done[-1].skipped,
        "frames": result.frames,
        "seconds_per_step": (steps_done[-1].time - steps_done[0].time) / (len(steps_done) - 1),
        "video_seconds_per_minute": 60 * length / seconds, "cap_bytes": record["cap_bytes"],
        "retries": record["retries"], "is_finite": bool(result.latents.isfinite().all()), **driver,
        "stages": {stage["stage"]: _stage(stage) for stage in record["stages"]},
    }  # fmt: skip


def _stage(record: dict[str, Any]) -> Figures:
    return {
        "seconds": record["end"] - record["begin"], "resident_bytes": record["resident_bytes"],
        "copied_bytes": record["streamed_bytes"],
        **peaks(record["predicted_bytes"], record["measured_bytes"]),
    }  # fmt: skip


def plans(context: Context) -> Iterator[Case]:
    return _plans(context, _SIDE if context.has_gpu else _CPU_SIDE)


def small_plans(context: Context) -> Iterator[Case]:
    return _plans(context, _SMALL_SIDE if context.has_gpu else _SMALL_CPU_SIDE)


def _plans(context: Context, side: int) -> Iterator[Case]:
    profile = profile_in(context)
    device = context.device
    if context.model or not context.has_gpu:
        vae = load_models(find_model(context.model or DEFAULT_MODEL, allow_folder=True)).component("vae")
    else:
        vae = stand_in("vae", context.folder)
    dtype = DTYPES.get(profile.vae_dtype.value, torch.float32)
    vae = nn.Module.to(vae, dtype).to(device.torch_device)
    device.adopt(vae)
    needs = vae_family(vae).needs(dtype, profile.backend)
    latents = plan_sections(_SECONDS)[0].decode_latents
    tasks: tuple[tuple[Task, Video], ...] = (
        ("encode", Video(1, side, side)), ("decode", Video(latents, side, side)),
    )  # fmt: skip
    for task, video in tasks:
        for plan in vae_plans(needs, video, task, VaeSettings()):
            tiles = f", tiles of {plan.tiles.side}" if plan.tiles.side else ""
            yield f"{task}, {plan.time}{tiles}", partial(_plan, context, vae, video, plan)


def _plan(context: Context, vae: nn.Module, video: Video, plan: VaePlan) -> Figures:
    device = context.device
    family = vae_family(vae)
    engine = VaeEngine(_FixedVaePlan(vae, device, plan))
    if plan.task == "encode":
        pixels = torch.zeros(1, 3, 1, video.height, video.width, dtype=family.dtype)
        work = partial(engine.encode, pixels)
    else:
        sides = video.height // family.spatial_compression, video.width // family.spatial_compression
        latents = torch.randn(1, 16, video.latents, *sides, generator=torch.Generator().manual_seed(0))
        work = partial(engine.decode, latents.to(family.dtype))
    with driver_peak(device) as driver:
        measured = context.time(work, warm_up=int(context.has_gpu), runs=1)
    weights = sum(tensor.nbytes for tensor in vae.parameters())
    return {
        "seconds": measured.median, **peaks(plan.working_bytes + weights, measured.peak_bytes), **driver,
        "stage": VAE_STAGES[plan.task], "working_bytes": plan.working_bytes,
        "is_exact": plan.is_exact, "is_reduced": video.width < _SIDE,
    }  # fmt: skip


class _FixedVaePlan(BorrowedVaeOwner):
    """A guest with one plan, so that a lack of memory is a result and leads to no smaller plan."""

    def __init__(self, vae: nn.Module, device: Device, plan: VaePlan) -> None:
        super().__init__(vae, device)
        self._plan = plan

    def plan_vae(self, task: Task, video: Video) -> VaePlan:
        return self._plan

    def step_down(self, details: OutOfMemory) -> None:
        raise torch.OutOfMemoryError(details.text)
