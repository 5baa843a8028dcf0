"""Tests of the words that a model knows, and of the weights that have a licence of others."""

from pathlib import Path

from diffusers_helper.models.registry import ModelInfo, find_model


def test_unknown_words_in_order_and_none_twice() -> None:
    info = ModelInfo(name="toy", title="Toy", components={}, vocabulary={"all": ("the", "Red", "turns left")})
    assert info.unknown_words("The RED balloon, turns; balloon upwards. 7!") == ["balloon", "upwards", "7"]
    assert info.unknown_words("") == []
    assert ModelInfo(name="full", title="Full", components={}).unknown_words("anything goes") == []


def test_a_folder_has_no_licence_of_others(tiny_wan: Path) -> None:
    infos = find_model("wan-5b"), find_model(str(tiny_wan), allow_folder=True)
    assert [info.family.name for info in infos] == ["wan", "wan"]
    assert [bool(info.licence) for info in infos] == [True, False]
