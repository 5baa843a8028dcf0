"""Tests of out-of-memory errors: recognised by their texts, answered by smaller plans, stored, explained."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from syrupy.assertion import SnapshotAssertion

from diffusers_helper import pipeline
from diffusers_helper.cancel import CancelToken
from diffusers_helper.events import Event, Failed, Finished, StageStarted, Warned
from diffusers_helper.framepack import work
from diffusers_helper.loading.loaders import Models
from diffusers_helper.machine.local import Local
from diffusers_helper.machine.sysfs import host_memory
from diffusers_helper.pipeline import Result
from diffusers_helper.planning.out_of_memory import (
    LONGTAKE,
    OutOfDeviceMemory,
    is_out_of_memory,
    read_out_of_memory,
)
from diffusers_helper.planning.profiles import Machine, profile_for
from diffusers_helper.planning.video import plan_video
from diffusers_helper.runner import Runner
from diffusers_helper.vae import engine
from tests.support.answers import text_of
from tests.support.jobs import asked_in
from tests.support.making import make, tiny_request, write_scene

NUMBERS = (
    "out of memory. Tried to allocate {tried}. GPU 0 has a total capacity of {capacity} of which {free} is "
    "free. Of the allocated memory {allocated} is allocated by PyTorch, and {idle} is reserved by PyTorch "
    "but unallocated. If reserved but unallocated memory is large try setting PYTORCH_ALLOC_CONF="
    "expandable_segments:True to avoid fragmentation."
)
HIP = "HIP " + NUMBERS.format(
    tried="8.00 GiB", capacity="107.87 GiB", free="53.28 GiB", allocated="36.65 GiB", idle="166.00 MiB"
)
CUDA = "CUDA " + NUMBERS.format(
    tried="2.00 GiB", capacity="23.98 GiB", free="512.00 MiB", allocated="21.00 GiB", idle="300.00 MiB"
)
PIECES = "HIP " + NUMBERS.format(
    tried="1.50 GiB", capacity="23.98 GiB", free="200.00 MiB", allocated="16.00 GiB", idle="5.00 GiB"
)
DRIVER = "HIP " + NUMBERS.format(
    tried="2.00 GiB", capacity="23.98 GiB", free="2.00 GiB", allocated="17.80 GiB", idle="100.00 MiB"
)
HSA = "HSA exception: MemoryRegion::BlockAllocator::alloc failed."
TEXTS = [
    HIP, CUDA, PIECES, DRIVER, HSA,
    "HIP error: out of memory\nHIP kernel errors might be asynchronously reported",
    "CUDA error: out of memory",
    "hipErrorOutOfMemory: out of memory",
    "Memory critical error by agent node-0 (Agent handle: 0x55) on address 0x7f. Reason: Memory in use.",
    "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    "HSA_STATUS_ERROR_OUT_OF_RESOURCES: The runtime failed to allocate the necessary resources.",
    "HIP out of memory. GPU 0 has a total capacity of 23.98 GiB of which 1.50 GiB is free.",
]  # fmt: skip


OTHERS = [
    torch.OutOfMemoryError("whatever it says"), MemoryError(), ValueError("out of memory"),
    RuntimeError("mat1 and mat2 shapes cannot be multiplied"),
    RuntimeError("MIOpen Error: No suitable algorithm was found"),
]  # fmt: skip


def test_what_is_said_when_memory_ran_out(snapshot: SnapshotAssertion) -> None:
    lines = list[str]()
    for number, error in enumerate([*map(RuntimeError, TEXTS), *OTHERS]):
        lines.append(f"{is_out_of_memory(error)} {text_of(details := read_out_of_memory(str(error)))}")
        texts, shared = (
            OutOfDeviceMemory(details, smaller_plans=number, is_apu=is_apu) for is_apu in (False, True)
        )
        lines += [f"  {details.kind}, {details.outside}: {texts.message}"] * is_out_of_memory(error)
        lines += [f"  {' '.join(texts.remedy.splitlines())}"] * (number < 5)
        if (shared.message, shared.remedy) != (texts.message, texts.remedy):
            lines.append(f"  shared: {shared.message} {' '.join(shared.remedy.splitlines())}")
    assert "\n".join(lines) == snapshot


def test_a_surface_brings_its_own_remedies() -> None:
    node = {step: f"In the node: {step}." for step in LONGTAKE}
    error = OutOfDeviceMemory(read_out_of_memory(HIP), sentences=node)
    assert len(error.steps) == 9
    assert error.steps[1] == "In the node: close: 17.8 GB are held outside this program."
    assert all(step.startswith("In the node: ") for step in error.steps)


# Whole jobs, with a stage that runs out of memory on demand


@pytest.fixture(scope="module")
def undisturbed(deep_models: Models, small_scene: Path, tmp_path_factory: pytest.TempPathFactory) -> Result:
    return make(tiny_request(small_scene), deep_models, tmp_path_factory.mktemp("undisturbed") / "job")[0]


@pytest.fixture
def fail(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, list[str | None]], None]:
    """Let a function raise these texts in turn, and work for None and after the last."""

    def install(name: str, texts: list[str | None]) -> None:
        module = next(candidate for candidate in (pipeline, work, engine) if hasattr(candidate, name))
        real, left = getattr(module, name), iter(texts)

        def double(*arguments: Any, **named: Any) -> Any:
            text = next(left, None)
            if text is not None:
                raise RuntimeError(text)
            return real(*arguments, **named)

        monkeypatch.setattr(module, name, double)

    return install


def messages(events: list[Event]) -> list[str]:
    return [event.message for event in events if isinstance(event, Warned)]


@pytest.mark.slow
def test_sampling_goes_on_with_less_of_the_weights_and_the_same_bytes(
    deep_models: Models,
    small_scene: Path,
    tmp_path: Path,
    undisturbed: Result,
    fail: Callable[[str, list[str | None]], None],
) -> None:
    fail("denoiser", [HSA, CUDA])
    local = Local(folder=tmp_path / "cache")
    result, events = make(tiny_request(small_scene), deep_models, tmp_path / "job", local=local)
    assert result.video.read_bytes() == undisturbed.video.read_bytes()
    finished = events[-1]
    assert isinstance(finished, Finished)
    assert finished.retries == 2
    assert finished.bytes_streamed > 0
    assert [message.partition(";")[0] for message in messages(events)] == [
        "The device's memory ran out while denoising"
    ] * 2
    assert "The stage is tried again (2 of at most 3 times)" in messages(events)[1]
    stages = [event.stage for event in events if isinstance(event, StageStarted)]
    assert stages[-5:] == ["sample", "sample", "sample", "decode", "write"]
    (entry,) = json.loads((tmp_path / "cache" / "smaller_plans.json").read_text()).values()
    assert entry == {"weights": 2, "tile": 0}
    again, events = make(tiny_request(small_scene), deep_models, tmp_path / "again", local=local)
    assert again.video.read_bytes() == undisturbed.video.read_bytes()
    finished = events[-1]
    assert isinstance(finished, Finished)
    assert (finished.retries, messages(events)) == (0, [])
    assert finished.bytes_streamed > 0
    # The page makes the plan that the engine followed.
    info = deep_models.info
    profile = profile_for(Machine("cpu", "", "CPU", host_memory().total), {})
    plan = plan_video(tiny_request(small_scene), info, profile, shape=(64, 64), local=local)
    record = json.loads((tmp_path / "again" / "memory.json").read_text())
    assert record["plan_peak_bytes"] == plan.job.peak_bytes
    assert record["preserved_bytes"] == plan.job.preserved_bytes
    (note,) = [note for note in plan.notes if "Memory ran out" in note]
    assert "of weights stay on the device instead of" in note


@pytest.mark.slow
def test_decoding_goes_on_in_smaller_tiles(
    deep_models: Models, tmp_path: Path, fail: Callable[[str, list[str | None]], None]
) -> None:
    picture = write_scene(tmp_path / "large.png", 128, 128)
    fail("decode_pass", [PIECES])
    request = tiny_request(picture, resolution=128, steps=1)
    _, events = make(request, deep_models, tmp_path / "job")
    finished = events[-1]
    assert isinstance(finished, Finished)
    assert finished.retries == 1
    assert finished.vae_tile_px is not None
    assert finished.vae_tile_px < 256
    assert "while decoding; " in messages(events)[0]
    assert "steps" not in [event.stage for event in events if isinstance(event, StageStarted)][-2:]


@pytest.mark.slow
def test_a_runner_passes_the_advice_on(
    deep_model: Path, small_scene: Path, tmp_path: Path, fail: Callable[[str, list[str | None]], None]
) -> None:
    fail("encode_pass", [HSA] * 9)
    events: list[Event] = []
    request = tiny_request(small_scene, model=str(deep_model))
    Runner().run(asked_in(tmp_path / "job", request), events.append, CancelToken())
    failed = events[-1]
    assert isinstance(failed, Failed)
    assert failed.code == "out_of_memory"
    assert "BlockAllocator::alloc failed" in failed.message
    assert failed.remedy.startswith("1. Raise `preserved_gb`")
    assert failed.remedy.count("\n") >= 6
