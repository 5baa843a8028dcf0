"""Tests of the evaluation's figures, on clips whose figures are known by construction."""

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from training.evaluate import Cases, make_and_judge, photograph, summary
from training.figures import Outcome, judge, overlap_of, psnr, shape_overlap, still_background
from training.render import Renderer, make_canvases
from training.scenes import Background, Case, Drawing, Motion, Thing
from training.sheet import save_contact_sheet

pytestmark = pytest.mark.slow  # it draws and encodes clips

SIZE = (128, 128)


def case_of(shape: str = "triangle", motion: Motion | None = None) -> Case:
    """Return a red thing on the left before a striped ground."""
    ground = Background("stripes", ((0.3, 0.5, 0.6), (0.4, 0.6, 0.5)), 0.3, 0.3, 0.0)
    thing = Thing(shape, "red", (0.86, 0.13, 0.12), -0.2, 0.0, 0.16)
    motion = motion or Motion("right")
    return Case(Drawing(ground, (thing,), 0.5, 0.5), motion, f"the red {shape} moves right")


def test_overlap_of_masks_counts_shape_and_not_place() -> None:
    before, after = torch.zeros(2, 40, 40, dtype=torch.bool)
    before[5:15, 5:15] = True
    after[22:32, 25:35] = True
    assert overlap_of(before, after) == pytest.approx(1)
    after[22:32, 30:35] = False
    assert overlap_of(before, after) == pytest.approx(0.5, abs=0.06)
    assert overlap_of(before, torch.zeros_like(after)) == 0


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


def test_a_thing_before_a_ground_of_its_colour_has_no_overlap(renderer: Renderer) -> None:
    case = case_of("ball")
    reddish = replace(case.scene.background, rgb=((0.8, 0.15, 0.14), (0.3, 0.5, 0.6)))
    alike = replace(case, scene=replace(case.scene, background=reddish))
    assert shape_overlap(renderer, alike, renderer.case(alike, range(37), SIZE)) is None


def test_only_moves_have_an_overlap(renderer: Renderer) -> None:
    for motion in (Motion("grows"), Motion("pans left"), Motion()):
        case = case_of(motion=motion)
        assert shape_overlap(renderer, case, renderer.case(case, range(2), SIZE)) is None


def test_the_rest_is_measured_away_from_what_moves(renderer: Renderer) -> None:
    case = case_of()
    clip = renderer.case(case, range(37), SIZE)
    true = judge(renderer, case, SIZE, "forward", 1, clip)
    assert true.right
    assert true.rest is not None
    assert true.rest > 60
    mask = still_background(case, SIZE, 37)
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


def test_a_moving_camera_has_no_rest(renderer: Renderer) -> None:
    case = case_of(motion=Motion("pans left"))
    judged = judge(renderer, case, SIZE, "forward", 1, renderer.case(case, range(37), SIZE))
    assert judged.rest is None
    assert judged.flicker is None
    assert judged.right


def test_psnr_of_a_known_error() -> None:
    assert psnr(torch.zeros(3, 4, 4), torch.full((3, 4, 4), 0.2)) == pytest.approx(20)


class StillEngine:
    """An engine whose videos repeat the picture, and which keeps what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple] = []

    def make(self, picture: torch.Tensor, prompt: str, mode: str, sections: int, seed: int) -> torch.Tensor:
        self.asked.append((prompt, mode, sections, seed))
        return picture.unsqueeze(1).expand(-1, 36 * sections + 1, -1, -1)


def test_a_photograph_is_judged_by_where_the_camera_should_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("training.evaluate.canvases", lambda seed, count, size: make_canvases(seed, 1))
    engine, cases = StillEngine(), Cases(77)
    missed = photograph(engine, cases, 0, "pans left", 2, "forward")
    assert engine.asked == [("the camera pans left slowly", "forward", 2, 0)]
    assert missed < 25
    # A motion of no strength leaves the picture as it is.
    monkeypatch.setattr("training.evaluate.Motion", lambda name, speed: Motion("stays still"))
    assert photograph(engine, cases, 0, "pans left", 2, "forward") > 60


def test_a_case_is_kept_only_if_its_true_clips_are_judged_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("training.evaluate.canvases", lambda seed, count, size: make_canvases(seed, 1))
    cases = Cases(5)
    # In two sections this triangle turns by 240 degrees, and by 120 in half of the time: it looks as before.
    turning = case_of("triangle", Motion("spins", "", 1.61))
    for sections, right in ((1, True), (2, False)):
        truth = cases.renderer.case(turning, range(36 * sections + 1), SIZE)
        assert judge(cases.renderer, turning, SIZE, "forward", sections, truth).right == right
    assert not cases.readable(turning, SIZE)
    assert cases.rejected == 1
    assert cases.readable(case_of("square", Motion("spins")), SIZE)


def test_orders_and_lengths_take_turns(renderer: Renderer) -> None:
    engine, cases = StillEngine(), SimpleNamespace(renderer=renderer)
    made = [make_and_judge(engine, cases, index, case_of(), SIZE) for index in range(4)]
    assert [(o.mode, o.sections) for o in made] == [(mode, n) for _, mode, n, _ in engine.asked]
    assert {(o.mode, o.sections) for o in made} == {(m, n) for m in ("inverted", "forward") for n in (1, 2)}
    assert not any(o.right for o in made)
    assert all(o.first_psnr > 60 for o in made)


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


def test_the_contact_sheet_shows_the_frames(outcomes: list[Outcome], tmp_path: Path) -> None:
    save_contact_sheet(tmp_path / "sheet.png", outcomes)
    sheet = np.asarray(Image.open(tmp_path / "sheet.png").convert("RGB"), dtype=int)
    for left in (0, 128, 256, 3 * 128 + 8):
        red = (sheet[14:142, left : left + 128, 0] > 180) & (sheet[14:142, left : left + 128, 1] < 90)
        assert red.sum() > 300
    # A wrong video's words are red, a right one's are not.
    words = [sheet[:13, left : left + 128] for left in (0, 4 * 128 + 16)]
    reddish = [int((part[..., 0] > part[..., 1] + 60).sum()) for part in words]
    assert reddish[0] == 0
    assert reddish[1] > 50
