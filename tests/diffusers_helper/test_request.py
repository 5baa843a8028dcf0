"""Tests of GenerationRequest: defaults, JSON both ways, and one clear sentence for everything it refuses."""

import json
import math
from dataclasses import asdict, fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diffusers_helper.errors import InputError
from diffusers_helper.request import (
    SETTINGS,
    GenerationRequest,
)
from diffusers_helper.setting import MAX_PROMPT_CHARACTERS, SettingInfo

# Cross-checks between settings have tests of their own.
ALONE = {name: setting for name, setting in SETTINGS.items() if not setting.parse_lines}
for crossed in ("mode", "loop", "extend", "one_frame", "video", "end_image", "sound"):
    del ALONE[crossed]
text = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=60)


def values_of(setting: SettingInfo) -> st.SearchStrategy[object]:
    if setting.choices:
        return st.sampled_from([*setting.choices])
    low, high, multiple = int(setting.low), int(setting.high), setting.multiple
    whole = st.integers(-(-low // multiple), high // multiple).map(lambda count: multiple * count)
    kinds = {str: text, int: whole, float: st.floats(setting.low, setting.high)}
    return st.none() | kinds[setting.kind] if setting.is_optional else kinds[setting.kind]


def test_defaults_are_framepacks() -> None:
    assert asdict(GenerationRequest(image="a.png")) == {
        "one_frame": 0,
        "image": "a.png", "prompt": "", "negative": "", "seconds": 5.0, "seed": 31337, "steps": 25,
        "shift": 0.0, "mode": "inverted", "resolution": None, "guidance": 10.0, "cfg": 1.0,
        "cfg_rescale": 0.0, "step_cache": "off", "crf": 16,
        "sampler": "unipc", "model": "demo", "preserved_gb": None, "vram_cap_gb": None,
        "weight_dtype": "default", "vae_tile": None, "vae_precision": "auto", "vae_chunk": 3,
        "vae_threshold": 1.0, "vae_cleanup": 0, "crop": 0.5, "attention": "auto", "lora": "",
        "prompt_blend": 0, "end_image": "", "end_crop": 0.5, "end_strength": 1.0,
        "vision_change": "linear",
        "loop": "off", "video": "", "extend": "after", "pictures": "", "shape": "1:1",
        "picture_shape": "own", "zoom": 1.0, "crop_y": None, "clip_frames": 0, "carried_frames": 1,
        "hold_colours": "off", "decoder": "own", "then": "", "finish": "", "join": "", "sound": "",
        "kernels": "auto",
    }  # fmt: skip


@given(st.fixed_dictionaries({name: values_of(setting) for name, setting in ALONE.items()}))
def test_json_gives_the_same_request_back(values: dict[str, Any]) -> None:
    values["prompt"] = values["prompt"].strip() or "a"
    request = GenerationRequest.from_dict(values)
    written = request.to_json()
    assert GenerationRequest.from_dict(json.loads(written)) == request
    written.encode("utf-8")


def test_a_request_that_version_0_1_has_written_means_what_it_meant() -> None:
    written = asdict(GenerationRequest(image="a.png", seed=5, vae_tile=128))
    for name in ("vae_precision", "vae_chunk", "vae_threshold", "vae_cleanup"):
        del written[name]
    assert GenerationRequest.from_dict(written) == GenerationRequest(image="a.png", seed=5, vae_tile=128)


def test_whole_numbers_may_come_as_floats_and_come_out_whole() -> None:
    request = GenerationRequest(image="a.png", seed=7.0, steps=12.0, crf=20.0, resolution=128.0, seconds=3)
    assert [type(value) for value in (request.seed, request.steps, request.crf, request.resolution)] == [
        int
    ] * 4
    assert type(request.seconds) is float


NUMBERS = {name: setting for name, setting in SETTINGS.items() if setting.is_number}


@pytest.mark.parametrize(("name", "bounds"), NUMBERS.items())
def test_each_number_has_its_range(name: str, bounds: SettingInfo) -> None:
    for value in (bounds.low, bounds.high):
        assert getattr(GenerationRequest(image="a.png", **{name: value}), name) == value
    bad: list[object] = [bounds.low - 1, bounds.high + 1, math.nan, math.inf, -math.inf, 10**400]
    bad += ["5", True, [5], {}]
    for value in bad:
        with pytest.raises(InputError) as caught:
            GenerationRequest(image="a.png", **{name: value})
        assert str(caught.value).startswith(f"{name} is ")
        assert (caught.value.setting, caught.value.expected) == (name, bounds.expected)
        assert caught.value.remedy == f"Set `{name}` to a value in that range."


@pytest.mark.parametrize(
    "name", sorted(set(NUMBERS) - {"preserved_gb", "vram_cap_gb", "vae_tile", "resolution", "crop_y"})
)
def test_only_settings_with_a_default_of_their_own_may_be_none(name: str) -> None:
    with pytest.raises(InputError, match=f"{name} is None; expected a"):
        GenerationRequest(image="a.png", **{name: None})


@pytest.mark.parametrize("name", ["seed", "steps", "crf", "resolution", "vae_tile"])
def test_fractions_are_refused_where_whole_numbers_belong(name: str) -> None:
    with pytest.raises(InputError, match=f"{name} is 64.5; expected a whole number"):
        GenerationRequest(image="a.png", **{name: 64.5})


def test_tiles_whose_overlap_is_no_whole_number_of_latents_are_refused() -> None:
    with pytest.raises(InputError, match=r"vae_tile is 100; expected a whole .* a multiple of 32"):
        GenerationRequest(image="a.png", vae_tile=100)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("mode", "inverted or forward"), ("sampler", "unipc or euler"),
        ("attention", "auto or native or sliced or flash or efficient or math or triton or aiter or sage"),
        ("kernels", "auto or plain or fused or compiled or fast8"),
        ("vae_precision", "auto or fp32 or fp16 or bf16"),
        ("weight_dtype", "auto or default or bf16 or fp16 or fp8_e4m3fn or fp8_e5m2 or int8"),
    ],
)  # fmt: skip
def test_choices_are_named(name: str, sentence: str) -> None:
    for value in ("", "INVERTED", None, 3, ["unipc"]):
        with pytest.raises(InputError, match=f"{name} is .*; expected {sentence}"):
            GenerationRequest(image="a.png", **{name: value})


