"""Tests of what is told about files and folders with weights before anything is loaded."""

import json
import shutil
from pathlib import Path
from typing import get_args

import pytest
import torch
from diffusers import HunyuanVideoFramepackTransformer3DModel
from safetensors.torch import load_file, save_file

from app.commands.inspect import STYLE_WORDS
from diffusers_helper.models.registry import find_model
from diffusers_helper.untrusted.limited_json import MAX_BYTES
from diffusers_helper.weights.inspection import inspect_checkpoint, weights_at
from diffusers_helper.weights.reading import is_complete, weight_files
from diffusers_helper.weights.recognition import KeyStyle, expected_names
from tests.support.published import part_folder, write_published

INFO = find_model("framepack-f1")


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a hub cache with the toy model. Tests only read it."""
    cache = tmp_path_factory.mktemp("hub")
    write_published(cache, INFO)
    return cache


def save(file: Path, **tensors: torch.Tensor) -> Path:
    save_file({name.replace("__", "."): tensor for name, tensor in tensors.items()}, file)
    return file


def test_a_part_of_the_hubs_cache_tells_its_variant(published: Path) -> None:
    place = part_folder(published, INFO, "transformer")
    facts = inspect_checkpoint(place)
    assert (facts.format, facts.model, facts.variant) == ("safetensors", "FramePack", "F1")
    assert facts.dtypes == {"bfloat16": 1.0}
    index = next(place.glob("*.index.json"))
    assert (
        inspect_checkpoint(index).tensors == facts.tensors == len(json.loads(index.read_text())["weight_map"])
    )
    shard = inspect_checkpoint(sorted(place.glob("*.safetensors"))[0])
    assert 0 < shard.tensors < facts.tensors
    assert shard.hints[0].startswith("The file is shard 1 of ")


def test_shards_and_their_index_are_compared(published: Path, tmp_path: Path) -> None:
    place = tmp_path / "transformer"
    shutil.copytree(part_folder(published, INFO, "transformer"), place)
    index = next(place.glob("*.index.json"))
    first, second, *_ = sorted(place.glob("*.safetensors"))
    tensors = load_file(first)
    name = sorted(tensors)[0]
    save_file({(f"other.{key}" if key == name else key): value for key, value in tensors.items()}, first)
    missing, unexpected = inspect_checkpoint(place).problems
    assert missing == f"{index.name} lists 1 missing tensor, such as {name}; download all files again."
    assert f"1 tensor that it does not list, such as other.{name}" in unexpected
    second.unlink()
    (problem,) = inspect_checkpoint(place).problems
    assert problem == f"{second.name}, which {index.name} lists, is missing; download it again."
    index.write_text("[]")
    assert inspect_checkpoint(place).problems == (
        f"{index.name} is not an index of weights; download it again.",
    )
    index.unlink()
    assert "lacks the index of its" in inspect_checkpoint(place).problems[0]


def test_the_names_are_those_of_the_published_transformer() -> None:
    with torch.device("meta"):
        real = HunyuanVideoFramepackTransformer3DModel(
            has_image_proj=True, image_proj_dim=1152, has_clean_x_embedder=True
        )
    names = real.state_dict().keys()
    assert len(real.transformer_blocks) == 20
    assert len(real.single_transformer_blocks) == 40
    assert expected_names(names) == names


def test_the_command_has_words_for_each_naming_scheme() -> None:
    assert {*get_args(KeyStyle)} == {*STYLE_WORDS}


@pytest.mark.parametrize("number", ["999999999", "x", "9" * 400, "²"])
def test_the_number_of_a_block_is_no_number_of_names(number: str) -> None:
    names = {"clean_x_embedder.proj.weight", f"transformer_blocks.{number}.attn.to_q.weight"}
    assert len(expected_names(names)) < 200


def test_what_systems_keep_beside_files_is_as_if_absent(published: Path, tmp_path: Path) -> None:
    place = tmp_path / "transformer"
    shutil.copytree(part_folder(published, INFO, "transformer"), place)
    expected, files = inspect_checkpoint(place, "transformer"), weight_files(place)
    for file in [*place.iterdir()]:
        file.with_name(f"._{file.name}").write_bytes(b"\0\5\26\7")
    assert inspect_checkpoint(place, "transformer") == expected
    assert (weight_files(place), is_complete(place)) == (files, True)
    alone = tmp_path / "alone"
    alone.mkdir()
    file = save(alone / "a.safetensors", a=torch.zeros(1))
    save(alone / "._a.safetensors", a=torch.zeros(1))
    assert weights_at(alone) == file


def test_endings_may_have_capitals(published: Path, tmp_path: Path) -> None:
    place = tmp_path / "transformer"
    shutil.copytree(part_folder(published, INFO, "transformer"), place)
    expected = inspect_checkpoint(place, "transformer")
    index = next(place.glob("*.index.json"))
    index.write_text(index.read_text().replace(".safetensors", ".SAFETENSORS"))
    for file in place.glob("*.safetensors"):
        file.rename(file.with_suffix(".SAFETENSORS"))
    index = index.rename(index.with_name(index.name.replace(".safetensors.", ".Safetensors.")))
    facts = inspect_checkpoint(place, "transformer")
    assert (facts.tensors, facts.problems) == (expected.tensors, ())
    assert is_complete(place)
    assert len(weight_files(place)) > 1
    index.unlink()
    assert not is_complete(place)
    short = tmp_path / "x.SafeTensors"
    short.write_bytes(b"\1")
    assert inspect_checkpoint(short).problems[0].startswith("x.SafeTensors is incomplete")


@pytest.mark.parametrize(
    ("listed", "is_whole"),
    [
        ({"a": "model.safetensors"}, True),
        ({"a": "model.safetensors", "b": "other.safetensors"}, False),
        ({}, False),
        ({"a": 5}, False),
        ([], False),
        ("[" * 100_000, False),
        ("x" * (MAX_BYTES + 1), False),
    ],
)
def test_an_index_of_unknown_origin_tells_only_names(tmp_path: Path, listed: object, is_whole: bool) -> None:
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_text("{}", encoding="utf-8")
    text = listed if isinstance(listed, str) else json.dumps({"metadata": {"x": "y"}, "weight_map": listed})
    (tmp_path / "model.safetensors.index.json").write_text(text, encoding="utf-8")
    assert is_complete(tmp_path) is is_whole
