"""Tests of the words that a model knows."""

from diffusers_helper.models.registry import ModelInfo


def test_unknown_words_in_order_and_none_twice() -> None:
    info = ModelInfo(name="toy", title="Toy", components={}, vocabulary={"all": ("the", "Red", "turns left")})
    assert info.unknown_words("The RED balloon, turns; balloon upwards. 7!") == ["balloon", "upwards", "7"]
    assert info.unknown_words("") == []
    assert ModelInfo(name="full", title="Full", components={}).unknown_words("anything goes") == []
