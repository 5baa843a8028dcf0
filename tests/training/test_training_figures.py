"""Tests of the evaluation's figures, on clips whose figures are known by construction."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from training.evaluate import summary
from training.figures import Outcome, judge, shape_overlap, still_background
from training.render import Renderer, make_canvases
from training.scenes import Background, Case, Drawing, Motion, Thing

pytestmark = pytest.mark.slow  # it draws and encodes clips

SIZE = (128, 128)


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    return Renderer(make_canvases(3, 1))


def case_of(shape: str = "triangle", motion: Motion | None = None) -> Case:
    """Return a red thing on the left before a striped ground."""
    ground = Background("stripes", ((0.3, 0.5, 0.6), (0.4, 0.6, 0.5)), 0.3, 0.3, 0.0)
    thing = Thing(shape, "red", (0.86, 0.13, 0.12), -0.2, 0.0, 0.16)
    motion = motion or Motion("right")
    return Case(Drawing(ground, (thing,), 0.5, 0.5), motion, f"the red {shape} moves right")


@pytest.mark.parametrize("shape", ["ball", "square", "triangle", "diamond"])
def test_a_thing_that_moves_whole_overlaps_itself(renderer: Renderer, shape: str) -> None:
    case = case_of(shape)
    overlap = shape_overlap(renderer, case, renderer.case(case, range(37), SIZE))
    assert overlap is not None
    assert overlap > 0.93


def test_a_thing_that_becomes_another_overlaps_less(renderer: Renderer) -> None:
    case = case_of("triangle")
    clip = renderer.case(case, range(37), SIZE)
    thing = replace(case.scene.things[0], shape="ball")
    melted = replace(case, scene=replace(case.scene, things=(thing,)))
    clip[:, -1] = renderer.case(melted, [36], SIZE)[:, 0]
    overlap = shape_overlap(renderer, case, clip)
    assert overlap is not None
    # The true figure of a triangle of height 1.5 radii within a circle.
    assert overlap < 0.65
    clip[:, -1] = renderer.clip(replace(case.scene, things=()), Motion(), [0], SIZE)[:, 0]
    assert shape_overlap(renderer, case, clip) == 0


def test_the_rest_is_measured_away_from_what_moves(renderer: Renderer) -> None:
    case = case_of()
    clip = renderer.case(case, range(37), SIZE)
    true = judge(renderer, case, SIZE, "forward", 1, clip)
    assert true.right
    assert true.rest is not None
    assert true.rest > 60
    mask = still_background(case, SIZE, 37)
    assert mask is not None
    assert 0.3 < float(mask.float().mean()) < 0.8
    spoiled = clip.clone()
    spoiled[:, -1, mask] += 0.1
    judged = judge(renderer, case, SIZE, "forward", 1, spoiled)
    assert judged.rest == pytest.approx(20 * math.log10(2 / 0.1), abs=0.1)
    # Places where the thing was or arrived do not count for the rest.
    spoiled = clip.clone()
    spoiled[:, -1, ~mask] += 0.1
    assert judge(renderer, case, SIZE, "forward", 1, spoiled).rest == pytest.approx(true.rest)


def test_flicker_and_join_are_as_made(renderer: Renderer) -> None:
    case = case_of(motion=Motion("stays still"))
    clip = renderer.case(case, range(73), SIZE).clone()
    clip[:, ::2] += 1 / 127.5
    clip[:, 37:] += 8 / 127.5
    judged = judge(renderer, case, SIZE, "inverted", 2, clip)
    assert judged.overlap is None
    assert judged.flicker == pytest.approx(1 + 7 / 72, abs=0.15)
    assert judged.join == pytest.approx(8, abs=1.1)


@pytest.fixture
def outcomes(renderer: Renderer) -> list[Outcome]:
    """Return one right video and one in which nothing moves."""
    case = case_of()
    clip = renderer.case(case, range(37), SIZE)
    still = clip[:, :1].expand(-1, 37, -1, -1)
    return [judge(renderer, case, SIZE, "forward", 1, video) for video in (clip, still)]


def test_the_summary_names_the_least_and_the_mean(outcomes: list[Outcome]) -> None:
    table = summary([outcomes[0], replace(outcomes[1], overlap=0.5)])
    assert table["motion_right"] == 50
    assert table["motion_right_by_kind"]["right"] == 50
    # The right video has the named strength, the other none.
    assert table["motion_strength_by_kind"]["right"] == pytest.approx(0.5)
    assert "stays still" not in table["motion_strength_by_kind"]
    assert table["shape_overlap_lowest"] == 0.5
    assert table["shape_overlap"] == pytest.approx((outcomes[0].overlap + 0.5) / 2)
    assert table["motion_right_by_group"]["forward"] == 50
    assert table["motion_right_by_group"]["inverted"] == 0
