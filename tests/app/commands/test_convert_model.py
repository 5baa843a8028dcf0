"""Tests of `models convert`: the copy as a model, its pixels, its removal, and what interrupts it."""

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

from app.cli import main
from app.commands import terminal
from app.jobs.service import JobService
from app.ui.catalogue import Catalogue
from app.ui.models.endpoints import ModelCalls
from diffusers_helper.files import file_sha256
from diffusers_helper.loading import copying
from diffusers_helper.loading.loaders import load_models
from diffusers_helper.loading.reading import anonymous_bytes
from diffusers_helper.machine.sysfs import slow_types
from diffusers_helper.models.added import ADDED_MODELS
from diffusers_helper.models.registry import built_in_names, find_model, model_names
from diffusers_helper.models.sizes import networks
from diffusers_helper.pipeline import Result
from diffusers_helper.weights.reading import read_contents
from diffusers_helper.weights.safetensors_file import origin_in
from tests.app.conftest import Longtake
from tests.support.checkpoints import original_names, to_fp8, to_int8, write_safetensors
from tests.support.making import make, tiny_request
from tests.support.mid_model import Size, write_mid_model
from tests.support.staged_engine import StagedEngine

WEIGHTS = "diffusion_pytorch_model.safetensors"
DEMO = Path(find_model("demo").components["transformer"].location)
Convert = Callable[..., dict[str, Any]]


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use a data folder of the test's own, which the program finds by itself."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setattr(ADDED_MODELS, "file", None)
    return tmp_path / "data" / "longtake"


@pytest.fixture
def convert(longtake: Longtake) -> Convert:
    def converted(model: str | Path, dtype: str, *more: str) -> dict[str, Any]:
        return json.loads(
            longtake("models", "convert", model, "--weight-dtype", dtype, *more, "--json").splitlines()[-1]
        )

    return converted


@pytest.fixture
def latents(small_scene: Path, tmp_path: Path) -> Callable[..., Tensor]:
    numbers = iter(range(99))

    def made(model: str, **settings: Any) -> Tensor:
        models = load_models(find_model(model, allow_folder=True), device="cpu")
        result: Result = make(tiny_request(small_scene, **settings), models, tmp_path / f"{next(numbers)}")[0]
        return result.latents

    return made


def refused(longtake: Longtake, *arguments: str | Path, code: int = 2) -> str:
    return longtake("models", "convert", *arguments, code=code)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["int8", "bf16"])
def test_a_copy_gives_the_pixels_of_the_setting(
    dtype: str, deep_model: Path, convert: Convert, latents: Callable[..., Tensor]
) -> None:
    expected = latents(str(deep_model), weight_dtype=dtype)
    assert not torch.equal(latents(str(deep_model)), expected)
    name = convert(deep_model, dtype)["model"]
    assert name == f"deep-{dtype}"
    # A CPU computes a file of a type that is slow on it in fp32, unless the setting asks for the type.
    is_slow = {"fp16": "float16", "bf16": "bfloat16"}.get(dtype) in slow_types()
    settings: dict[str, Any] = {"weight_dtype": dtype} if is_slow else {}
    assert torch.equal(latents(name, **settings), expected)
    base = networks(find_model(str(deep_model), allow_folder=True), on_cpu=True, weight_dtype=dtype)
    copy = networks(find_model(name), on_cpu=True, **settings)["transformer"]
    assert copy.weights == base["transformer"].weights
    assert copy.dtype_bytes == base["transformer"].dtype_bytes


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["original", "fp8"])
def test_a_file_of_ones_own_gives_the_pixels_of_the_setting(
    kind: str, deep_model: Path, convert: Convert, latents: Callable[..., Tensor], tmp_path: Path
) -> None:
    tensors = load_file(deep_model / "transformer" / WEIGHTS)
    named = original_names(tensors) if kind == "original" else to_fp8(tensors, torch.float8_e5m2)
    file = write_safetensors(tmp_path / "My Model (1).safetensors", named)
    base = ["--base", str(deep_model)]
    assert main(["models", "add", "mine", *base, "--transformer", str(file)]) == 0
    expected = latents("mine", weight_dtype="int8")
    assert convert(file, "int8", *base)["model"] == "my-model-1-int8"
    assert torch.equal(latents("my-model-1-int8"), expected)
    assert main(["models", "remove", "mine"]) == 0
    assert torch.equal(latents("my-model-1-int8"), expected)


