"""Tests of whole jobs under caps: the cap holds, the bytes stay the same, nothing stays on the device."""

import gc
import shutil
from contextlib import AbstractContextManager, suppress
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import nn

from diffusers_helper.attention import slices
from diffusers_helper.cancel import CancelToken
from diffusers_helper.errors import GenerationCancelled
from diffusers_helper.events import Event, Finished, Reading, StageStarted, StepDone, Warned
from diffusers_helper.families.packing import DEFAULT_CHUNK, plan_sections
from diffusers_helper.job import plans
from diffusers_helper.job.memory import JobMemory, MemoryPlans
from diffusers_helper.job.setup import OpenJob
from diffusers_helper.loading import reading
from diffusers_helper.loading.loaders import Models
from diffusers_helper.machine.local import Local, speeds, store_kernel
from diffusers_helper.memory.store import StageRecord, Store
from diffusers_helper.output.report import Report
from diffusers_helper.pipeline import Result, generate
from diffusers_helper.planning.budget import DoesNotFit, JobPlan
from diffusers_helper.planning.profiles import Machine
from diffusers_helper.planning.vae import Task, Video
from diffusers_helper.provenance.job_folder import JobFolder
from diffusers_helper.request import GenerationRequest
from diffusers_helper.runner import Runner
from diffusers_helper.units import GB
from diffusers_helper.vae.engine import VideoPart
from tests.support.clips import psnr
from tests.support.jobs import asked_in
from tests.support.making import Frames, load_tiny, make, seconds_for, tiny_request, write_scene
from tests.support.moves import DOCUMENT, SECTION, moves
from tests.support.page_cache import cached_bytes, write_uncached


@pytest.fixture(scope="module")
def resident(deep_models: Models, small_scene: Path, tmp_path_factory: pytest.TempPathFactory) -> Result:
    folder = tmp_path_factory.mktemp("resident") / "job"
    return make(tiny_request(small_scene, seconds=seconds_for(2)), deep_models, folder)[0]


def plan_of(request: GenerationRequest, deep_models: Models, side: int = 64) -> JobPlan:
    return MemoryPlans(request, deep_models, side, side, Local()).plan


def limits(deep_models: Models, small_scene: Path, kind: str) -> dict[str, float]:
    plan = plan_of(tiny_request(small_scene), deep_models)
    cap = plan.smallest_cap_bytes
    if kind == "all stay":
        return {"vram_cap_gb": 4 * cap / GB}
    if kind == "one at a time":
        return {"vram_cap_gb": cap / GB}
    demand = MemoryPlans(tiny_request(small_scene), deep_models, 64, 64, Local()).levels.demands[0]
    fixed = max(stage.model.fixed_bytes for stage in demand.stages)
    return {"vram_cap_gb": cap / GB, "preserved_gb": (cap - fixed) / GB}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["all stay", "one at a time", "streamed"])
def test_under_every_cap_the_bytes_are_the_same(
    kind: str, deep_models: Models, small_scene: Path, tmp_path: Path, resident: Result, stores: list[Store]
) -> None:
    request = tiny_request(small_scene, seconds=seconds_for(2), **limits(deep_models, small_scene, kind))
    plan = plan_of(request, deep_models)
    assert plan.keep_all_resident == (kind == "all stay")
    result, events = make(request, deep_models, tmp_path / "job")
    assert result.video.read_bytes() == resident.video.read_bytes()
    assert result.latents.equal(resident.latents)
    finished = events[-1]
    assert isinstance(finished, Finished)
    assert 0 < finished.peak_device_bytes <= finished.cap_bytes == plan.budget.cap_bytes
    assert (finished.retries, finished.vae_tile_px) == (0, 256)
    # The job has two sections of two steps, and one prompt.
    streamed = 4 * plan.stage("sample").streamed_bytes + plan.stage("text").streamed_bytes
    assert (streamed > 0) == (kind == "streamed")
    assert finished.bytes_streamed == streamed
    expected = "flush worker-start" if kind == "all stay" else DOCUMENT + SECTION + SECTION
    log = [move for move in stores[0].log if not move.startswith("load ") or kind != "all stay"]
    unloaded_at_the_end = 5 if kind == "all stay" else 0
    assert log[: len(log) - unloaded_at_the_end] == moves(expected)


