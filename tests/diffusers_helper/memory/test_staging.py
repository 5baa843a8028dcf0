"""Tests that large weights go to the device piece by piece, through buffers that are not in use."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch

from diffusers_helper.memory import staging as module
from diffusers_helper.memory.staging import Staging

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
        self._is_possible = True
        self.notes: list[tuple[str, int]] = []
        self.made = 0

    def _new_buffer(self) -> tuple[torch.Tensor, Any]:
        self.made += 1
        return torch.zeros(module.PIECE_BYTES, dtype=torch.uint8), Clock(self.notes, self.made)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIECE_BYTES", 96)
    monkeypatch.setattr(module, "LEAST_BYTES", 40)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: device)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8, torch.uint8])
@pytest.mark.parametrize("shape", [(10, 4), (96,), (97,), (5, 7, 11), (2, 192)])
def test_every_byte_arrives(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    source = torch.randint(0, 100, shape).to(dtype)
    target, staging = torch.zeros(shape, dtype=dtype), HostStaging()
    staging.copy(source, target)
    assert torch.equal(target, source)
    assert staging.made == 2
    pieces = -(-source.nbytes // 96)
    turns = [1 + number % 2 for number in range(pieces)]
    assert staging.notes == [note for turn in turns for note in (("wait", turn), ("copied", turn))]
    staging.copy(source + 1, target)
    assert torch.equal(target, source + 1)
    assert staging.made == 2


def test_small_and_strided_tensors_go_as_they_are() -> None:
    staging = HostStaging()
    wide = torch.arange(200).reshape(10, 20)
    for source in (torch.arange(4), wide[:, ::2], wide.T):
        target = torch.zeros(source.shape, dtype=source.dtype)
        staging.copy(source, target)
        assert torch.equal(target, source)
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
        source, target = torch.full((50,), value), torch.zeros(50, dtype=torch.int64)
        staging.copy(source, target)
        assert torch.equal(target, source)
    assert len(tries) == 1
    assert "copied without pinned memory: CUDA error: out of memory" in caplog.text


def test_nothing_is_pinned_for_a_processor(caplog: pytest.LogCaptureFixture) -> None:
    source, target = torch.arange(500), torch.zeros(500, dtype=torch.int64)
    with caplog.at_level(logging.INFO):
        Staging(CPU).copy(source, target)
    assert torch.equal(target, source)
    assert not caplog.text
