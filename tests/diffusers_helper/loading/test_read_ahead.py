"""Tests that files are read ahead as a whole, with their progress, or not at all."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from diffusers_helper.cancel import CancelToken
from diffusers_helper.errors import GenerationCancelled
from diffusers_helper.loading import loaders as module
from diffusers_helper.loading.loaders import read_ahead
from diffusers_helper.machine.sysfs import HostMemory

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


def test_all_bytes_are_read_and_told(files: list[Path], caplog: pytest.LogCaptureFixture) -> None:
    reported: list[tuple[int, int]] = []
    with caplog.at_level(logging.INFO):
        read_ahead(files, CancelToken(), lambda done, total: reported.append((done, total)))
    assert reported == [(done, 7 * MB // 2) for done in (MB, 2 * MB, 3 * MB, 7 * MB // 2)]
    assert "GB/s" in caplog.text


def test_the_kernel_is_asked_for_every_byte_before_it_is_waited_for(
    files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, int, int]] = []
    monkeypatch.setattr(module, "_PIECE_BYTES", MB)
    monkeypatch.setattr(module, "_AHEAD_BYTES", 2 * MB)
    monkeypatch.setattr(
        module.os, "posix_fadvise", lambda _, place, count, advice: calls.append(("ask", place, count))
    )
    monkeypatch.setattr(module.os, "pread", lambda _, count, place: calls.append(("wait", place, count)))
    read_ahead(files[:1], CancelToken())
    assert calls == [
        ("ask", 0, MB), ("ask", MB, MB), ("wait", MB - 1, 1), ("ask", 2 * MB, MB), ("wait", 2 * MB - 1, 1),
        ("wait", 3 * MB - 1, 1),
    ]  # fmt: skip


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