@pytest.mark.parametrize("image", ["", "   ", "\n"])
def test_a_video_needs_a_picture_or_words(image: str) -> None:
    with pytest.raises(InputError, match="There is no picture and no prompt"):
        GenerationRequest(image=image, prompt=image)
    assert GenerationRequest.from_dict({"prompt": "waves", "image": image}).is_from_words


@pytest.mark.parametrize("name", ["image", "prompt", "negative", "model"])
def test_texts_that_nothing_could_read_are_refused(name: str) -> None:
    for value, sentence in (
        (None, "is None; expected text"),
        (b"bytes", "expected text"),
        ("a\0b", "has a character that no file can hold"),
        ("a\ud800b", "has a character that no file can hold"),
        ("x" * (MAX_PROMPT_CHARACTERS + 1), "has 4001 characters; expected at most 4000"),
    ):
        with pytest.raises(InputError) as caught:
            GenerationRequest(**{"image": "a.png", name: value})
        assert caught.value.setting == name
        assert sentence in caught.value.message
        assert caught.value.remedy
        str(caught.value).encode("utf-8")


def test_unknown_settings_are_named() -> None:
    with pytest.raises(InputError, match=r"'step' is not a setting; expected one of .*steps"):
        GenerationRequest.from_dict({"image": "a.png", "step": 3})
    assert [field.name for field in fields(GenerationRequest)] == list(SETTINGS)


def test_a_refusal_is_one_short_sentence_however_long_the_value() -> None:
    for name in ("mode", "seconds", "seed"):
        with pytest.raises(InputError) as caught:
            GenerationRequest(image="a.png", **{name: "x" * 100_000})
        assert len(caught.value.message) < 300
