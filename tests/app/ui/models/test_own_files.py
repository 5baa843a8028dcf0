"""Tests of the endpoints for a user's own files: the list, the inspection and the new model."""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from app.cli import main
from app.jobs.downloads import process
from app.jobs.downloads.process import Adding
from app.jobs.service import JobService
from app.ui.catalogue import Catalogue
from app.ui.models.endpoints import ModelCalls
from app.ui.pictures import Upload
from diffusers_helper.errors import InputError, LongtakeError
from diffusers_helper.models.added import ADDED_MODELS
from diffusers_helper.models.registry import find_model, model_names
from diffusers_helper.weights.folder import weights_folder, weights_names
from tests.support.loras import write_lora
from tests.support.staged_engine import StagedEngine
from tests.support.tiny_model import tiny_transformer
from tests.support.whole_answers import whole

FILE, SECOND = "diffusion_models/FramePack F1.safetensors", "diffusion_models/other.safetensors"
DEMO = find_model("demo")
pytestmark = pytest.mark.usefixtures("weights")


@pytest.fixture
def calls(tmp_path: Path) -> Iterator[ModelCalls]:
    service = JobService(tmp_path / "outputs", StagedEngine())
    service.start()
    yield ModelCalls(service, Catalogue())
    service.stop()


def test_the_list_tells_what_each_file_can_be(
    calls: ModelCalls, weights: Path, tmp_path: Path, snapshot: Any
) -> None:
    tensors = {name: tensor.clone() for name, tensor in load_file(weights / FILE).items()}
    mark = torch.tensor([*b'{"format": "nvfp4"}'], dtype=torch.uint8)
    save_file(tensors | {"proj_out.comfy_quant": mark}, weights / "a4.safetensors")
    save_file({"x": torch.zeros(2)}, weights / "unknown.safetensors")
    write_lora(weights / "lora.safetensors", tiny_transformer())
    shutil.copytree(DEMO.components["vae"].location, weights / "mine")
    (weights / "mine" / "tokenizer").mkdir()
    shard = {"decoder.conv_in.conv.weight": torch.zeros(2), "post_quant_conv.weight": torch.zeros(2)}
    (weights / "big").mkdir()
    save_file(shard, weights / "big" / "model-00001-of-00001.safetensors")
    index = {"weight_map": dict.fromkeys(shard, "model-00001-of-00001.safetensors")}
    (weights / "big" / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    answers = [calls.models_files(), calls.models_inspect("mine")]
    assert str(tmp_path) not in str(answers)
    assert whole(answers) == snapshot


def test_a_file_is_added_by_upload_unless_it_is_no_weights(
    calls: ModelCalls, weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path / "uploads"))
    upload = tmp_path / "uploads" / "new.safetensors"
    upload.parent.mkdir()
    shutil.copy(weights / FILE, upload)
    assert calls.models_file_add(Upload(path=str(upload)), "../new.safetensors") == "new.safetensors"
    assert (weights / "new.safetensors").read_bytes() == upload.read_bytes()
    for name, content in (("new.ckpt", b""), ("page.gguf", b"<html>"), ("new.safetensors", b"<html>")):
        upload.write_bytes(content)
        with pytest.raises(InputError):
            calls.models_file_add(Upload(path=str(upload)), name)
    assert not (weights / "page.gguf").exists()


def test_shards_hidden_folders_and_the_files_of_a_part_are_not_listed_by_themselves(tmp_path: Path) -> None:
    folder = tmp_path / "many"
    for name in (
        "big/model-00001-of-00002.safetensors", "big/model-00002-of-00002.safetensors",
        "big/model.safetensors.index.json", "vae/config.json", "vae/model.safetensors",
        "vae/other.safetensors", "two/config.json", "two/a.safetensors", "two/b.safetensors",
        ".cache/x.gguf", "note.txt", "B.gguf", "a.ckpt", "._a.ckpt", "vae/._model.safetensors",
        "__MACOSX/a.ckpt", "x/C.GGUF", "X/d.SafeTensors", "caps/config.json", "caps/MODEL.SAFETENSORS",
    ):  # fmt: skip
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    (folder / "big" / "again").symlink_to(folder)
    os.mkfifo(folder / "pipe.gguf")
    assert weights_names(folder) == [
        "a.ckpt", "B.gguf", "big/model.safetensors.index.json", "caps", "two/a.safetensors",
        "two/b.safetensors", "vae", "x/C.GGUF", "X/d.SafeTensors",
    ]  # fmt: skip
    assert weights_names(tmp_path / "missing") == []


