"""Tests of what is missing of a model, and of its download, with a local double of the hub."""

import hashlib
import random
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from app.cli import main
from diffusers_helper.errors import InputError
from diffusers_helper.families.family import SmallDecoder
from diffusers_helper.families.framepack import COMPONENTS
from diffusers_helper.models import downloads
from diffusers_helper.models.downloads import Absence, NotHere, Speed, absence_of, bytes_in
from diffusers_helper.models.fetch import get_model
from diffusers_helper.models.installed import check_own_files
from diffusers_helper.models.registry import ModelInfo, find_model
from diffusers_helper.units import GB
from tests.support.hub import Hub, hub_of, use_hub
from tests.support.jobs import write_picture
from tests.support.published import part_folder, write_published

INFO = find_model("framepack-f1")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


@pytest.fixture
def hub(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    monkeypatch.setattr("huggingface_hub.file_download.time.sleep", lambda seconds: None)
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 4096)
    write_published(tmp_path / "away", INFO)
    with hub_of(tmp_path / "away", INFO, tmp_path / "server") as hub:
        use_hub(monkeypatch, hub)
        yield hub


def test_only_own_files_that_are_missing_are_refused(cache: Path) -> None:
    own = {name: replace(source, revision=None) for name, source in INFO.components.items()}
    check_own_files(INFO)  # they can be downloaded
    with pytest.raises(InputError, match="transformer is not at"):
        check_own_files(replace(INFO, components=own))


def test_what_is_missing_is_named_with_its_size_and_the_free_room(cache: Path) -> None:
    assert absence_of(find_model("demo")) is None
    absence = absence_of(INFO)
    assert tuple(absence.component_bytes) == COMPONENTS
    assert absence.total_bytes == pytest.approx(39.4 * GB, rel=0.01)
    assert absence.folder == cache
    assert absence.free_bytes == pytest.approx(shutil.disk_usage(cache.parent).free, rel=0.1)
    write_published(cache, INFO)
    assert absence_of(INFO) is None
    next(part_folder(cache, INFO, "text_encoder").glob("*.safetensors")).unlink()
    absence = absence_of(INFO)
    rest = bytes_in(part_folder(cache, INFO, "text_encoder"))
    assert 0 < rest < 10**6
    assert absence.component_bytes == {"text_encoder": 2 * 7_505_186_816 - rest}
    assert absence.total_bytes == 2 * 7_505_186_816 - rest


@pytest.mark.parametrize(("free", "remedy"), [(50 * GB, "generate --yes"), (30 * GB, "HF_HOME")])
def test_the_refusal_says_what_helps(free: int, remedy: str) -> None:
    refusal = NotHere(Absence("m", "M", {"vae": 40 * GB}, Path("/hub"), free))
    assert (
        refusal.message
        == f"Model m is not on this machine: 40 GB to download, and {free // GB} GB free in /hub."
    )
    assert remedy in refusal.remedy


def test_the_command_line_downloads_only_if_it_is_told_to(
    cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [
        "generate", "--image", str(write_picture(tmp_path / "a.png")), "--prompt", "a ball", "--model",
        "framepack-f1", "--out", str(tmp_path),
    ]  # fmt: skip
    assert main(["jobs", "add", *command[1:]]) == 2
    assert main(command) == 2
    said, again = capsys.readouterr().err.splitlines()
    assert said == again
    assert said.startswith("Model framepack-f1 is not on this machine: 39.4 GB to download, and ")
    assert "generate --yes" in said
    monkeypatch.setattr(downloads.shutil, "disk_usage", lambda folder: SimpleNamespace(free=GB))
    assert main([*command, "--yes"]) == 2
    assert "1 GB free" in capsys.readouterr().err


def test_a_download_is_told_by_bytes_of_the_whole_model(cache: Path, hub: Hub) -> None:
    reported: list[tuple[int, int]] = []
    get_model(INFO, lambda done, total: reported.append((done, total)))
    total = sum(bytes_in(part_folder(cache, INFO, part)) for part in COMPONENTS)
    assert {whole for _, whole in reported} == {total}
    counts = [done for done, _ in reported]
    assert counts == sorted(counts)
    assert counts[-1] == total
    assert len(set(counts)) > len(COMPONENTS) - 2
    assert absence_of(INFO) is None


def test_the_speed_is_that_of_the_last_seconds() -> None:
    speed = Speed(1000, 0.0)
    assert speed.at(1000, 0.0) == 0.0
    assert speed.at(2000, 10.0) == 100.0
    assert speed.at(2000, 20.0) == 0.0
    assert speed.at(5000, 40.0) == pytest.approx(150.0)


def test_a_file_that_goes_while_a_folder_is_read_is_not_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "whole").write_bytes(b"12345")
    (tmp_path / "part.incomplete").write_bytes(b"12")
    listed = list(tmp_path.iterdir())
    monkeypatch.setattr(Path, "iterdir", lambda folder: iter(listed))
    monkeypatch.setattr(Path, "is_file", lambda file: True)  # as it was a moment ago
    assert bytes_in(tmp_path) == 7
    (tmp_path / "part.incomplete").unlink()
    assert bytes_in(tmp_path) == 5


def with_decoder(hub: Hub, content: bytes) -> ModelInfo:
    """Return the model with a small decoder that the server has, of which nothing is here."""
    place = hub.folder / "somebody/tiny/safetensors/tiny.safetensors"
    place.parent.mkdir(parents=True)
    place.write_bytes(content)
    sum_by_git = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
    decoder = SmallDecoder(
        "safetensors/tiny.safetensors", sum_by_git, len(content), "somebody/tiny", "0" * 40
    )
    return replace(INFO, family=replace(INFO.family, small_decoder=decoder))


@pytest.mark.parametrize("has_mirror", [True, False])
def test_the_decoder_for_previews_comes_with_its_model(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, has_mirror: bool
) -> None:
    content = random.Random(1).randbytes(20_000)
    info = with_decoder(hub, content)
    monkeypatch.setattr(
        "diffusers_helper.models.fetch.build_hf_headers", lambda: {"Authorization": "Bearer secret"}
    )
    if not has_mirror:
        monkeypatch.setattr("diffusers_helper.models.fetch._HUB", hub.address)
        monkeypatch.setattr("diffusers_helper.families.family._GITHUB", hub.address)
    get_model(info, lambda done, total: None)
    assert absence_of(info) is None
    file = info.small_decoder_file
    assert file.read_bytes() == content
    hub.tokens.clear()
    for one in {file.resolve(), file}:  # it comes again although the model is complete
        one.unlink()
    hub.broken[file.name] = 8192
    get_model(info, lambda done, total: None)
    assert file.read_bytes() == content
    assert hub.begins(file.name)[-2:] == [0, 8192]
    assert hub.tokens == {"Bearer secret" if has_mirror else ""}


@pytest.mark.parametrize("content", [None, b"other bytes"])
def test_a_model_is_complete_without_the_decoder_for_previews(hub: Hub, content: bytes | None) -> None:
    info = with_decoder(hub, b"the decoder")
    served = hub.folder / "somebody/tiny/safetensors/tiny.safetensors"
    served.unlink() if content is None else served.write_bytes(content)
    get_model(info, lambda done, total: None)
    assert absence_of(info) is None
    file = info.small_decoder_file
    assert not file.exists()