def test_a_copy_is_a_model_with_its_origin_and_is_written_once(
    convert: Convert, data: Path, longtake: Longtake
) -> None:
    reported = convert("demo", "int8")
    folder = data / "models" / "demo-int8"
    assert reported == {
        "model": "demo-int8", "state": "converted", "folder": str(folder),
        "bytes": (folder / WEIGHTS).stat().st_size,
    }  # fmt: skip
    assert sorted(file.name for file in folder.iterdir()) == ["config.json", WEIGHTS]
    assert [file.name for file in folder.parent.iterdir()] == ["demo-int8"]
    source = next(DEMO.glob("*.safetensors"))
    contents = read_contents(folder / WEIGHTS)
    assert not contents.problems
    origin = origin_in(contents.metadata)
    assert (origin.model, origin.weight_dtype, origin.compute_dtype) == ("demo", "int8", "bfloat16")
    assert [one[:2] for one in origin.files] == [(source.name, source.stat().st_size)]
    with safe_open(folder / WEIGHTS, "pt") as copy, safe_open(source, "pt") as whole:
        assert {name for name in copy.keys() if not name.endswith("_scale")} == set(whole.keys())  # noqa: SIM118
        found, scale = (
            copy.get_tensor(f"proj_out.weight{end}".replace("proj_out", "transformer_blocks.0.ff.net.2"))
            for end in ("", "_scale")
        )
        exact = whole.get_tensor("transformer_blocks.0.ff.net.2.weight").float()
        assert found.dtype == torch.int8
        assert ((found * scale - exact).abs() <= 0.501 * scale).all()
        assert torch.equal(copy.get_tensor("proj_out.weight"), whole.get_tensor("proj_out.weight"))
    before = (folder / WEIGHTS).stat()
    assert convert("demo", "int8") == reported | {"state": "already converted"}
    assert (folder / WEIGHTS).stat() == before
    assert model_names()[-1] == "demo-int8"
    assert "demo-int8: Longtake demo model, int8, on this machine" in longtake("models", "list", "demo-int8")
    longtake("plan", "--model", "demo-int8")
    longtake("models", "verify", "demo-int8")