def test_the_folder_is_named_by_the_environment(tmp_path: Path) -> None:
    assert weights_folder({"LONGTAKE_WEIGHTS": str(tmp_path)}) == tmp_path
    assert weights_folder({}) == Path(os.getcwd(), "weights")


@pytest.mark.parametrize("name", ["../secret.safetensors", "/etc/passwd", "", ".", "diffusion_models"])
def test_nothing_outside_of_the_list_can_be_named(calls: ModelCalls, weights: Path, name: str) -> None:
    (weights.parent / "secret.safetensors").write_bytes(b"no")
    with pytest.raises(InputError, match="is not in the folder for weights"):
        calls.models_inspect(name)
    with pytest.raises(InputError, match="is not in the folder for weights"):
        calls.models_add("mine", {"transformer": name})
    assert "mine" not in model_names()


def test_the_inspection_is_that_of_the_command(
    calls: ModelCalls, weights: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(weights / FILE), "--json"]) == 0
    by_command = json.loads(capsys.readouterr().out)
    del by_command["path"]
    assert json.loads(json.dumps(calls.models_inspect(FILE))) == by_command | {"file": FILE}


def test_a_model_is_added_by_the_command_that_checks_it(calls: ModelCalls, weights: Path) -> None:
    facts = calls.models_add("mine", {"transformer": FILE, "vae": "vae/small"}, "demo")
    assert (facts["model"], facts["title"], facts["state"]) == ("mine", "mine", "complete")
    added = ADDED_MODELS.find("mine")
    assert added.base == "demo"
    assert {name: part.path for name, part in added.parts.items()} == {
        "transformer": str(weights / FILE), "vae": str(weights / "vae/small"),
    }  # fmt: skip
    with pytest.raises(InputError, match="There is already a model mine"):
        calls.models_add("mine", {"transformer": SECOND}, "demo")


def test_a_refusal_is_that_of_the_command_without_paths(calls: ModelCalls, weights: Path) -> None:
    with pytest.raises(InputError) as refused:
        calls.models_add("mine", {"transformer": "page.safetensors"}, "demo")
    assert str(refused.value).startswith("The transformer cannot be used: page.safetensors is a web page")
    with pytest.raises(InputError, match="name is '--base=demo'; expected a new name") as refused:
        calls.models_add("--base=demo", {"transformer": FILE}, "demo")
    assert str(weights) not in str(refused.value)
    with pytest.raises(InputError, match="parts is 'tokenizer'; expected some of transformer, vae"):
        calls.models_add("mine", {"tokenizer": FILE})
    with pytest.raises(InputError, match="parts is empty"):
        calls.models_add("mine", {})
    with pytest.raises(InputError, match="nothere"):
        calls.models_add("mine", {"transformer": FILE}, "nothere")
    assert model_names()[-1] != "mine"


def test_a_second_model_is_refused_during_the_first_check(
    monkeypatch: pytest.MonkeyPatch, weights: Path
) -> None:
    adding = Adding()

    def run(*_: object, **__: object) -> object:
        with pytest.raises(InputError, match="Another model is being checked"):
            adding.add("second", {}, "")
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(process, "subprocess", SimpleNamespace(run=run, DEVNULL=-3, TimeoutExpired=OSError))
    adding.add("first", {"transformer": weights / FILE}, "")


def test_a_failed_check_is_told_without_paths(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "my files" / "a b.gguf"
    reported = SimpleNamespace(returncode=-9, stderr=f"warning\n{file} is bad")
    double = SimpleNamespace(run=lambda *_, **__: reported, DEVNULL=-3, TimeoutExpired=OSError)
    monkeypatch.setattr(process, "subprocess", double)
    with pytest.raises(LongtakeError, match=r"has died \(a b\.gguf is bad\)"):
        Adding().add("mine", {"transformer": file}, "")
    reported.returncode = 1
    with pytest.raises(InputError, match=r"^a b\.gguf is bad$"):
        Adding().add("mine", {"transformer": file}, "")
