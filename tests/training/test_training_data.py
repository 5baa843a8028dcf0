"""Tests of the demo world: things stay in the picture, the tracker reads clips, words are known."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from training.render import Renderer, make_canvases
from training.scenes import (
    DIRECTIONS,
    MOTION_FRAMES,
    STILL,
    Background,
    Case,
    Drawing,
    Motion,
    Thing,
    half_extent,
    moved,
    sample_case,
)
from training.tracker import agrees, observe

pytestmark = pytest.mark.slow  # it draws and encodes clips

SIZE = (64, 64)
AMOUNTS = (0.3, 0.55, 1.0, 1.67)


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    return Renderer(make_canvases(3, 1))


def plain_scene(*things: Thing) -> Drawing:
    background = Background("solid", ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)), 0.0, 0.3, 0.0)
    return Drawing(background, things, *half_extent(*SIZE))


def red_ball(x: float = 0.0, y: float = 0.0) -> Thing:
    return Thing("ball", "red", (0.86, 0.13, 0.12), x, y, 0.12)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_a_thing_stops_at_the_edge(direction: str) -> None:
    scene = plain_scene(red_ball())
    end = moved(scene.things[0], Motion(direction, "quickly"), MOTION_FRAMES, scene)
    assert abs(end.x) + end.radius <= scene.half_width + 1e-6
    assert abs(end.y) + end.radius <= scene.half_height + 1e-6
    assert abs(end.x) + abs(end.y) > 0.3


def test_the_tracker_reads_true_clips(renderer: Renderer) -> None:
    rng = np.random.default_rng(8)
    for _ in range(16):
        case = sample_case(rng, *SIZE, renderer.count)
        clip = renderer.case(case, range(37), SIZE)
        assert agrees(case, observe(renderer, case, clip, AMOUNTS)), case.prompt


def test_the_tracker_tells_the_wrong_thing_moving(renderer: Renderer) -> None:
    blue = Thing("square", "blue", (0.13, 0.25, 0.85), -0.2, 0.25, 0.12)
    scene = plain_scene(red_ball(-0.2, -0.2), blue)
    clip = renderer.clip(scene, Motion("right"), range(37), SIZE, target=1)
    seen = observe(renderer, Case(scene, Motion("right"), ""), clip, AMOUNTS)
    assert (seen.motion, seen.target) == ("right", 1)


def test_still_videos_are_seen_as_still(renderer: Renderer) -> None:
    scene = plain_scene(red_ball())
    clip = renderer.clip(scene, Motion(STILL), range(37), SIZE)
    noise = 0.05 * torch.randn(clip.shape, generator=torch.Generator().manual_seed(1))
    assert observe(renderer, Case(scene, Motion("right"), ""), clip + noise, AMOUNTS).motion == STILL


class TestWords:
    """Tests of both tokenizers."""

    @pytest.mark.parametrize("prompt", ["", "the red ball moves right quickly", "Ein Hund läuft!"])
    def test_the_head_is_as_long_as_the_pipeline_cuts(self, prompt: str) -> None:
        from training.words import CROP, DEFAULT_PROMPT_TEMPLATE, END, llama_tokenizer

        tokenizer = llama_tokenizer()
        ids = tokenizer(DEFAULT_PROMPT_TEMPLATE["template"].format(prompt)).input_ids
        kept = tokenizer.convert_ids_to_tokens(ids[CROP:])
        known = prompt.removeprefix("the ").split() if prompt.startswith("the") else []
        assert kept == [*known, END]

    def test_unknown_words_and_case_and_commas_do_not_matter(self) -> None:
        from training.words import clip_tokenizer

        tokenizer = clip_tokenizer()
        plain = tokenizer("red ball moves right").input_ids
        assert tokenizer("A tiny, RED ball... moves to the Right!").input_ids == plain
        assert tokenizer("the red circle moving rightwards").input_ids == plain


class TestSections:
    """Tests that a section sees in training what the pipeline shows it."""

    def test_sections_match_the_plan(self) -> None:
        from training.transformer import draw_section

        rng = np.random.default_rng(0)
        for _ in range(300):
            section = draw_section(rng)
            assert len(section.history) == 19
            assert len(section.noisy) == 9
            present = [time for time in section.history if time is not None]
            if section.mode == "inverted":
                assert section.noisy[0] == 9 * section.padding + 1
                assert present == list(range(section.noisy[-1] + 1, section.noisy[-1] + 1 + len(present)))
                assert section.history[: len(present)] == present
            else:
                assert present[-1] == section.noisy[0] - 1
                assert section.history[19 - len(present) :] == present

    def test_gather_takes_the_picture_zeros_and_the_last(self) -> None:
        from training.transformer import gather

        latents = torch.arange(1.0, 5.0).view(1, 1, 4, 1, 1)
        start = torch.full((1, 1, 1, 1, 1), 9.0)
        assert gather(latents, start, [None, 0, 1, 3, 8]).flatten().tolist() == [0.0, 9.0, 2.0, 4.0, 4.0]
