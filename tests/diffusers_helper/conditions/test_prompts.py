"""Tests of the text around a prompt, and of how long a prompt may be."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from diffusers.pipelines.hunyuan_video.pipeline_hunyuan_video_framepack import DEFAULT_PROMPT_TEMPLATE

from diffusers_helper.conditions.prompts import HEAD_TOKENS, TEMPLATE, check_prompt, encoded_tokens
from diffusers_helper.errors import InputError
from diffusers_helper.models.registry import ModelInfo, find_model
from diffusers_helper.request import GenerationRequest


@pytest.fixture
def info(tiny_model: Path) -> ModelInfo:
    return find_model(str(tiny_model), allow_folder=True)


def request(prompt: str, **settings: object) -> GenerationRequest:
    return GenerationRequest.from_dict({"image": "a.png", "prompt": prompt, **settings})


def test_the_template_is_the_one_of_the_trained_model() -> None:
    assert DEFAULT_PROMPT_TEMPLATE == {"template": TEMPLATE, "crop_start": HEAD_TOKENS}


def test_a_prompt_may_fill_the_encoder_and_no_more(info: ModelInfo) -> None:
    check_prompt(request(""), info)
    check_prompt(request("red " * 256), info)
    with pytest.raises(InputError, match=r"prompt has 257 tokens.*at most 256") as caught:
        check_prompt(request("red " * 257), info)
    assert caught.value.remedy


def test_braces_are_only_text(info: ModelInfo) -> None:
    check_prompt(request("{} {0} {name} }{"), info)


def test_the_negative_prompt_counts_where_it_is_used(info: ModelInfo) -> None:
    check_prompt(request("", negative="red " * 300), info)
    with pytest.raises(InputError, match="negative has 300 tokens"):
        check_prompt(request("", negative="red " * 300, cfg=1.5), info)


def test_all_tokens_count_whatever_the_file_cuts_or_fills_up(info: ModelInfo, tmp_path: Path) -> None:
    content = json.loads((info.components["tokenizer"].folder / "tokenizer.json").read_text())
    content["truncation"] = {"direction": "Right", "max_length": 9, "strategy": "LongestFirst", "stride": 0}
    content["padding"] = {
        "strategy": {"Fixed": 300}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0,
        "pad_type_id": 0, "pad_token": "x",
    }  # fmt: skip
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    source = type(info.components["tokenizer"])(location=str(tmp_path))
    changed = replace(info, components={**info.components, "tokenizer": source})
    texts = ("", "red", "red " * 40, "red " * 300)
    counts = [encoded_tokens(text, info) for text in texts]
    assert [encoded_tokens(text, changed) for text in texts] == counts == sorted(set(counts))
    assert counts[0] >= 1


def test_a_tokenizer_that_cannot_be_read(tiny_model: Path, tmp_path: Path) -> None:
    broken = find_model(str(tiny_model), allow_folder=True)
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    file = folder / "tokenizer.json"
    file.write_text("{", encoding="utf-8")
    source = type(broken.components["tokenizer"])(location=str(folder))
    info = ModelInfo(name="broken", title="", components={"tokenizer": source})
    with pytest.raises(InputError, match=r"tokenizer\.json cannot be read"):
        check_prompt(request("red"), info)
    with file.open("wb") as stream:
        stream.truncate(500 * 10**6)  # without content, so it takes no room on the disk
    with pytest.raises(InputError, match=r"tokenizer\.json has 500 MB; expected a tokenizer of at most 64\."):
        check_prompt(request("red"), info)
