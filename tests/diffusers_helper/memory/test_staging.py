"""Tests that large weights go to the device piece by piece, through buffers that are not in use."""

import logging
from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from diffusers_helper.memory import staging as module
from diffusers_helper.memory import weights
from diffusers_helper.memory.staging import PIECE_BYTES as BUFFER_BYTES
from diffusers_helper.memory.staging import Staging
from diffusers_helper.memory.weights import Layout, Weight, row_scales, to_int8

CPU = torch.device("cpu")


class Clock:
    """A stand-in for the events of a GPU, which notes what happens to each of two buffers."""

    def __init__(self, notes: list[tuple[str, int]], number: int) -> None:
        self.notes, self.number = notes, number

    def synchronize(self) -> None:
        self.notes.append(("wait", self.number))

    def record(self, stream: Any) -> None:
        self.notes.append(("copied", self.number))


class HostStaging(Staging):
    """A staging in main memory, as if it were a GPU's."""

    def __init__(self) -> None:
        super().__init__(CPU)
        self._is_available = True
        self.notes: list[tuple[str, int]] = []
        self.made = 0

    def _new_buffer(self) -> tuple[torch.Tensor, Any]:
        self.made += 1
        return torch.zeros(module.PIECE_BYTES, dtype=torch.uint8), Clock(self.notes, self.made)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    for place in (module, weights):
        monkeypatch.setattr(place, "PIECE_BYTES", 96)
    monkeypatch.setattr(module, "MIN_PIECE_BYTES", 40)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: device)


def placed(source: Tensor, staging: Staging, dtype: torch.dtype | None = None) -> Tensor:
    """Return a tensor as it arrives on the device."""
    tensor = nn.Parameter(source, requires_grad=False)
    Weight.of(tensor, dtype).to_device(staging)
    return tensor.data


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8, torch.uint8])
@pytest.mark.parametrize("shape", [(10, 4), (96,), (97,), (5, 3, 8), (48, 8)])
def test_every_byte_arrives(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    source, staging = torch.randint(0, 100, shape).to(dtype), HostStaging()
    for values in (source, source + 1):
        copy = placed(values, staging)
        assert torch.equal(copy, values)
        assert copy.data_ptr() != values.data_ptr()
    assert staging.made == 2
    row = source[0].nbytes
    counts = [min(96 // row, shape[0] - begin) for begin in range(0, shape[0], 96 // row)]
    pieces = 2 * sum(count * row >= 40 for count in counts)
    turns = [1 + number % 2 for number in range(pieces)]
    assert staging.notes == [note for turn in turns for note in (("wait", turn), ("copied", turn))]


@given(
    shapes=st.lists(st.lists(st.integers(1, 40), max_size=3), min_size=1, max_size=6),
    kind=st.sampled_from([torch.float32, torch.bfloat16, torch.int16, torch.bool]),
)
def test_the_pieces_of_a_layout_write_its_weights(shapes: list[list[int]], kind: torch.dtype) -> None:
    tensors = [torch.randint(0, 2 if kind is torch.bool else 99, shape).to(kind) for shape in shapes]
    with patch.object(module, "PIECE_BYTES", 96), patch.object(weights, "PIECE_BYTES", 96):
        layout = Layout.of([Weight.of(tensor) for tensor in tensors], CPU)
        pieces = list(layout.pieces())
    storage, end = torch.zeros(layout.num_bytes, dtype=torch.uint8), 0
    for piece in pieces:
        assert piece.start >= end
        assert piece.end - piece.start <= 96 or len(piece.placements) == 1
        piece_storage = torch.zeros(piece.end - piece.start, dtype=torch.uint8)
        piece.write(piece_storage)
        storage[piece.start : piece.end] = piece_storage
        end = piece.end
    before = [tensor.clone() for tensor in tensors]
    layout.use(storage)
    assert all(map(torch.equal, tensors, before))


def test_weights_are_rounded_or_cast_on_their_way() -> None:
    wide, staging = torch.randn(30, 12), HostStaging()
    for tensor in (wide, wide.to(torch.float16).T):  # the second one as a file of torch may hold it
        assert torch.equal(placed(tensor, staging, torch.bfloat16), tensor.to(torch.bfloat16))
    scales, expected = row_scales(wide), torch.empty(30, 12, dtype=torch.int8)
    to_int8(wide, scales, expected)
    rounded = nn.Parameter(wide.clone(), requires_grad=False)
    rounded.row_scales = scales  # type: ignore[attr-defined]
    Weight.of(rounded, torch.int8).to_device(staging)
    assert torch.equal(rounded.data, expected)
    assert {number for what, number in staging.notes if what == "copied"} == {1, 2}


def test_small_tensors_and_large_rows_go_as_they_are() -> None:
    staging = HostStaging()
    for source in (torch.tensor(2.5), torch.arange(4), torch.zeros(0, 7), torch.arange(200).reshape(2, 100)):
        assert torch.equal(placed(source, staging), source)
    assert not staging.notes


def test_without_pinned_memory_weights_are_copied_all_the_same(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    staging = HostStaging()
    tries: list[int] = []

    def refused() -> Any:
        tries.append(1)
        raise RuntimeError("CUDA error: out of memory")

    monkeypatch.setattr(staging, "_new_buffer", refused)
    for value in (1, 2):
        source = torch.full((50,), value)
        assert torch.equal(placed(source, staging), source)
    assert len(tries) == 1
    assert "copied without pinned memory: CUDA error: out of memory" in caplog.text


def test_nothing_is_pinned_for_a_processor(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        assert torch.equal(placed(torch.arange(500), Staging(CPU)), torch.arange(500))
    assert not caplog.text


def test_the_buffers_are_as_large_as_what_torch_takes_for_them() -> None:
    assert BUFFER_BYTES.bit_count() == 1  # torch rounds pinned memory up to a power of two


def test_the_speed_of_copies_is_measured_with_the_first_bytes_of_the_largest_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stored = torch.arange(3000).to(torch.uint8)
    parts = torch.ones(7, dtype=torch.uint8), stored[100:104], stored[200:210].view(5, 2)
    network = nn.ParameterList([nn.Parameter(part, requires_grad=False) for part in parts])
    times, copied = iter([1.0, 9.0, 20.0, 22.0, 30.0, 34.0]), list[Tensor]()
    monkeypatch.setattr(module.time, "perf_counter", lambda: next(times))
    copy = Tensor.copy_
    monkeypatch.setattr(Tensor, "copy_", lambda *arguments: copied.append(arguments[1]) or copy(*arguments))
    for size, speed in ((3001, None), (2000, 1000.0)):
        monkeypatch.setattr(module, "_SAMPLE_BYTES", size)
        assert module.host_copy_speed(network) == speed
    assert torch.equal(torch.cat(copied), stored[:2000].repeat(3))
