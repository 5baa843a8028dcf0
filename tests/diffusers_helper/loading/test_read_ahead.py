"""Tests that files are read ahead as a whole, with their progress, or not at all."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from diffusers_helper.cancel import CancelToken
from diffusers_helper.errors import GenerationCancelled
from diffusers_helper.events import Reading, StageStarted
from diffusers_helper.loading import loaders as module
from diffusers_helper.loading.loaders import read_ahead
from diffusers_helper.machine.local import Local
from diffusers_helper.machine.sysfs import HostMemory
from tests.support.making import load_tiny, make, outline, tiny_request
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


def test_the_transformer_is_read_while_an_encoder_computes(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, has_begun, may_go_on = list[tuple[str, str]](), threading.Event(), threading.Event()

    def steps(file: Path) -> Iterator[int]:
        is_ahead = threading.current_thread().name == "read-ahead"
        read.append(("ahead" if is_ahead else "now", file.parent.name))
        yield 1
        if is_ahead:
            has_begun.set()
            assert may_go_on.wait(20)
            yield 1
            pytest.fail("it went on although a stage reads the file itself")

    monkeypatch.setattr(module, "_steps", steps)
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
    monkeypatch.setattr(module, "host_memory", lambda: HostMemory(2 * room, room, 0, 0))
    monkeypatch.setattr(threading.Thread, "start", lambda _: pytest.fail("it is read ahead"))
    reported: list[int] = []
    models.read("text_encoder", CancelToken(), lambda done, total: reported.append(total))
    assert set(reported) == {sum(sizes)}


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
    monkeypatch.setattr(threading.Thread, "start", lambda _: pytest.fail("it is read ahead"))
    models = load_tiny(tiny_model)
    models.read("vae", CancelToken())
    assert not models.is_loaded
    assert models.info.parts.keys() - models._parts.keys() >= {"transformer"}  # pyright: ignore[reportPrivateUsage]
