"""Tests of prompts with times: their parts, the sections of each text, and changes between texts."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from diffusers_helper.conditions.prompts import check_prompt
from diffusers_helper.conditions.timeline import (
    Timeline,
)  # fmt: skip
from diffusers_helper.errors import InputError
from diffusers_helper.models.registry import find_model
from diffusers_helper.request import GenerationRequest

SECTION = 1.2


def request(prompt: str, **settings: object) -> GenerationRequest:
    return GenerationRequest.from_dict({"image": "a.png", "prompt": prompt, **settings})


def test_each_text_has_the_room_of_a_whole_prompt(tiny_model: object) -> None:
    info = find_model(str(tiny_model), allow_folder=True)
    check_prompt(request(f"{'red ' * 200} [2s: {'red ' * 200}]"), info)
    with pytest.raises(InputError, match="prompt has 257 tokens"):
        check_prompt(request(f"red [2s: {'red ' * 257}]"), info)


@pytest.mark.parametrize("lora", ["", "x/film.safetensors:0", "x/films.safetensors:1"])
def test_a_lora_whose_weight_changes_must_be_chosen(lora: str, tiny_model: Path) -> None:
    info = find_model(str(tiny_model), allow_folder=True)
    with pytest.raises(InputError, match="changes the LoRA film; expected one that is chosen"):
        check_prompt(request("a [1.2s: lora film:0.5]", lora=lora), info)


written = st.text("ab[]12s:-. \n", max_size=12)
said = st.builds("[{}s: {}]".format, st.integers(0, 20), written)
prompts = st.lists(written | said, max_size=4).map(" ".join)


@given(prompts, st.lists(written, min_size=1, max_size=8), st.sampled_from([SECTION, 0.1, 33 / 24, 7.7]))
@example("1 [9s: ]", ["", "", "", "", "", "1", "", ""], SECTION)
def test_words_of_sections_survive_the_prompt(prompt: str, words: list[str], seconds: float) -> None:
    try:
        before = Timeline.of(prompt)
    except InputError:
        before = Timeline.of("")
    after = Timeline.of(str(before.with_prompts(words, seconds)))

    def same(texts: Sequence[str]) -> list[str]:
        return [" ".join(one.translate({91: "(", 93: ")"}).split()) for one in texts]

    assert same(after.prompts_by_section(len(words), seconds)) == same(words)
    assert str(after.with_prompts(after.prompts_by_section(len(words), seconds), seconds)) == str(after)
    assert all(not cue.rounded_times(len(words), seconds) for cue in after.cues if cue not in before.cues)
