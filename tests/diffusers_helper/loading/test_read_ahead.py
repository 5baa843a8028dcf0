"""Tests that files are read ahead as a whole, with their progress, or not at all."""

import errno
import logging
import os
import random
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from diffusers_helper.cancel import CancelToken
from diffusers_helper.errors import GenerationCancelled
from diffusers_helper.events import Reading, StageStarted
from diffusers_helper.loading import loaders, reading
from diffusers_helper.loading.reading import read_ahead
from diffusers_helper.machine.local import Local
from diffusers_helper.machine.sysfs import HostMemory
from diffusers_helper.units import gb_text
from tests.support.jobs import TIMEOUT
from tests.support.making import load_tiny, make, outline, tiny_request
from tests.support.page_cache import cached_bytes, write_uncached
from tests.support.threads import join_threads

MB = 1024**2


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    made = [tmp_path / "a", tmp_path / "b"]
    for file, size in zip(made, (3 * MB, MB // 2), strict=True):
        file.write_bytes(bytes(size))
    return made


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_REPORT_SECONDS", 0.0)
    monkeypatch.setattr(reading, "_PIECE_BYTES", MB)


def test_all_bytes_are_read_and_told(files: list[Path], caplog: pytest.LogCaptureFixture) -> None:
    reported: list[tuple[int, int]] = []
    with caplog.at_level(logging.INFO):
        read_ahead(files, CancelToken(), lambda done, total: reported.append((done, total)))
    assert reported == [(done, 7 * MB // 2) for done in (MB, 2 * MB, 3 * MB, 7 * MB // 2)]
    assert "GB/s" in caplog.text


def test_what_is_told_as_read_is_in_the_page_cache(disk_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files, told = [disk_path / "a", disk_path / "b"], list[int]()
    for file, size in zip(files, (40 * MB, 9 * MB + 5), strict=True):
        write_uncached(file, random.Random(size).randbytes(size))
    with caplog.at_level(logging.INFO):
        read_ahead(files, CancelToken(), lambda done, total: told.append(done))
    assert told[-1] == 49 * MB + 5
    assert f"read {gb_text(told[-1])} GB" in caplog.text
    assert sum(map(cached_bytes, files)) == pytest.approx(told[-1], rel=0.02)


def test_bytes_that_a_file_no_longer_has_are_not_told_as_read(
    files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "_total_bytes", lambda files: 8 * MB)
    told: list[tuple[int, int]] = []
    read_ahead(files, CancelToken(), lambda done, total: told.append((done, total)))
    assert told[-1] == (7 * MB // 2, 8 * MB)


def test_an_error_of_the_disk_is_raised(files: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    send = os.sendfile

    def broken(out: int, source: int, begin: int, count: int) -> int:
        if begin >= 2 * MB:
            raise OSError(errno.EIO, "Input/output error")
        return send(out, source, begin, count)

    monkeypatch.setattr(reading.os, "sendfile", broken)
    with pytest.raises(OSError, match="Input/output error"):
        read_ahead(files, CancelToken())


def test_what_main_memory_cannot_keep_stays_on_the_disk(
    files: list[Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(reading, "host_memory", lambda: HostMemory(8 * MB, 3 * MB, 0, 0))
    with caplog.at_level(logging.INFO):
        read_ahead(files, CancelToken(), lambda done, total: pytest.fail("it was read"))
    assert "stay on the disk until they are used" in caplog.text


def test_a_cancel_ends_the_reading_with_the_pieces_that_are_being_read(
    files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    cancel, may_go_on, begun = CancelToken(), threading.Event(), list[int]()
    leave = ThreadPoolExecutor.__exit__

    def read(source: int, sink: int, begin: int) -> int:
        begun.append(begin)
        if begin == 0:
            cancel.cancel()
        else:
            assert may_go_on.wait(TIMEOUT)
        return 1

    def leave_pool(pool: ThreadPoolExecutor, *error: Any) -> bool | None:
        may_go_on.set()
        return leave(pool, *error)

    monkeypatch.setattr(reading, "_PIECE_BYTES", 4096)
    monkeypatch.setattr(reading, "_read_piece", read)
    monkeypatch.setattr(ThreadPoolExecutor, "__exit__", leave_pool)
    with pytest.raises(GenerationCancelled):
        read_ahead(files, cancel)
    assert 1 <= len(begun) <= 5  # of 896
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("reader")]


def test_the_transformer_is_read_while_an_encoder_computes(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, has_begun, may_go_on = list[tuple[str, str]](), threading.Event(), threading.Event()

    def pieces_of(files: Sequence[Path]) -> Iterator[int]:
        is_ahead = threading.current_thread().name == "read-ahead"
        read.append(("ahead" if is_ahead else "now", files[0].parent.name))
        yield 1
        if is_ahead:
            has_begun.set()
            assert may_go_on.wait(20)
            yield 1
            pytest.fail("it went on although a stage reads the file itself")

    for module in (loaders, reading):
        monkeypatch.setattr(module, "pieces_of", pieces_of)
    models, cancel = load_tiny(tiny_model), CancelToken()
    models.load(cancel)
    assert not read
    models.read("text_encoder", cancel)
    assert has_begun.wait(20)
    models.read("text_encoder", cancel)
    models.read("vae", cancel)
    models.read("transformer", cancel)
    may_go_on.set()
    models.read("image_encoder", cancel)
    join_threads("read-ahead")
    assert read[0] == ("now", "text_encoder")
    assert sorted(read[1:]) == [
        ("ahead", "transformer"), ("now", "image_encoder"), ("now", "transformer"), ("now", "vae"),
    ]  # fmt: skip


def test_nothing_is_read_ahead_without_room_for_both(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = load_tiny(tiny_model)
    models.load(CancelToken())
    sizes = [file.stat().st_size for file in (tiny_model / "text_encoder").glob("*.safetensors")]
    room = int(1.2 * sum(sizes))  # enough for the encoder, but not for the transformer besides
    monkeypatch.setattr(reading, "host_memory", lambda: HostMemory(2 * room, room, 0, 0))
    reported: list[int] = []
    models.read("text_encoder", CancelToken(), lambda done, total: reported.append(total))
    assert set(reported) == {sum(sizes)}
    assert models._reader is None  # pyright: ignore[reportPrivateUsage]


def test_a_job_tells_of_each_reading_and_reads_only_what_computes(
    tiny_model: Path, small_scene: Path, tmp_path: Path
) -> None:
    local = Local({}, tmp_path / "cache")
    request = tiny_request(small_scene, steps=1)
    first, events = make(request, load_tiny(tiny_model), tmp_path / "first", local=local)
    stages = [event.stage for event in events if isinstance(event, StageStarted)]
    assert stages[:7] == ["load", "text", "load", "vae_encode", "load", "vision", "load"]
    assert stages[7] == "sample"
    second, events = make(request, load_tiny(tiny_model), tmp_path / "second", local=local)
    assert second.latents.equal(first.latents)
    sizes = {
        sum(file.stat().st_size for file in (tiny_model / name).glob("*.safetensors")): name
        for name in ("text_encoder", "text_encoder_2", "image_encoder", "vae", "transformer")
    }
    read = [sizes[event.total_bytes] for event in events if isinstance(event, Reading)]
    assert list(dict.fromkeys(read)) == ["transformer", "vae"], outline(events)


def test_a_stage_alone_reads_no_other_network(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models = load_tiny(tiny_model)
    models.read("vae", CancelToken())
    assert not models.is_loaded
    assert models._reader is None  # pyright: ignore[reportPrivateUsage]
    assert models.info.components.keys() - models._components.keys() >= {"transformer"}  # pyright: ignore[reportPrivateUsage]
