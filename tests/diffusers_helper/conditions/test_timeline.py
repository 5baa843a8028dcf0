"""Tests of prompts with times: their parts, the sections of each text, and changes between texts."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from diffusers_helper.conditions.prompts import check_prompt
from diffusers_helper.conditions.timeline import (
    Timeline,
    all_prompts,
    blend_prompts,
    cuts_of,
    lora_weights_of,
    prompts_of,
    seed_of,
    with_prompts,
)  # fmt: skip
from diffusers_helper.errors import InputError
from diffusers_helper.families.framepack import FRAMEPACK
from diffusers_helper.families.packing import MODES, Mode
from diffusers_helper.models.registry import find_model
from diffusers_helper.provenance.lineage import Lineage, Span
from diffusers_helper.request import GenerationRequest

SECTION = 1.2


def request(prompt: str, **settings: object) -> GenerationRequest:
    return GenerationRequest.from_dict({"image": "a.png", "prompt": prompt, **settings})


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ("", "...."),
        ("a", "aaaa"),
        ("a [2.4s: b]", "aabb"),
        ("a [1.2s-2.4s: b]", "abaa"),
        ("a [0s: b][2.4s: c]", "bbcc"),
        ("[2.4s: c] [0s: b]", "bbcc"),
        ("[1.2s: b]", "bbbb"),  # nothing is said of the first section, so it begins with what comes
        ("[0s-1.2s: b] [2.4s: c]", "bbcc"),  # nor of the second one, which goes on
        ("a [0s: b] [1.2s-2.4s: c]", "bcaa"),  # the cue without an end lasted until the next one began
        ("a [1.7s: b]", "abbb"),  # 1.7 s is nearer to 1.2 s than to 2.4 s
        ("a [1.9s: b]", "aabb"),
        ("a [1.2s-1.3s: b]", "abaa"),  # never less than one section
        ("a [9s: b]", "aaaa"),  # after the end
        ("a [0s-4.8s: b] [2.4s: c]", "bbcc"),  # the later one holds
        ("a [ 2.4 s -  4.8s : b ]", "aabb"),
        ("a [3.6s:b] [2.4s:c]", "aacb"),
        ("a [0s:] [2.4s: b]", "..bb"),  # a cue may be silent
    ],
)
def test_the_text_of_each_section(prompt: str, words: str) -> None:
    found = Timeline.of(prompt).prompts_by_section(4, SECTION)
    assert "".join(text or "." for text in found) == words


def test_the_closing_section_of_a_loop_is_no_cut() -> None:
    looped = request("a [2.4s-3.6s: b]", seconds=3.6, loop="on")
    assert prompts_of(4, looped, FRAMEPACK) == (("a", 1.0),)
    assert cuts_of(looped, FRAMEPACK) == (2,)


@pytest.mark.parametrize(
    "prompt",
    ["[a] ball (red) [2.4: x]", "  spaces  stay ", "[s: x] [-1s: y]", "[1s x]", f"[{'9' * 400}s: x]"],
)
def test_other_brackets_are_only_text(prompt: str) -> None:
    assert Timeline.of(prompt) == Timeline(prompt, ())
    assert Timeline.of(prompt).prompts == (prompt,)


def test_a_cue_that_ends_before_it_begins_is_refused() -> None:
    info = find_model("demo")
    with pytest.raises(InputError, match=r"\[3s-2s: b\].*expected an end after its begin") as caught:
        check_prompt(request("a [3s-2s: b]"), info)
    assert caught.value.setting == "prompt"
    assert "[3s: ...]" in caught.value.remedy


def test_each_text_has_the_room_of_a_whole_prompt(tiny_model: object) -> None:
    info = find_model(str(tiny_model), allow_folder=True)
    check_prompt(request(f"{'red ' * 200} [2s: {'red ' * 200}]"), info)
    with pytest.raises(InputError, match="prompt has 257 tokens"):
        check_prompt(request(f"red [2s: {'red ' * 257}]"), info)


def test_a_cue_gives_its_sections_a_seed_and_no_words() -> None:
    prompt = "a [2.4s: b] [1.2s-2.4s: seed 0] [3.6s: seed 8]"
    one = request(prompt, seconds=6, seed=5, mode="forward")
    assert Timeline.of(prompt).prompts_by_section(5, SECTION) == ("a", "a", "b", "b", "b")
    seeds = [seed_of(number, one, FRAMEPACK) for number in range(1, 6)]
    assert seeds == [5, 0, 5, 8, 8]
    turned = replace(one, mode="inverted")
    assert [seed_of(number, turned, FRAMEPACK) for number in range(1, 6)] == seeds[::-1]
    kept = Lineage((Span.of(2, one),))
    further = request("c", seconds=6, seed=9, mode="forward")
    assert seed_of(2, kept.request_for(2, further), FRAMEPACK) == 0
    assert all_prompts(one, Lineage(), FRAMEPACK) == ("a", "b")
    # The seeds stay when the words of sections change, and text and parts are the same both ways.
    edited = with_prompts(prompt, ["a", "c", "b", "b", "b"], SECTION)
    assert Timeline.of(edited).seeds_by_section(5, SECTION) == (None, 0, None, 8, 8)
    assert str(Timeline.of(edited)) == edited
    with pytest.raises(InputError, match="seed"):
        Timeline.of("[1.2s: seed 9999999999999999999]")


def test_a_cue_gives_its_sections_the_weight_of_a_lora() -> None:
    prompt = "a [1.2s: lora film:0.5] [1.2s-2.4s: lora dog-2:-1] [3.6s: lora film:2]"
    one = request(prompt, seconds=4.8, mode="forward", lora="x/film.safetensors:1\ny/dog-2.safetensors:0.3")
    assert Timeline.of(prompt).prompts_by_section(4, SECTION) == ("a",) * 4
    expected = [{}, {"film": 0.5, "dog-2": -1.0}, {"film": 0.5}, {"film": 2.0}]
    assert [lora_weights_of(number, one, FRAMEPACK) for number in (1, 2, 3, 4)] == expected
    turned = replace(one, mode="inverted")
    assert [lora_weights_of(number, turned, FRAMEPACK) for number in (4, 3, 2, 1)] == expected
    assert all_prompts(one, Lineage(), FRAMEPACK) == ("a",)
    assert str(Timeline.of(prompt)) == prompt
    with pytest.raises(InputError, match="weight 11"):
        Timeline.of("[1.2s: lora film:11]")


@pytest.mark.parametrize("lora", ["", "x/film.safetensors:0", "x/films.safetensors:1"])
def test_a_lora_whose_weight_changes_must_be_chosen(lora: str, tiny_model: Path) -> None:
    info = find_model(str(tiny_model), allow_folder=True)
    with pytest.raises(InputError, match="changes the LoRA film; expected one that is chosen"):
        check_prompt(request("a [1.2s: lora film:0.5]", lora=lora), info)


@pytest.mark.parametrize("mode", MODES)
def test_times_are_those_of_the_video_in_both_orders(mode: Mode) -> None:
    one = request("a [2.4s: b]", seconds=4.8, mode=mode)
    order = [prompts_of(number, one, FRAMEPACK) for number in (1, 2, 3, 4)]
    texts = ["a", "a", "b", "b"] if mode == "forward" else ["b", "b", "a", "a"]
    assert order == [((text, 1.0),) for text in texts]


def test_a_change_over_two_sections() -> None:
    texts = ("a", "a", "b", "b", "b", "c")
    shares = [blend_prompts(texts, place, 2) for place in range(6)]
    assert shares[:2] == [(("a", 1.0),)] * 2
    assert shares[2] == (("a", pytest.approx(2 / 3)), ("b", pytest.approx(1 / 3)))
    assert shares[3] == (("a", pytest.approx(1 / 3)), ("b", pytest.approx(2 / 3)))
    assert shares[4] == (("b", 1.0),)
    assert shares[5] == (("b", pytest.approx(2 / 3)), ("c", pytest.approx(1 / 3)))
    assert [blend_prompts(texts, place, 0) for place in range(6)] == [((text, 1.0),) for text in texts]


def test_all_texts_are_encoded_once() -> None:
    one = request("a [1.2s: b] [2.4s: a]", seconds=3.6, negative="n", cfg=2, mode="forward")
    assert all_prompts(one, Lineage(), FRAMEPACK) == ("a", "n", "b")
    assert all_prompts(replace(one, cfg=1), Lineage(), FRAMEPACK) == ("a", "b")
    assert all_prompts(request("a", seconds=1), Lineage(), FRAMEPACK) == ("a",)


@pytest.mark.parametrize("mode", MODES)
def test_kept_sections_of_a_branch_keep_their_words(mode: Mode) -> None:
    before = request("a [1.2s: b]", seconds=3.6, mode=mode)
    after = request("c [2.4s: d]", seconds=4.8, mode=mode)
    branch = Lineage((Span.of(1, before),))
    kept = prompts_of(1, branch.request_for(1, after), FRAMEPACK)
    assert kept == prompts_of(1, before, FRAMEPACK)
    assert branch.request_for(2, after) == after
    rest = [prompts_of(number, after, FRAMEPACK)[0][0] for number in (2, 3, 4)]
    assert rest == (["c", "d", "d"] if mode == "forward" else ["d", "c", "c"])


@pytest.mark.parametrize(
    ("prompt", "words", "expected"),
    [
        ("", "aaaa", "a"),
        ("", "aabb", "a [2.4s: b]"),
        ("a", "abaa", "a [1.2s-2.4s: b]"),
        ("a", "bbbb", "b"),
        ("a [2.4s: b]", "ccbb", "c [2.4s: b]"),
        ("a [2.4s: b]", "aacc", "a [2.4s: c]"),
        ("a [0s: b] [2.4s: c]", "bbdd", "a [0s: b] [2.4s: d]"),  # the rest holds in a longer video
        ("[0s: b] [2.4s: c]", "bbdd", "[0s: b] [2.4s: d]"),
        ("a [9s: b]", "aacc", "a [2.4s: c] [9s: b]"),  # what comes after the end stays
        ("a [1.2s: b]", "a..b", "a [1.2s:] [3.6s: b]"),
        (" a  [1.3s:  b ]", "abbb", " a  [1.3s:  b ]"),  # nothing has changed, so it stays as it was written
    ],
)
def test_words_of_sections_become_a_prompt(prompt: str, words: str, expected: str) -> None:
    texts = [text.replace(".", "") for text in words]
    assert with_prompts(prompt, texts, SECTION) == expected


written = st.text("ab[]12s:-. \n", max_size=12)
said = st.builds("[{}s: {}]".format, st.integers(0, 20), written)
prompts = st.lists(written | said, max_size=4).map(" ".join)


def test_a_cue_without_an_end_lasts_until_a_start_in_the_middle_of_a_section() -> None:
    assert Timeline.of("rest [0s: a] [1.8s: b]").prompts_by_section(3, 1.2) == ("a", "a", "b")


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


def test_times_between_borders_are_reported() -> None:
    timeline = Timeline.of("a [1s-2.4s: b] [2.5s-99s: c]")
    assert [cue.rounded_times(4, SECTION) for cue in timeline.cues] == [
        ((1.0, 1.2),), ((2.5, pytest.approx(2.4)), (99.0, pytest.approx(4.8))),
    ]  # fmt: skip
