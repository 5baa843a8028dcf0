"""Tests of the videos in training: a section sees what the product shows it, and stories are told in time."""

from dataclasses import asdict

import numpy as np
import pytest
import torch

from diffusers_helper.conditions.timeline import cuts_of, prompts_of
from diffusers_helper.families.framepack import FRAMEPACK
from diffusers_helper.families.packing import LATENT_WINDOW_SIZE
from diffusers_helper.framepack.history import LatentHistory
from diffusers_helper.request import GenerationRequest
from training.scenes import COLOURS, OBJECT_MOTIONS, STILL, shown
from training.sections import VideoPlan, draw_plan, gather, model_inputs
from training.stories import BARE_GROUND, bare_story, draw_story
from training.tasks import Sides, wanted_times

PLANS = [
    VideoPlan(mode, runs, has_picture)
    for mode in ("inverted", "forward")
    for runs in ((1,), (2,), (2, 2), (1, 3), (3, 2, 3), (5,), (8,))
    for has_picture in (True, False)
]


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_a_section_sees_what_the_product_shows_it(plan: VideoPlan) -> None:
    words = [f"[{1.2 * first:g}s: words {first}]" for first in plan.first_sections]
    image = "picture.png" if plan.has_picture else ""
    request = GenerationRequest(
        image=image, prompt=" ".join(words), mode=plan.mode, seconds=max(1.0, 1.2 * plan.count)
    )
    cuts = cuts_of(request, FRAMEPACK)
    sections = FRAMEPACK.sections(request, cuts)
    assert len(sections) == plan.count
    # Every latent holds the time that it has in the training; the start holds 0, as does the noise.
    times = torch.arange(float(plan.length)).view(1, 1, -1, 1, 1)
    start = times[:, :, :1]
    history = LatentHistory(plan.mode, start, prefix=start if plan.has_picture else start[:, :, :0])
    for section in sections:
        number = section.video_index
        told = plan.section(number)
        (prompt, _), *_ = prompts_of(section.number, request, FRAMEPACK)
        assert prompt == f"words {plan.first_sections[plan.run_of(number)]}"
        context = history.context(section)
        expected = model_inputs(told, gather(times, [told.start]), gather(times, told.history))
        first = plan.first_sections[plan.run_of(number)]
        if plan.mode == "inverted" and first:  # a draft of what comes before
            context.start[:] = LATENT_WINDOW_SIZE * first
        clean = torch.cat([context.start, context.history_1x], dim=2)
        assert torch.equal(expected["latents_clean"], clean)
        assert torch.equal(expected["latents_history_2x"], context.history_2x)
        assert torch.equal(expected["latents_history_4x"], context.history_4x)
        for name, indices in (("", section.indices.noisy), ("_clean", section.indices.clean)):
            assert expected[f"indices_latents{name}"].tolist() == [*indices]
        made = times[:, :, told.noisy]
        history.add(made.clone(), section)


def test_motion_goes_on_through_all_sections_that_can_tell_where_they_are() -> None:
    forward, long, short, bare = (
        [plan.frame(time) for time in range(plan.length)]
        for plan in (
            VideoPlan("forward", (8,)), VideoPlan("inverted", (5,)), VideoPlan("inverted", (1, 3)),
            VideoPlan("forward", (1,), has_picture=False),
        )
    )  # fmt: skip
    assert forward == [0, *(4 * time - 1.5 for time in range(1, 73))]
    assert short == forward[:37]
    assert long[:19] == forward[:19]
    assert long[19:28] == [72] * 9
    assert long[28:] == forward[19:37]
    assert bare == [0, 0, *(4 * time - 1.5 for time in range(1, 9))]
    assert VideoPlan("inverted", (5, 2)).begins() == [0, 144]


def test_plans_of_all_lengths_orders_and_changes_are_drawn() -> None:
    rng = np.random.default_rng(1)
    plans = [draw_plan(rng) for _ in range(800)]
    assert {plan.count for plan in plans} == set(range(1, 9))
    from_words = [plan for plan in plans if not plan.has_picture]
    assert 0.11 < len(from_words) / len(plans) < 0.19
    changed = [len(plan.runs) > 1 for plan in plans if plan.count > 1]
    assert 0.4 < sum(changed) / len(changed) < 0.7
    assert {plan.mode for plan in plans} == {"inverted", "forward"}


def test_a_step_wants_the_times_that_it_uses() -> None:
    plan = VideoPlan("forward", (2, 2))
    assert wanted_times(plan, 2, own_history=False) == list(range(28))
    # What the model makes itself is not encoded, but what it sees for that.
    assert wanted_times(plan, 3, own_history=True) == [*range(19), *range(28, 37)]
    assert wanted_times(VideoPlan("inverted", (1,), has_picture=False), 0, own_history=False) == list(
        range(1, 10)
    )


def test_stories_go_on_with_what_is_in_view() -> None:
    rng = np.random.default_rng(2)
    for _ in range(200):
        story = draw_story(rng, (64, 64), 1, [0, 36, 72, 180])
        assert [act.begin for act in story.acts] == [0, 36, 72, 180]
        for act, earlier, prompt in zip(story.acts[1:], story.acts, story.prompts[1:], strict=False):
            assert act.motion.name != earlier.motion.name or act.motion.name == STILL
            things, view = shown(story.scene, story.acts, act.begin)
            if act.motion.name in OBJECT_MOTIONS:
                thing = things[act.target]
                assert thing.shape in prompt
                assert abs(thing.x - view.x) < 0.5 * view.width
                assert abs(thing.y - view.y) < 0.5 * view.width


def test_words_alone_determine_the_picture() -> None:
    rng = np.random.default_rng(3)
    pictures: dict[str, object] = {}
    for _ in range(800):
        story = bare_story(rng, (64, 64), [0])
        told = asdict(story.scene) | {"motion": story.acts[0].motion}
        assert pictures.setdefault(story.prompts[0], told) == told
        words = story.prompts[0].replace(",", "").split()
        (thing,) = story.scene.things
        assert words[1:3] == [thing.colour, thing.shape]
        ground = COLOURS[words[4]] if words[3] == "on" else BARE_GROUND
        assert story.scene.background.rgb == (ground, ground)
    assert len(pictures) < 800


def test_the_larger_side_comes_later_and_with_fewer_clips() -> None:
    rng = np.random.default_rng(4)
    for done in (0.0, 0.9):
        drawn = [Sides().draw(rng, done) for _ in range(400)]
        assert {round((height * width) ** 0.5 / 128) for (height, width), _ in drawn} == {1, 2}
        assert all(part == (4 if height * width > 180**2 else 1) for (height, width), part in drawn)
        assert sum(part == 4 for _, part in drawn) / 400 == pytest.approx(Sides().share(done), abs=0.07)
