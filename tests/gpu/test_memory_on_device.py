"""Tests of memory on the device: the cap, streaming, and what follows when memory runs out."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import HunyuanVideoFramepackTransformer3DModel
from torch import nn

from diffusers_helper.events import Finished, Warned
from diffusers_helper.framepack import work
from diffusers_helper.loading.loaders import load_models
from diffusers_helper.memory.device import Device, open_device
from diffusers_helper.memory.residency import Resident
from diffusers_helper.memory.staging import MIN_PIECE_BYTES, PIECE_BYTES, Staging
from diffusers_helper.memory.streaming import Streamer
from diffusers_helper.memory.weights import Weight
from diffusers_helper.models.registry import find_model
from diffusers_helper.units import GB
from tests.support.deep_model import blocks_of, run_pass
from tests.support.gpu import DEVICES, on_gpu
from tests.support.making import make, tiny_request

MIB = 2**20
# About ten milliseconds of the device's clock, in which a small block could be copied many times.
_LONG_CYCLES = 20_000_000


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    device = open_device(torch.device(request.param))
    device.empty_cache()
    device.reset_peak()
    with torch.inference_mode(), device:
        yield device
    device.limit(None)
    device.empty_cache()


def taken(device: Device, size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8, device=device.torch_device)


def test_the_cap_holds_against_real_allocations(device: Device) -> None:
    cap = device.reserved_bytes() + 256 * MIB
    device.limit(cap)
    first = taken(device, 160 * MIB)
    with pytest.raises(torch.OutOfMemoryError):
        taken(device, 160 * MIB)
    assert device.allocated_bytes() >= 160 * MIB
    assert device.free_bytes() <= cap - device.allocated_bytes()
    assert device.peak_bytes() <= cap
    del first
    again = taken(device, 160 * MIB)  # what was refused left nothing behind
    assert device.peak_bytes() <= cap
    device.limit(None)
    more = taken(device, 160 * MIB)
    assert device.allocated_bytes() >= again.nbytes + more.nbytes


def test_weights_of_any_size_arrive_on_the_device(device: Device) -> None:
    staging = Staging(device.torch_device)
    for size in (5, MIN_PIECE_BYTES, PIECE_BYTES, 2 * PIECE_BYTES + 6, 5 * PIECE_BYTES):
        for dtype in (torch.uint8, torch.bfloat16):
            source = torch.randint(0, 100, (size - size % dtype.itemsize,), dtype=torch.uint8).view(dtype)
            tensor, expected = nn.Parameter(source, requires_grad=False), source.clone()
            Weight.of(tensor).to_device(staging)
            source.zero_()  # what was given may change at once
            assert tensor.data.device == device.torch_device
            assert torch.equal(tensor.data.cpu(), expected)


@pytest.fixture
def network(deep_model: Path) -> HunyuanVideoFramepackTransformer3DModel:
    """Return three double and five single blocks, memory-mapped as a model's are."""
    loaded = HunyuanVideoFramepackTransformer3DModel.from_pretrained(deep_model / "transformer")
    return loaded.eval().requires_grad_(False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("name", DEVICES)
def test_a_streamed_step_has_the_bits_of_a_resident_one(
    name: str, dtype: torch.dtype, network: HunyuanVideoFramepackTransformer3DModel
) -> None:
    staging, blocks = Staging(torch.device(name)), blocks_of(network)
    network.to(dtype)
    with closing(Resident(network, staging)):
        resident = run_pass(network, name, dtype)
    for slots in (1, 2, 3):
        with closing(Resident(network, staging, blocks=blocks, streamed=range(8), num_slots=slots)):
            for _ in range(3):
                assert torch.equal(run_pass(network, name, dtype), resident)
    assert resident.isfinite().all()
    assert not torch.equal(resident, torch.zeros_like(resident))


_COPY = Streamer._copy


class Clock:
    """The times, on the device's clock, at which each block was copied, began and ended."""

    def __init__(self) -> None:
        self.copied: dict[int, torch.cuda.Event] = {}
        self.began: dict[int, torch.cuda.Event] = {}
        self.ended: dict[int, torch.cuda.Event] = {}

    def copy(self, streamer: Streamer, index: int, slot: Any) -> None:
        _COPY(streamer, index, slot)
        self.copied[index] = self._now(streamer._stream)

    def begin(self, index: int) -> None:
        self.began[index] = self._now(torch.cuda.current_stream())
        torch.cuda._sleep(_LONG_CYCLES)

    def end(self, index: int) -> None:
        self.ended[index] = self._now(torch.cuda.current_stream())

    @staticmethod
    def _now(stream: torch.cuda.Stream) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record(stream)
        return event


@on_gpu
def test_each_copy_ends_while_the_block_before_it_computes(
    network: HunyuanVideoFramepackTransformer3DModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a CPU, `test_the_next_block_is_copied_while_one_computes` shows the same of the copying thread."""
    clock, blocks = Clock(), blocks_of(network)
    monkeypatch.setattr(Streamer, "_copy", lambda *given: clock.copy(*given))
    resident = Resident(network, Staging(torch.device("cuda")), blocks=blocks, streamed=range(8))
    expected = run_pass(network, "cuda")
    for index, block in enumerate(blocks):
        block.register_forward_pre_hook(lambda *_, index=index: clock.begin(index))
        block.register_forward_hook(lambda *_, index=index: clock.end(index))
    assert torch.equal(run_pass(network, "cuda"), expected)
    torch.cuda.synchronize()
    resident.close()
    assert set(clock.copied) == set(clock.began) == set(clock.ended) == set(range(8))
    for index in range(8):
        # A block computes only once its own weights are there.
        assert clock.copied[index].elapsed_time(clock.ended[index]) > 0
    for index in range(7):
        assert clock.copied[index + 1].elapsed_time(clock.ended[index]) > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", DEVICES)
def test_a_shortage_is_left_planned_smaller_and_tried_again(
    name: str, deep_model: Path, small_scene: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = load_models(find_model(str(deep_model), allow_folder=True), device=name)
    request = tiny_request(small_scene, steps=1, vram_cap_gb=2.0)
    undisturbed, _ = make(request, models, tmp_path / "undisturbed")
    real, asked = work.denoiser, list[int]()
    device = open_device(torch.device(name))
    before = device.allocated_bytes()  # with what the libraries keep for the process

    def greedy(*given: Any, **named: Any) -> Any:
        asked.append(1)
        if len(asked) == 1:
            kept = torch.ones(MIB, device=name)
            torch.empty(int(3 * GB), dtype=torch.uint8, device=kept.device)
        return real(*given, **named)

    monkeypatch.setattr(work, "denoiser", greedy)
    result, events = make(request, models, tmp_path / "job")
    finished = events[-1]
    assert isinstance(finished, Finished)
    assert (finished.retries, len(asked)) == (1, 2)
    assert finished.bytes_streamed > 0
    assert finished.peak_device_bytes <= finished.cap_bytes == 2 * GB
    (warned,) = [event.message for event in events if isinstance(event, Warned)]
    assert warned.startswith("The device's memory ran out while denoising")
    assert torch.allclose(result.latents, undisturbed.latents, atol=1e-4)
    assert result.frames == undisturbed.frames
    assert device.allocated_bytes() <= before
