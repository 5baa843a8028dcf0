"""Tests of the demo world: things stay in the picture, the tracker reads clips, words are known."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from diffusers_helper.families.packing import FPS
from training.layout import lay_out
from training.render import Renderer
from training.scenes import (
    BACKGROUNDS,
    CAMERA_MOTIONS,
    DIRECTIONS,
    MOTIONS,
    RADII,
    SPEEDS,
    STILL,
    Act,
    Background,
    Case,
    Drawing,
    Motion,
    Thing,
    half_extent,
    sample_case,
    sample_scene,
    shown,
    visible,
)
from training.tracker import agrees, observe, read

pytestmark = pytest.mark.slow  # it draws and encodes clips

SIZE = (64, 64)
AMOUNTS = (0.3, 0.55, 1.0, 1.67)


def plain_scene(*things: Thing) -> Drawing:
    background = Background("solid", ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)), 0.0, 0.3, 0.0)
    return Drawing(background, things, *half_extent(*SIZE))


def red_ball(x: float = 0.0, y: float = 0.0) -> Thing:
    return Thing("ball", "red", (0.86, 0.13, 0.12), x, y, 0.12)


# What a second of a motion changes at each speed: a thing's place, size and angle, and the camera's view.
@pytest.mark.parametrize(
    ("name", "of", "rates"),
    [
        *((name, lambda thing, _, d=d: thing.x * d[0] + thing.y * d[1], (0.10, 0.19, 0.31))
          for name, d in DIRECTIONS.items()),
        ("grows", lambda thing, _: math.log(thing.radius / 0.12), (0.25, 0.42, 0.63)),
        ("shrinks", lambda thing, _: -math.log(thing.radius / 0.12), (0.25, 0.42, 0.63)),
        ("spins", lambda thing, _: math.degrees(thing.angle), (33, 62, 92)),
        ("zooms in", lambda _, view: -math.log(view.width), (0.17, 0.29, 0.46)),
        ("zooms out", lambda _, view: math.log(view.width), (0.17, 0.29, 0.46)),
        ("pans up", lambda _, view: -view.y, (0.09, 0.17, 0.26)),
    ],
)  # fmt: skip
def test_a_motion_goes_on_at_the_speed_that_is_named(name: str, of, rates: tuple[float, ...]) -> None:
    for speed, rate in zip(SPEEDS, rates, strict=True):
        acts = [Act(Motion(name, speed))]
        seen = [of(things[0], view) for things, view in (
            shown(plain_scene(red_ball()), acts, FPS * second) for second in (0, 1, 1.5)
        )]  # fmt: skip
        assert seen == pytest.approx([0, rate, 1.5 * rate], abs=1e-6)


def test_things_leave_the_picture_and_growth_and_zooms_have_limits() -> None:
    ends = {
        name: shown(plain_scene(red_ball()), [Act(Motion(name, "quickly"))], 60 * FPS)
        for name in ("right", "grows", "shrinks", "zooms in", "zooms out")
    }
    assert ends["right"][0][0].x > 10
    assert [ends[name][0][0].radius for name in ("grows", "shrinks")] == [0.4, 0.02]
    assert [ends[name][1].width for name in ("zooms in", "zooms out")] == [1 / 8, 3.5]


def test_each_act_goes_on_from_the_last_one_as_seen_in_the_picture() -> None:
    blue = Thing("square", "blue", (0.13, 0.25, 0.85), 0.2, 0.2, 0.12)
    scene = plain_scene(red_ball(), blue)
    acts = [Act(Motion("right")), Act(Motion(STILL), 0, 30), Act(Motion("zooms out"), 0, 60),
            Act(Motion("down"), 1, 90)]  # fmt: skip
    assert shown(scene, acts, 60)[0][0].x == pytest.approx(0.19)
    (ball, square), view = shown(scene, acts, 120)
    assert ball.x == pytest.approx(0.19)
    assert view.width == pytest.approx(math.exp(0.29))
    assert square.y - 0.2 == pytest.approx(0.19 * view.width)
    assert square.x == 0.2


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
            clips.append((scene, [Act(Motion(motion))]))
    frames = [0, 2.5, 40]
    together = renderer.draw(lay_out(clips, frames), SIZE)
    assert together.shape == (len(clips), 3, len(frames), *SIZE)
    for clip, (scene, acts) in zip(together, clips, strict=True):
        assert torch.allclose(clip, renderer.story(scene, acts, frames, SIZE), atol=1e-5)


def test_a_crop_is_a_part_of_the_picture(renderer: Renderer) -> None:
    scene = plain_scene(red_ball(0.1, 0.2))
    whole = renderer.clip(scene, Motion("zooms in"), [0, 30], SIZE)
    part = renderer.clip(scene, Motion("zooms in"), [0, 30], SIZE, box=(20, 8, 30, 40))
    assert torch.allclose(part, whole[:, :, 20:50, 8:48], atol=1e-5)


def test_only_motions_that_can_be_seen_are_asked_for() -> None:
    ball, square = red_ball(), replace(red_ball(), shape="square")
    assert "spins" not in visible(plain_scene(ball))[0]
    assert "spins" in visible(plain_scene(square))[0]
    assert visible(plain_scene()) == ([], [])
    striped = replace(plain_scene(), background=replace(plain_scene().background, kind="stripes"))
    assert visible(striped) == ([], list(CAMERA_MOTIONS))


def test_the_tracker_reads_true_clips(renderer: Renderer) -> None:
    rng = np.random.default_rng(8)
    for _ in range(8):
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


def test_every_motion_is_drawn_by_the_sampler() -> None:
    rng = np.random.default_rng(1)
    names = {sample_case(rng, *SIZE, 1).motion.name for _ in range(600)}
    assert names == set(MOTIONS)
    assert set(CAMERA_MOTIONS) < names
