"""Tests of which models exist, and of what is known about them before anything is loaded."""

import json
from pathlib import Path

import pytest

from diffusers_helper.errors import InputError
from diffusers_helper.families.framepack import COMPONENTS, FRAMEPACK
from diffusers_helper.models.registry import ModelInfo, find_model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a model folder with every part, all empty."""
    for part in COMPONENTS:
        (tmp_path / "toy" / part).mkdir(parents=True)
    return tmp_path / "toy"


def test_a_folder_tells_its_own_facts(folder: Path) -> None:
    facts = {"title": "Toy", "side": 64, "multiple": 16, "modes": ["forward"], "examples": ["a cat"]}
    facts["shift"] = 9.5
    facts["magnitudes"] = {"forward": [1, 0.9]}
    facts["vocabulary"] = {"subjects": ["cat", "dog"]}
    (folder / "longtake.json").write_text(json.dumps(facts), encoding="utf-8")
    info = find_model(str(folder), allow_folder=True)
    assert (info.title, info.side, info.multiple, info.modes) == ("Toy", 64, 16, ("forward",))
    assert info.examples == ("a cat",)
    assert info.shift == 9.5
    assert info.mag_ratios("forward") == (1, 0.9)
    assert info.mag_ratios("inverted") == FRAMEPACK.mag_ratios["inverted"]
    assert info.vocabulary == {"subjects": ("cat", "dog")}
    assert info.folder == folder
    assert info.components["vae"].location == str(folder / "vae")


def test_a_folder_without_facts_is_taken_for_a_full_model(folder: Path) -> None:
    info = find_model(str(folder), allow_folder=True)
    assert (info.title, info.side, info.multiple, info.shift) == ("toy", 640, 32, None)
    assert info.mag_ratios("forward") == FRAMEPACK.mag_ratios["forward"]
    assert set(info.modes) == {"inverted", "forward"}
    assert info.vocabulary == {}


@pytest.mark.parametrize(
    "facts", ["{", "[]", '{"side": "64"}', '{"modes": ["sideways"]}', '{"modes": []}', '{"shift": "much"}']
)
def test_facts_that_cannot_be_read_are_refused(folder: Path, facts: str) -> None:
    (folder / "longtake.json").write_text(facts, encoding="utf-8")
    with pytest.raises(InputError, match=r"longtake\.json"):
        find_model(str(folder), allow_folder=True)


def test_folders_are_for_those_who_may_name_them(folder: Path) -> None:
    for name in (str(folder), "../../etc", "FRAMEPACK-I2V", ""):
        with pytest.raises(InputError, match="expected one of demo, framepack-i2v, framepack-f1"):
            find_model(name)


def test_a_folder_that_is_not_there_or_not_whole_is_refused(folder: Path) -> None:
    for name in (str(folder / "none"), "~nobody-of-that-name/model", "x" * 4000):
        with pytest.raises(InputError, match="or a folder with the model's parts"):
            find_model(name, allow_folder=True)
    (folder / "vae").rmdir()
    with pytest.raises(InputError, match="lacks vae; expected the folders transformer, vae"):
        find_model(str(folder), allow_folder=True)


def test_unknown_words_in_order_and_none_twice() -> None:
    info = ModelInfo(name="toy", title="Toy", components={}, vocabulary={"all": ("the", "Red", "turns left")})
    assert info.unknown_words("The RED balloon, turns; balloon upwards. 7!") == ["balloon", "upwards", "7"]
    assert info.unknown_words("") == []
    assert ModelInfo(name="full", title="Full", components={}).unknown_words("anything goes") == []
