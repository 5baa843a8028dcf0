"""Tests of the endpoints for a person's own files: the list, the inspection and the new model."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.cli import main
from app.jobs.downloads.adding import add_model
from app.jobs.service import JobService
from app.ui.catalogue import Catalogue
from app.ui.models.endpoints import ModelCalls
from app.ui.models.own_files import weights_folder, weights_names
from diffusers_helper.errors import InputError
from diffusers_helper.models.added import ADDED_MODELS
from diffusers_helper.models.registry import model_names
from tests.support.staged_engine import StagedEngine

FILE, SECOND = "diffusion_models/FramePack F1.safetensors", "diffusion_models/other.safetensors"
pytestmark = pytest.mark.usefixtures("weights")


@pytest.fixture
def calls(tmp_path: Path) -> Iterator[ModelCalls]:
    service = JobService(tmp_path / "outputs", StagedEngine())
    service.start()
    yield ModelCalls(service, Catalogue())
    service.stop()


def test_the_list_tells_what_each_file_can_be(calls: ModelCalls, weights: Path, tmp_path: Path) -> None:
    listed = calls.models_files()
    assert str(tmp_path) not in str(listed)
    assert (listed["folder"], listed["more"]) == ("own", 0)
    found = {one["name"]: one for one in listed["files"]}
    assert list(found) == [FILE, SECOND, "page.safetensors", "vae/small"]
    assert (found["vae/small"]["part"], found["vae/small"]["problem"]) == ("vae", "")
    assert (found[FILE]["part"], found[FILE]["problem"]) == ("transformer", "")
    assert found[FILE]["words"].startswith("FramePack F1, bfloat16, 11 MB")
    assert found["page.safetensors"]["part"] == ""
    assert found["page.safetensors"]["problem"].startswith("page.safetensors is a web page")


def test_shards_hidden_folders_and_the_files_of_a_part_are_not_listed_by_themselves(tmp_path: Path) -> None:
    folder = tmp_path / "many"
    for name in (
        "big/model-00001-of-00002.safetensors", "big/model-00002-of-00002.safetensors",
        "big/model.safetensors.index.json", "vae/config.json", "vae/model.safetensors",
        "vae/other.safetensors", ".cache/x.gguf", "note.txt", "B.gguf", "a.ckpt",
    ):  # fmt: skip
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    assert weights_names(folder) == ["a.ckpt", "B.gguf", "big/model.safetensors.index.json", "vae"]
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
    assert json.loads(json.dumps(calls.models_inspect(FILE))) == by_command | {"path": FILE}


def test_a_model_is_added_by_the_command_that_checks_it(calls: ModelCalls, weights: Path) -> None:
    facts = calls.models_add("mine", {"transformer": FILE}, "demo", "--base=framepack-i2v")
    assert (facts["model"], facts["title"], facts["state"]) == ("mine", "--base=framepack-i2v", "complete")
    added = ADDED_MODELS.find("mine")
    assert added is not None
    assert (added.base, added.parts["transformer"].path) == ("demo", str(weights / FILE))
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


def test_a_second_model_waits_for_the_first_check(monkeypatch: pytest.MonkeyPatch, weights: Path) -> None:
    from app.jobs.downloads import adding

    def run(*_: object, **__: object) -> object:
        with pytest.raises(InputError, match="Another model is being checked"):
            add_model("second", {})
        return type("Done", (), {"returncode": 0})

    monkeypatch.setattr(adding.subprocess, "run", run)
    add_model("first", {"transformer": weights / FILE})
