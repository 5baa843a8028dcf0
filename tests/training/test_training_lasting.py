"""Tests of the figures of longer videos and of words alone, on true videos and on ones that fall short."""

from dataclasses import replace
from itertools import islice

import pytest

from training.lasting import bare_cases, judge_bare, judge_story, motion_at, stories
from training.render import Renderer
from training.scenes import COLOURS, STILL, Act, Background, Drawing, Motion
from training.stories import placed

pytestmark = pytest.mark.slow  # it draws longer videos

SIDE = 64


def test_a_true_video_is_right_throughout_and_one_that_stands_still_not_where_motion_is_asked_for(
    renderer: Renderer,
) -> None:
    scene, acts, prompt, sections = next(stories(renderer, SIDE, seed=5))
    true = renderer.story(scene, acts, range(36 * sections + 1), (SIDE, SIDE))
    assert prompt.count("[") == len(acts) - 1
    right, seen = judge_story(renderer, scene, acts, true, sections)
    assert right == [True] * sections, (prompt, seen)
    still = true[:, :1].expand(-1, true.shape[1], -1, -1)
    rests = [motion_at(acts, 36 * number).name == STILL for number in range(sections)]
    stood = judge_story(renderer, scene, acts, still, sections)[0]
    assert not any(is_right and not rest for is_right, rest in zip(stood, rests, strict=True))


def test_words_alone_are_judged_by_colour_shape_and_motion(renderer: Renderer) -> None:
    for thing, ground, motion, prompt in islice(bare_cases(seed=6), 2):
        assert f"{thing.colour} {thing.shape} on {ground}" in prompt
        scene = Drawing(
            Background("solid", (COLOURS[ground],) * 2, 0, 0.3, 0), (placed(thing, motion),), 0.5, 0.5
        )

        def judged(scene: Drawing, motion: Motion, thing=thing, ground=ground, named=motion) -> list[bool]:
            video = renderer.story(scene, [Act(motion)], range(37), (SIDE, SIDE))
            return list(judge_bare(renderer, thing, ground, named, video).values())

        assert judged(scene, motion) == [True, True, True], prompt
        assert judged(scene, Motion()) == [True, True, False]
        other = replace(thing, shape="square" if thing.shape == "ball" else "ball")
        assert judged(replace(scene, things=(placed(other, motion),)), motion)[:2] == [True, False]
        assert not any(judged(replace(scene, things=()), motion))
