"""Tests of jobs whose prompt says what happens when: each section's latents follow from its own words."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from diffusers_helper.errors import LongtakeError
from diffusers_helper.families.packing import MODES, Mode
from diffusers_helper.framepack.encoders import TextCondition, mixed
from diffusers_helper.loading.loaders import Models
from diffusers_helper.provenance.lineage import Lineage, Span
from tests.support.making import load_tiny, make, seconds_for, tiny_request, write_scene

RIGHT, UP = "the red ball moves right", "the red ball moves up"


@pytest.fixture(scope="module")
def models(tiny_model: Path) -> Models:
    return load_tiny(tiny_model)


@pytest.fixture
def scene(tmp_path: Path) -> Path:
    return write_scene(tmp_path / "scene.png", 90, 100)


def text(values: list[list[float]], pooled: list[float]) -> TextCondition:
    return TextCondition(torch.tensor([values]), torch.tensor([pooled]))


def test_texts_of_different_lengths_are_mixed_in_the_length_of_the_last() -> None:
    short, long = text([[4.0, 8.0]], [1.0]), text([[0.0, 4.0], [8.0, 8.0]], [3.0])
    grown = mixed([(short, 0.25), (long, 0.75)])
    assert grown.states.tolist() == [[[1.0, 5.0], [6.0, 6.0]]]
    assert grown.pooled.tolist() == [[2.5]]
    assert mixed([(long, 0.25), (short, 0.75)]).states.tolist() == [[[3.0, 7.0]]]
    assert mixed([(long, 1.0)]) is long


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_a_prompt_with_times_makes_the_latents_of_a_branch(
    mode: Mode, models: Models, scene: Path, tmp_path: Path
) -> None:
    directed = tiny_request(scene, prompt=f"{RIGHT} [1.2s: {UP}]", mode=mode, seconds=seconds_for(2))
    made_first, made_last = (RIGHT, UP) if mode == "forward" else (UP, RIGHT)
    before = replace(directed, prompt=made_first)
    branch = Lineage((Span.of(1, before),))
    found, _ = make(directed, models, tmp_path / "directed")
    expected, _ = make(replace(directed, prompt=made_last), models, tmp_path / "b", lineage=branch)
    plain, _ = make(before, models, tmp_path / "plain")
    assert torch.equal(found.latents, expected.latents)
    assert not torch.equal(found.latents, plain.latents)


@pytest.mark.slow
def test_a_blended_section_is_kept_for_its_own_words_only(
    models: Models, scene: Path, tmp_path: Path
) -> None:
    settings = {"mode": "forward", "seconds": seconds_for(2), "steps": 1}
    cut = tiny_request(scene, prompt=f"{RIGHT} [1.2s: {UP}]", **settings)
    soft = replace(cut, prompt_blend=1)
    first, _ = make(soft, models, tmp_path / "job")
    again, _ = make(soft, models, tmp_path / "job", resume_from=tmp_path / "job")
    assert torch.equal(first.latents, again.latents)
    assert not torch.equal(first.latents, make(cut, models, tmp_path / "cut")[0].latents)
    with pytest.raises(LongtakeError, match="prompt"):
        make(cut, models, tmp_path / "job", resume_from=tmp_path / "job")