@pytest.mark.parametrize("kind", ["all stay", "streamed"])
def test_a_gpu_that_shares_main_memory_holds_resident_weights_once(
    kind: str, deep_model: Path, deep_models: Models, small_scene: Path, tmp_path: Path, disk_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    folder = disk_path / "model"
    shutil.copytree(deep_model, folder)
    files = {file.parent.name: file for file in folder.glob("*/*.safetensors")}
    for file in files.values():
        write_uncached(file, file.read_bytes())
    monkeypatch.setattr(MemoryPlans, "is_apu", True)
    monkeypatch.setattr(reading, "_REPORT_SECONDS", 0.0)
    decode, kept = JobMemory.vae_on_device, dict[str, int]()

    def look(memory: JobMemory, task: Task, part: VideoPart | None) -> AbstractContextManager[nn.Module]:
        if task == "decode":
            kept.update({name: cached_bytes(file) for name, file in files.items()})
        return decode(memory, task, part)

    monkeypatch.setattr(JobMemory, "vae_on_device", look)
    models = load_tiny(folder)
    request = tiny_request(small_scene, **limits(deep_models, small_scene, kind))
    expected = make(request, deep_models, tmp_path / "as ever")[0].latents
    for number in range(2):
        result, events = make(request, models, tmp_path / f"job {number}")
        dropped = {name for name, num_bytes in kept.items() if num_bytes < files[name].stat().st_size / 10}
        assert dropped == (set(files) if kind == "all stay" else set())
        # What was dropped is read again by the next job.
        sizes = {event.total_bytes for event in events if isinstance(event, Reading)}
        assert (files["transformer"].stat().st_size in sizes) == (kind == "all stay" or not number)
        assert result.latents.equal(expected)


def test_the_first_job_that_streams_measures_copies_within_main_memory(
    deep_models: Models, small_scene: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local, measured = Local({}, tmp_path / "cache"), list[str]()
    monkeypatch.setattr(
        plans, "host_copy_speed", lambda network: measured.append(type(network).__name__) or 12.5e9
    )
    for number, kind in enumerate(("one at a time", "streamed", "streamed")):
        request = tiny_request(small_scene, steps=1, **limits(deep_models, small_scene, kind))
        make(request, deep_models, tmp_path / f"job {number}", local=local)
        assert len(measured) == min(number, 1)
        known = speeds(local.speeds, "cpu").host_copy_bytes_per_second
        assert known == (12.5e9 if number else None)
    make(request, deep_models, tmp_path / "without a folder", local=Local())
    assert len(measured) == 1


def test_a_job_counts_with_the_kernel_that_doctor_saw(
    deep_models: Models, small_scene: Path, tmp_path: Path
) -> None:
    request, local = tiny_request(small_scene), Local(folder=tmp_path)
    believed = MemoryPlans(request, deep_models, 64, 64, local).plan
    store_kernel(local.kernels, "cpu", metadata.version("torch"), "_scaled_dot_product_attention_math")
    seen = MemoryPlans(request, deep_models, 64, 64, local).plan
    assert seen.stage("sample").working_bytes > believed.stage("sample").working_bytes
    own = Local({"LONGTAKE_ATTENTION": "flash"}, tmp_path)
    assert MemoryPlans(request, deep_models, 64, 64, own).plan == believed


def test_a_card_that_torch_does_not_see_is_told(
    deep_models: Models, small_scene: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def notes() -> list[str]:
        return MemoryPlans(tiny_request(small_scene), deep_models, 64, 64, Local()).notes

    usual = notes()
    monkeypatch.setattr(plans, "detect", lambda environ: Machine("rocm", "gfx1100", "RX 7900 XTX", 24 * GB))
    (told,) = (note for note in notes() if note not in usual)
    assert told.startswith("PyTorch does not see the RX 7900 XTX, so the processor computes")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)  # a person has chosen the processor
    assert notes() == usual


def test_what_cannot_fit_is_refused_before_anything_is_loaded(
    deep_model: Path, small_scene: Path, tmp_path: Path
) -> None:
    deep_models = load_tiny(deep_model)
    smallest = plan_of(tiny_request(small_scene), deep_models).smallest_cap_bytes
    with pytest.raises(DoesNotFit) as caught:
        make(tiny_request(small_scene, vram_cap_gb=(smallest - 1) / GB), deep_models, tmp_path / "job")
    assert caught.value.smallest_cap_bytes == smallest
    assert "Set vram_cap_gb to" in str(caught.value)
    assert not deep_models._components
    assert not (tmp_path / "job").exists()


def test_a_runner_keeps_nothing_of_a_job(tiny_model: Path, small_scene: Path, tmp_path: Path) -> None:
    runner, events = Runner(), list[Event]()
    before = {id(one) for one in gc.get_objects() if isinstance(one, OpenJob | Store)}
    gc.disable()  # as if each collection of old objects came much later
    try:
        request = tiny_request(small_scene, model=str(tiny_model), steps=1)
        runner.run(asked_in(tmp_path / "job", request), events.append, CancelToken())
        left = [one for one in gc.get_objects() if isinstance(one, OpenJob | Store) and id(one) not in before]
    finally:
        gc.enable()
    assert isinstance(events[-1], Finished)
    assert left == []


@pytest.mark.slow
def test_auto_takes_smaller_tiles_where_the_cap_demands_it_and_says_so(
    deep_models: Models, tmp_path: Path, stores: list[Store]
) -> None:
    picture = write_scene(tmp_path / "large.png", 128, 128)
    smallest = plan_of(tiny_request(picture, resolution=128), deep_models, side=128).smallest_cap_bytes
    request = tiny_request(picture, resolution=128, steps=1, vram_cap_gb=smallest / GB)
    result, events = make(request, deep_models, tmp_path / "auto")
    finished = events[-1]
    assert isinstance(finished, Finished)
    assert finished.vae_tile_px == 64
    assert finished.peak_device_bytes <= smallest
    warned = [event.message for event in events if isinstance(event, Warned)]
    assert len(warned) == 1
    assert warned[0].startswith("The VAE works in tiles of 64 pixels instead of 256")
    fixed = tiny_request(picture, resolution=128, steps=1, vae_tile=64)
    again, events = make(fixed, deep_models, tmp_path / "fixed")
    assert again.video.read_bytes() == result.video.read_bytes()
    assert not [event for event in events if isinstance(event, Warned)]
    too_large = tiny_request(picture, resolution=128, vae_tile=128, vram_cap_gb=smallest / GB)
    with pytest.raises(DoesNotFit):
        make(too_large, deep_models, tmp_path / "refused")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["all stay", "streamed"])
def test_nothing_is_left_on_the_device_after_a_cancel(
    kind: str, deep_models: Models, small_scene: Path, tmp_path: Path, stores: list[Store]
) -> None:
    cancel = CancelToken()

    def on_event(event: Event) -> None:
        if isinstance(event, StepDone):
            cancel.cancel()

    request = tiny_request(small_scene, **limits(deep_models, small_scene, kind))
    with pytest.raises(GenerationCancelled):
        generate(request, deep_models, folder=tmp_path / "job", on_event=on_event, cancel=cancel)
    assert stores[0].log[-1] == "flush exception-cleanup"


def test_nothing_is_left_on_the_device_after_an_error(
    deep_models: Models,
    small_scene: Path,
    tmp_path: Path,
    stores: list[Store],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("diffusers_helper.vae.engine.decode_pass", broken)
    with pytest.raises(ZeroDivisionError):
        make(tiny_request(small_scene), deep_models, tmp_path / "job")
    assert stores[0].log[-1] == "flush exception-cleanup"


@pytest.mark.parametrize("error", [None, RuntimeError("a fault")])
def test_no_cap_outlasts_a_job(
    error: Exception | None, deep_models: Models, small_scene: Path, tmp_path: Path
) -> None:
    folder, told = JobFolder(tmp_path), list[Event]()
    memory_plans = MemoryPlans(tiny_request(small_scene), deep_models, 64, 64, Local())
    report = Report(folder, plan_sections(1.0), told.append)
    with suppress(RuntimeError), JobMemory(memory_plans, folder, report, CancelToken()):
        assert memory_plans.device.cap_bytes
        if error:
            raise error
    assert memory_plans.device.cap_bytes is None


def test_weights_that_stayed_leave_no_unused_memory_after_the_job(
    deep_models: Models, small_scene: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = tiny_request(small_scene, **limits(deep_models, small_scene, "all stay"))
    memory_plans, folder = MemoryPlans(request, deep_models, 64, 64, Local()), JobFolder(tmp_path)
    held = list[int]()
    monkeypatch.setattr(
        type(memory_plans.device), "empty_cache", lambda self: held.append(self.allocated_bytes())
    )
    report = Report(folder, plan_sections(1.0), list[Event]().append)
    with JobMemory(memory_plans, folder, report, CancelToken()) as memory:
        with memory.store.on_device("vision"):
            pass
        assert memory_plans.device.allocated_bytes()
    assert memory_plans.device.allocated_bytes() == 0
    assert held == [0]


@pytest.mark.parametrize(("ends", "speed"), [([100.0], 0.09), ([100.0, 3.0, 3.0], 3.0)])
def test_the_first_decode_counts_for_the_cards_times_only_where_there_is_no_other(
    ends: list[float], speed: float, deep_models: Models, small_scene: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    memory_plans, times = MemoryPlans(tiny_request(small_scene), deep_models, 64, 64, Local()), list[float]()
    monkeypatch.setattr(
        memory_plans, "keep_times", lambda *seconds_and_speed: times.extend(seconds_and_speed)
    )
    report = Report(JobFolder(tmp_path), plan_sections(1.0), list[Event]().append)
    memory = JobMemory(memory_plans, JobFolder(tmp_path), report, CancelToken())
    memory.store.records += [
        StageRecord("decode", "vae", section, 0.0, end, 0, 0, 0, 0, True)
        for section, end in enumerate(ends, 1)
    ]
    memory.store.records.append(StageRecord("decode", "vae", None, 0.0, 1.0, 0, 0, 0, 0, True))  # a picture's
    memory.keep_times([2.0, 9.0, 2.0], [9, 9, 9])
    assert times == pytest.approx([2.0, speed])


def test_the_speed_of_decoding_is_kept_by_pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    memory_plans, kept = object.__new__(MemoryPlans), list[Any]()
    monkeypatch.setattr(plans, "keep_times", lambda *facts: kept.extend(facts))
    monkeypatch.setattr(plans, "step_key", lambda *facts: facts)
    memory_plans.size = (10, 20)
    memory_plans._profile = cast(Any, SimpleNamespace(machine="a card"))
    memory_plans.models = cast(Any, SimpleNamespace(info="a model"))
    memory_plans._video = cast(Any, SimpleNamespace(work="its work"))
    memory_plans._local = Local()
    memory_plans.keep_times(2.0, 0.5)
    assert kept == [Local().step_times, ("a card", "a model"), "its work", 2.0, 100.0]


@pytest.mark.parametrize(
    ("tile", "size", "expected"),
    [(0, (90, 33), 96), (None, (90, 33), 96), (0, (20, 33), 64), (256, (90, 33), 96), (64, (90, 33), 64)],
)
def test_the_recorded_use_of_the_vae_is_what_gives_the_same_pixels(
    tile: int | None, size: tuple[int, int], expected: int, deep_models: Models
) -> None:
    memory = object.__new__(JobMemory)
    plan = SimpleNamespace(vae_tile_px=tile, stage=lambda name: SimpleNamespace(working_bytes=7))
    calls, types = SimpleNamespace(vae_chunk=5), iter((torch.bfloat16, None))
    memory.plans = cast(Any, SimpleNamespace(
        plan=plan, request=calls, models=deep_models, compute_dtype=lambda name: next(types)
    ))  # fmt: skip
    assert [memory.vae_use(*size) for _ in range(2)] == [(expected, "bf16", 5), (expected, "fp32", 5)]
    assert memory.plan_vae("encode", Video(1, *size)).chunk == DEFAULT_CHUNK


def test_on_rocm_encoders_and_the_vae_compute_attention_in_slices(
    tiny_model: Path, small_scene: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its fused kernels may fail there, also where the transformer's attention works."""
    stages, frames = set[str](), list[np.ndarray]()

    def recorded(*arguments: Any, **named: Any) -> Any:
        stages.add([event.stage for event in events if isinstance(event, StageStarted)][-1])
        return sliced(*arguments, **named)

    sliced = slices.sliced_attention
    monkeypatch.setattr(slices, "sliced_attention", recorded)
    request = tiny_request(small_scene, model=str(tiny_model), steps=1)
    for hip in (None, "7.2"):
        monkeypatch.setattr(torch.version, "hip", hip)
        events: list[Event] = []
        with monkeypatch.context() as patch:
            record = Frames(patch)
            folder = tmp_path / f"hip-{hip}"
            generate(request, load_tiny(tiny_model), folder=folder, on_event=events.append)
        frames.append(record.all())
        assert stages == (set() if hip is None else {"text", "vision", "vae_encode", "decode"})
    assert psnr(*frames).min() > 50.0
