"""Tests that files are read ahead as a whole, with their progress, or not at all."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from diffusers_helper.cancel import CancelToken
from diffusers_helper.errors import GenerationCancelled
from diffusers_helper.machine.sysfs import HostMemory
from diffusers_helper.models.loading import read_ahead as module
from diffusers_helper.models.loading.read_ahead import read_ahead

MB = 1024**2


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    made = [tmp_path / "a", tmp_path / "b"]
    for file, size in zip(made, (3 * MB, MB // 2), strict=True):
        file.write_bytes(bytes(size))
    return made


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_TELL_SECONDS", 0.0)
    monkeypatch.setattr(module, "_is_in_memory", lambda *_: False)


def test_all_bytes_are_read_and_told(files: list[Path], caplog: pytest.LogCaptureFixture) -> None:
    told: list[tuple[int, int]] = []
    with caplog.at_level(logging.INFO):
        read_ahead(files, CancelToken(), lambda done, total: told.append((done, total)))
    assert told == [(done, 7 * MB // 2) for done in (MB, 2 * MB, 3 * MB, 7 * MB // 2)]
    assert "GB/s" in caplog.text


def test_what_is_in_memory_is_not_read_again(
    files: list[Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[tuple[int, int]] = []

    def is_in_memory(descriptor: int, begin: int, end: int) -> bool:
        asked.append((begin, end))
        return begin == MB

    monkeypatch.setattr(module, "_is_in_memory", is_in_memory)
    monkeypatch.setattr(module, "_PIECE_BYTES", MB)
    monkeypatch.setattr(module, "_BUFFER_BYTES", MB * 3 // 4)
    told: list[int] = []
    with caplog.at_level(logging.INFO):
        read_ahead(files, CancelToken(), lambda done, total: told.append(done * 4 // MB))
    assert told == [3, 4, 8, 11, 12, 14]
    assert asked == [(0, MB), (MB, 2 * MB), (2 * MB, 3 * MB), (0, MB // 2)]
    assert "read 0.0024 GB" in caplog.text
    assert "0.001 GB were in memory" in caplog.text


def test_the_kernel_is_asked_without_waiting(files: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    calls: list[tuple[int, int]] = []

    def preadv(descriptor: int, buffers: list[bytearray], offset: int, flags: int) -> int:
        calls.append((offset, flags))
        if offset >= 2 * MB:
            raise BlockingIOError
        return 1

    monkeypatch.setattr(module.os, "preadv", preadv)
    assert module._is_in_memory(0, 0, 2 * MB)
    assert not module._is_in_memory(0, MB, 3 * MB)
    assert {flags for _, flags in calls} == {module.os.RWF_NOWAIT}
    assert len(calls) == 8 + 4 + 1


def test_what_main_memory_cannot_keep_stays_on_the_disk(
    files: list[Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "host_memory", lambda: HostMemory(8 * MB, 3 * MB, 0, 0))
    with caplog.at_level(logging.INFO):
        read_ahead(files, CancelToken(), lambda done, total: pytest.fail("it was read"))
    assert "stay on the disk until they are used" in caplog.text


def test_a_cancel_ends_the_reading(files: list[Path]) -> None:
    cancel = CancelToken()
    with pytest.raises(GenerationCancelled):
        read_ahead(files, cancel, lambda done, total: cancel.cancel())
