"""Tests of the command `models`, with a local double of the hub."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from app.commands import terminal
from diffusers_helper.families.framepack import COMPONENTS
from diffusers_helper.models import downloads
from diffusers_helper.models.downloads import absence_of, bytes_in
from diffusers_helper.models.registry import built_in_names, find_model
from tests.app.conftest import Longtake
from tests.support import published
from tests.support.hub import Hub, hub_of, use_hub
from tests.support.jobs import wait_until
from tests.support.layers import ROOT
from tests.support.program import answer

INFO = find_model("framepack-f1")
OTHER = find_model("framepack-i2v")
WEIGHTS = "diffusion_pytorch_model.safetensors"


@pytest.fixture(scope="module")
def away(tmp_path_factory: pytest.TempPathFactory) -> Path:
    cache = tmp_path_factory.mktemp("away")
    published.write_published(cache, INFO)
    return cache


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "home" / "hub"))
    return tmp_path / "home" / "hub"


@pytest.fixture
def hub(cache: Path, away: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with hub_of(away, INFO, tmp_path / "server") as hub:
        use_hub(monkeypatch, hub)
        yield hub


def lines(longtake: Longtake, *arguments: object) -> list[dict[str, Any]]:
    return [json.loads(line) for line in longtake("models", *arguments, "--json").splitlines()]


def files(cache: Path) -> list[str]:
    found = (file for file in cache.rglob("*") if not file.is_dir() and ".locks" not in file.parts)
    return sorted(str(file.relative_to(cache)) for file in found)


def test_a_model_is_listed_got_verified_and_removed(
    hub: Hub, cache: Path, longtake: Longtake, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = {one["model"]: one["state"] for one in lines(longtake, "list")}
    assert states.pop("demo") == "complete"
    assert states == dict.fromkeys(built_in_names()[1:], "not on this machine")
    monkeypatch.setattr(terminal, "_JSON_SECONDS", 0.0)
    *reported, last = lines(longtake, "get", INFO.name)
    assert last == {"model": INFO.name, "state": "complete"}
    assert {one["state"] for one in reported} == {"downloading"}
    assert all(0 <= one["done_bytes"] <= one["total_bytes"] for one in reported)
    total = sum(path.stat().st_size for path in cache.rglob("*") if path.is_file() and path.is_symlink())
    assert reported[-1]["done_bytes"] == reported[-1]["total_bytes"] == total
    assert absence_of(INFO) is None
    # A model that shares some parts with a complete one is not complete by them.
    (sharing,) = lines(longtake, "list", "framepack-i2v")
    assert (sharing["state"], sharing["here_bytes"] > 0) == ("incomplete", True)

    (listed,) = lines(longtake, "list", "framepack-f1")
    assert listed["state"] == "complete"
    assert [one["part"] for one in listed["parts"]] == list(COMPONENTS)
    assert listed["here_bytes"] == sum(one["here_bytes"] for one in listed["parts"])
    assert listed["parts"][1]["shared_with"] == ["framepack-i2v"]
    assert listed["parts"][0]["folder"] == str(published.part_folder(cache, INFO, "transformer"))

    verdicts = lines(longtake, "verify", INFO.name)
    assert [one["part"] for one in verdicts] == list(COMPONENTS)
    assert all(one["checksums"] > 0 and one["problems"] == [] for one in verdicts)

    asked = len(hub.asked)
    assert longtake("models", "get", INFO.name) == "framepack-f1: complete\n"
    assert len(hub.asked) == asked

    (removed,) = lines(longtake, "remove", INFO.name, "--yes")
    assert removed["parts"] == list(COMPONENTS)
    assert removed["removed_bytes"] == listed["here_bytes"]
    assert files(cache) == []
    assert [place.name for place in cache.iterdir()] == [".locks"]


def test_a_flipped_bit_and_a_shorter_file_are_found(hub: Hub, cache: Path, longtake: Longtake) -> None:
    longtake("models", "get", INFO.name)
    file = (published.part_folder(cache, INFO, "vae") / WEIGHTS).resolve()
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    text = longtake("models", "verify", INFO.name, code=1)
    assert f"{WEIGHTS} has a wrong checksum; remove the model and get it again." in text
    assert text.count("correct") == len(COMPONENTS) - 1
    file.write_bytes(data[:-5])
    text = longtake("models", "verify", INFO.name, code=1)
    assert f"{WEIGHTS} is incomplete: it has {len(data) - 5} bytes of {len(data)};" in text


def test_only_what_belongs_to_the_model_is_removed(
    hub: Hub, cache: Path, longtake: Longtake, monkeypatch: pytest.MonkeyPatch
) -> None:
    longtake("models", "get", INFO.name)
    own = published.part_folder(cache, OTHER, "transformer")
    own.mkdir(parents=True)
    (own / ".config.json.part").write_bytes(b"{}")  # its download has begun
    foreign = published.part_folder(cache, INFO, "vae").parent / "transformer" / "config.json"
    foreign.parent.mkdir()
    foreign.write_text("of another program")
    before = files(cache)

    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: False))
    assert "Add --yes" in longtake("models", "remove", INFO.name, code=2)
    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True, readline=lambda: "n\n"))
    longtake("models", "remove", INFO.name, code=130)
    assert files(cache) == before

    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True, readline=lambda: "y\n"))
    code, out, err = answer(longtake.output, "models", "remove", INFO.name)
    assert code == 0
    assert "vae stays because it is used by framepack-i2v." in out
    assert err.endswith("GB of framepack-f1: transformer? [y/N] ")
    gone = set(before) - set(files(cache))
    assert gone
    assert all("FramePack_F1" in name for name in gone)
    assert [name for name in files(cache) if "FramePack_F1" in name] == []

    longtake("models", "remove", OTHER.name, "--yes")
    assert files(cache) == [str(foreign.relative_to(cache))]
    assert "Model framepack-i2v has no files of its own" in longtake(
        "models", "remove", OTHER.name, "--yes", code=2
    )


def test_a_local_model_is_not_removed(tiny_model: Path, longtake: Longtake) -> None:
    assert "only downloaded models can be removed" in longtake("models", "remove", "demo", "--yes", code=2)
    assert longtake("models", "verify", tiny_model).count("headers and sizes correct") == len(COMPONENTS)
    assert "transformer: 0.00" in longtake("models", "list", tiny_model)


def test_no_download_starts_without_room(
    hub: Hub, longtake: Longtake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(downloads.shutil, "disk_usage", lambda folder: SimpleNamespace(free=2**30))
    assert "39.4 GB to download, and 1 GB free" in longtake("models", "get", INFO.name, code=2)
    assert hub.asked == []


@pytest.mark.slow
def test_a_download_that_is_killed_goes_on_from_its_bytes(hub: Hub, cache: Path, away: Path) -> None:
    hub.gate.clear()
    environment = os.environ | {"HF_ENDPOINT": hub.address, "HF_HOME": str(cache.parent)}
    # The hub's library writes 10 MB at a time, which is more than these files have.
    program = (
        "import shutil, sys, types; from huggingface_hub import constants; "
        "constants.DOWNLOAD_CHUNK_SIZE = 16384; "
        "shutil.disk_usage = lambda path: types.SimpleNamespace(free=2**40); "
        f"from app.cli import main; sys.exit(main(['models', 'get', '{INFO.name}']))"
    )
    command = [sys.executable, "-c", program]
    transformer = published.part_folder(cache, INFO, "transformer")
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL)
    try:
        wait_until(lambda: any(file.stat().st_size for file in transformer.glob(".*safetensors.part")))
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    hub.gate.set()
    assert absence_of(INFO) is not None
    assert bytes_in(transformer) >= 16384
    begun = len(hub.asked)
    subprocess.run(command, cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL)
    assert absence_of(INFO) is None
    assert any(begin >= 16384 and "safetensors" in path for path, begin in hub.asked[begun:])
    for part in COMPONENTS:
        place, copy = (published.part_folder(one, INFO, part) for one in (cache, away))
        assert {file.name: file.read_bytes() for file in place.iterdir()} == {
            file.name: file.read_bytes() for file in copy.iterdir() if file.is_file()
        }