def test_a_changed_byte_of_a_copy_is_found(convert: Convert, data: Path, longtake: Longtake) -> None:
    convert("demo", "int8")
    weights, config = data / "models" / "demo-int8" / WEIGHTS, data / "models" / "demo-int8" / "config.json"
    origin = origin_in(read_contents(weights).metadata)
    assert [name for name, _ in origin.sums] == ["config.json", WEIGHTS]
    assert dict(origin.sums)["config.json"] == file_sha256(config)

    def verified(code: int = 1) -> dict[str, Any]:
        lines = longtake("models", "verify", "demo-int8", "--json", code=code).splitlines()
        return next(facts for facts in map(json.loads, lines) if facts["part"] == "transformer")

    reported = verified(0)
    assert (reported["checksums"], reported["problems"]) == (2, [])
    whole, size = weights.read_bytes(), weights.stat().st_size
    metadata = whole.index(b'"version') + 20
    for place in (metadata, size - 1, size // 2):
        changed = bytearray(whole)
        changed[place] ^= 1
        weights.write_bytes(changed)
        reported = verified()
        assert reported["problems"], place
    assert reported["problems"] == [
        f"{WEIGHTS} has a wrong checksum; remove the copy and convert the model again."
    ]
    weights.write_bytes(whole)
    config.write_bytes(config.read_bytes() + b" ")
    assert "config.json has a wrong checksum" in verified()["problems"][0]


def test_a_removal_asks_and_takes_only_the_copy(convert: Convert, tmp_path: Path, longtake: Longtake) -> None:
    folder = tmp_path / "elsewhere"
    convert("demo", "fp8_e4m3fn", "--output", str(folder))
    note = folder / "note.txt"
    note.write_text("mine", encoding="utf-8")
    assert "This would remove" in longtake("models", "remove", "demo-fp8_e4m3fn", code=2)
    assert (folder / WEIGHTS).is_file()
    size = sum(file.stat().st_size for file in folder.iterdir() if file != note)
    assert (
        json.loads(longtake("models", "remove", "demo-fp8_e4m3fn", "--yes", "--json"))["removed_bytes"]
        == size
    )
    assert list(folder.iterdir()) == [note]
    assert "demo-fp8_e4m3fn" not in model_names()
    assert next(DEMO.glob("*.safetensors")).is_file()


def test_the_page_says_what_the_removal_of_a_copy_deletes_and_removes_it(
    convert: Convert, tmp_path: Path
) -> None:
    copy = convert("demo", "fp8_e4m3fn")
    calls = ModelCalls(JobService(tmp_path / "outputs", StagedEngine()), Catalogue())
    shown = next(one for one in calls.models_list()["models"] if one["model"] == copy["model"])
    assert shown["removal"]["num_bytes"] > copy["bytes"]  # the configuration is deleted, too
    assert shown["removal"]["parts"] == ["transformer"]
    assert calls.models_remove(copy["model"])["removed_bytes"] == shown["removal"]["num_bytes"]
    assert not Path(copy["folder"]).exists()
    assert copy["model"] not in model_names()


def test_a_copy_of_older_files_is_not_taken_for_one_of_the_new_ones(
    convert: Convert, tmp_path: Path, longtake: Longtake
) -> None:
    tensors = load_file(DEMO / WEIGHTS)
    file = write_safetensors(tmp_path / "mine.safetensors", tensors)
    arguments = (file, "--weight-dtype", "int8", "--base", "demo")
    convert(file, "int8", "--base", "demo")
    write_safetensors(file, {name: tensor.float() for name, tensor in tensors.items()})
    assert "already a model mine-int8" in refused(longtake, *arguments)
    longtake("models", "remove", "mine-int8", "--yes")
    assert convert(file, "int8", "--base", "demo")["state"] == "converted"
    ADDED_MODELS.remove("mine-int8")  # as if the program had been killed before it wrote the list
    assert convert(file, "int8", "--base", "demo")["state"] == "already converted"
    assert model_names()[-1] == "mine-int8"


def test_what_cannot_be_converted(tmp_path: Path, data: Path, longtake: Longtake) -> None:
    type_ = ("--weight-dtype", "int8")
    file = write_safetensors(tmp_path / "a.safetensors", to_int8(load_file(DEMO / WEIGHTS)))
    assert "stored in GGUF or with scales" in refused(longtake, file, *type_, "--base", "demo")
    assert "already stored in bf16" in refused(longtake, "demo", "--weight-dtype", "bf16")
    assert "is not on this machine" in refused(longtake, "framepack-i2v", *type_)
    assert "expected one of demo" in refused(longtake, tmp_path / "nothing", *type_)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    assert "is not empty" in refused(longtake, "demo", *type_, "--output", tmp_path / "full")
    assert not data.exists()


def test_a_full_disk(
    convert: Convert, data: Path, monkeypatch: pytest.MonkeyPatch, longtake: Longtake
) -> None:
    arguments = ("demo", "--weight-dtype", "int8")
    with monkeypatch.context() as patch:
        patch.setattr(copying.shutil, "disk_usage", lambda _: SimpleNamespace(free=2**20))
        assert "GB are free in" in refused(longtake, *arguments)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for call in ("posix_fallocate", "fsync"):
        with monkeypatch.context() as patch:
            patch.setattr(copying.os, call, full)
            assert "cannot be written (No space left on device)" in refused(longtake, *arguments, code=1)
        assert not list((data / "models").iterdir())
    assert model_names() == built_in_names()
    assert convert("demo", "int8")["state"] == "converted"


def test_an_interruption_leaves_nothing(
    convert: Convert, data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reported: list[tuple[int, int]] = []

    def press(line: str) -> None:
        facts = json.loads(line)
        done, total = facts["done_bytes"], facts["total_bytes"]
        assert (data / "models" / ".demo-int8.part" / WEIGHTS).stat().st_size == total
        reported.append((done, total))
        if done > total / 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(terminal, "say", press)
        patch.setattr(terminal, "_JSON_SECONDS", 0.0)
        with pytest.raises(SystemExit) as exit_code:
            main(["models", "convert", "demo", "--weight-dtype", "int8", "--json"])
    assert exit_code.value.code == 130
    assert "Nothing of the copy was kept" in capsys.readouterr().err
    assert not list((data / "models").iterdir())
    assert len(reported) > 2
    assert model_names() == built_in_names()
    killed = data / "models" / ".demo-int8.part"
    killed.mkdir()
    (killed / "other.safetensors").write_bytes(b"half")
    convert("demo", "int8")
    assert [file.name for file in (data / "models").iterdir()] == ["demo-int8"]
    assert not (data / "models" / "demo-int8" / "other.safetensors").exists()


@pytest.mark.slow
def test_a_conversion_needs_little_memory_of_its_own(tmp_path: Path) -> None:
    folder = write_mid_model(tmp_path / "mid", Size()) / "transformer"
    most, before = 0, anonymous_bytes()

    def watch(done: int, total: int) -> None:
        nonlocal most
        most = max(most, anonymous_bytes() - before)

    copying.copy_weights(
        "transformer", folder, None, tmp_path / "copy", model="mid", weight_dtype="int8", on_bytes=watch
    )
    assert (folder / WEIGHTS).stat().st_size > 100e6
    assert most < 40e6
