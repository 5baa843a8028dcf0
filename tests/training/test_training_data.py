"""Tests of the demo world: things stay in the picture, the tracker reads clips, words are known."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from training.layout import lay_out
from training.render import Renderer, make_canvas_sets, make_canvases
from training.scenes import (
    BACKGROUNDS,
    CAMERA_MOTIONS,
    DIRECTIONS,
    MOTION_FRAMES,
    MOTIONS,
    RADII,
    SPEEDS,
    STILL,
    Background,
    Case,
    Drawing,
    Motion,
    Thing,
    camera,
    half_extent,
    moved,
    sample_case,
    sample_scene,
    visible,
)
from training.tracker import agrees, observe, read

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


def test_nothing_moves_after_the_motion_is_over() -> None:
    scene = plain_scene(red_ball())
    for name in MOTIONS:
        at_end = moved(scene.things[0], Motion(name), MOTION_FRAMES, scene)
        assert moved(scene.things[0], Motion(name), 2 * MOTION_FRAMES, scene) == at_end


def test_the_ball_is_drawn_where_it_is(renderer: Renderer) -> None:
    scene = plain_scene(red_ball(0.2, -0.1))
    picture = renderer.clip(scene, Motion(STILL), [0], SIZE)[:, 0]
    assert picture.shape == (3, *SIZE)
    red = (picture[0] - picture[1] > 1.0).float()
    rows, columns = torch.nonzero(red, as_tuple=True)
    assert float(columns.float().mean() + 0.5) == pytest.approx((0.5 + 0.2) * 64, abs=0.5)
    assert float(rows.float().mean() + 0.5) == pytest.approx((0.5 - 0.1) * 64, abs=0.5)


def test_clips_drawn_together_are_those_drawn_alone(renderer: Renderer) -> None:
    rng = np.random.default_rng(5)
    clips = []
    for kind in BACKGROUNDS:
        for motion in ("right", "grows", "spins", "zooms out", "pans left"):
            scene = sample_scene(rng, *SIZE, renderer.count, (0, 0.2, 0.4, 0.4))
            scene = replace(scene, background=replace(scene.background, kind=kind), grain=0.02)
            clips.append((scene, Motion(motion)))
    frames = [0, 2.5, 40]
    together = renderer.draw(lay_out(clips, frames), SIZE)
    assert together.shape == (len(clips), 3, len(frames), *SIZE)
    for clip, (scene, motion) in zip(together, clips, strict=True):
        assert torch.allclose(clip, renderer.clip(scene, motion, frames, SIZE), atol=1e-5)


def test_a_crop_is_a_part_of_the_picture(renderer: Renderer) -> None:
    scene = plain_scene(red_ball(0.1, 0.2))
    whole = renderer.clip(scene, Motion("zooms in"), [0, 30], SIZE)
    part = renderer.clip(scene, Motion("zooms in"), [0, 30], SIZE, box=(20, 8, 30, 40))
    assert torch.allclose(part, whole[:, :, 20:50, 8:48], atol=1e-5)


def test_sets_of_bitmaps_are_joined_by_kind() -> None:
    joined = make_canvas_sets(7, 1, 2)
    first, second = make_canvases(7, 1), make_canvases(8, 1)
    assert torch.equal(joined, torch.stack([first[0], second[0], first[1], second[1]]))
    assert torch.equal(make_canvas_sets(7, 1, 1), first)


def test_only_motions_that_can_be_seen_are_asked_for() -> None:
    ball, square = red_ball(), replace(red_ball(), shape="square")
    assert "spins" not in visible(plain_scene(ball))[0]
    assert "spins" in visible(plain_scene(square))[0]
    assert visible(plain_scene()) == ([], [])
    striped = replace(plain_scene(), background=replace(plain_scene().background, kind="stripes"))
    assert visible(striped) == ([], list(CAMERA_MOTIONS))


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


def test_a_move_over_a_plain_ground_is_not_taken_for_the_pan_that_looks_the_same(renderer: Renderer) -> None:
    scene = plain_scene(red_ball(-0.1, -0.2))
    # A strength between the listed ones, at which a listed pan comes nearer than any listed move.
    clip = renderer.clip(scene, Motion("down", "", 0.89), range(37), SIZE)
    for motion, alike in (("down", True), ("pans up", True), ("right", False), ("pans down", False)):
        case = Case(scene, Motion(motion), "")
        seen = observe(renderer, case, clip)
        assert agrees(case, seen) == alike, seen
    # The same motion before a pattern is no pan.
    striped = replace(
        scene, background=replace(scene.background, kind="checker", rgb=((0.4,) * 3, (0.6,) * 3))
    )
    clip = renderer.clip(striped, Motion("down", "", 0.89), range(37), SIZE)
    case = Case(striped, Motion("pans up"), "")
    assert observe(renderer, case, clip).motion == "down"


def test_a_move_over_a_plain_ground_is_read_at_every_strength(renderer: Renderer) -> None:
    scene = plain_scene(red_ball(0.2))
    case = Case(scene, Motion("left"), "")
    for strength in (0.61, 0.7, 0.83, 0.93, 0.97, 1.03, 1.22):
        clip = renderer.clip(scene, Motion("left", "", strength), [36, 72], (128, 128))
        seen = read(renderer, case, clip, [36, 72])
        assert seen.motion == "left", seen
        assert seen.amount == pytest.approx(strength, rel=0.02)


def test_still_videos_are_seen_as_still(renderer: Renderer) -> None:
    scene = plain_scene(red_ball())
    clip = renderer.clip(scene, Motion(STILL), range(37), SIZE)
    noise = 0.05 * torch.randn(clip.shape, generator=torch.Generator().manual_seed(1))
    assert observe(renderer, Case(scene, Motion("right"), ""), clip + noise, AMOUNTS).motion == STILL


def test_things_are_as_large_as_the_world_says() -> None:
    rng = np.random.default_rng(2)
    radii = [t.radius for _ in range(300) for t in sample_case(rng, 128, 128, 1).scene.things]
    assert RADII == (0.11, 0.24)
    assert RADII[0] <= min(radii) < 0.12
    assert 0.22 < max(radii) <= RADII[1]


def test_motions_are_as_large_as_the_world_says() -> None:
    scene = plain_scene(red_ball())
    thing = scene.things[0]
    grown = [moved(thing, Motion("grows", speed), 72, scene).radius / thing.radius for speed in SPEEDS]
    assert grown == pytest.approx([math.exp(0.6), math.exp(1.0), 0.4 / 0.12], rel=1e-6)
    shrunk = moved(thing, Motion("shrinks", "quickly"), 72, scene).radius / thing.radius
    assert shrunk == pytest.approx(math.exp(-1.5))
    spun = [math.degrees(moved(thing, Motion("spins", speed), 72, scene).angle) for speed in SPEEDS]
    assert spun == pytest.approx([80, 150, 220])
    zooms = [camera(Motion("zooms out", speed), 72)[2] for speed in SPEEDS]
    assert zooms == pytest.approx([math.exp(0.4), math.exp(0.7), math.exp(1.1)])


def test_every_motion_is_drawn_by_the_sampler() -> None:
    rng = np.random.default_rng(1)
    names = {sample_case(rng, *SIZE, 1).motion.name for _ in range(600)}
    assert names == set(MOTIONS)
    assert set(CAMERA_MOTIONS) < names


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
