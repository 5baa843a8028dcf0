"""Tests of GenerationRequest: JSON both ways, and requests of earlier versions."""

import json
from dataclasses import asdict
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from diffusers_helper.request import (
    SETTINGS,
    GenerationRequest,
)
from diffusers_helper.setting import SettingInfo

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
