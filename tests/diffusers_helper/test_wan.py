"""Tests that jobs with Wan have what jobs with other models have, and that their clips hang together."""

import random
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from diffusers_helper.errors import InputError, LongtakeError
from diffusers_helper.events import Event, StepDone
from diffusers_helper.families.wan import WAN, WAN_A14B
from diffusers_helper.loading.loaders import Models
from diffusers_helper.models.registry import ModelInfo
from diffusers_helper.output import checkpoints
from diffusers_helper.output.checkpoints import read_tensors
from diffusers_helper.output.previews import LightDecoder
from diffusers_helper.pipeline import Result, generate
from diffusers_helper.request import GenerationRequest
from diffusers_helper.wan.colours import with_colours
from diffusers_helper.wan.schedule import new_scheduler, sample_at, sample_flow
from diffusers_helper.wan.work import ClipChain
from tests.support.drivers import break_rungs
from tests.support.making import Stop, load_tiny, make, outline, tiny_request, write_scene
from tests.support.tiny_wan import scheduler

CLIPS, LATENTS = 4, 4


@pytest.fixture(scope="module", params=["tiny_wan", "tiny_wan_fast", "tiny_wan_a14b"])
def models(request: pytest.FixtureRequest) -> Models:
    return load_tiny(request.getfixturevalue(request.param))


@pytest.fixture(scope="module")
def order(models: Models, tmp_path_factory: pytest.TempPathFactory) -> GenerationRequest:
    scene = write_scene(tmp_path_factory.mktemp("scene") / "scene.png")
    settings = {**models.info.default_settings, "steps": models.info.steps if models.info.times else 5}
    return tiny_request(
        scene, **settings, model=str(models.info.folder), seconds=12 * CLIPS / models.info.family.fps,
        clip_frames=13, resolution=64,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("seconds", "clip_frames", "clips", "frames"),
    [(5, 0, 1, 121), (15, 0, 3, 361), (2, 13, 4, 49), (2, 15, 4, 49), (5, 49, 2, 97)],
)
def test_the_first_clip_has_a_frame_more_than_the_others(
    seconds: float, clip_frames: int, clips: int, frames: int
) -> None:
    plan = WAN.plan(seconds, "forward", clip_frames=clip_frames)
    assert (len(plan), plan.total_frames, plan.fps) == (clips, frames, 24)


def test_euler_goes_straight_to_each_level() -> None:
    levels = new_scheduler(scheduler(), 6, 3.0, is_euler=True)
    x = noise = torch.randn(1, 48, 2, 2, 2, dtype=torch.float64)
    for sigma, lower in pairwise(levels.sigmas.tolist()):
        x = x + (lower - sigma) * (x - x.sin()) / sigma
    result = sample_flow(lambda x, sigma: x.sin(), noise.float(), levels)
    torch.testing.assert_close(result, x.float(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("is_euler", [False, True])
def test_a_clip_goes_on_from_each_of_its_steps_with_the_same_bits(is_euler: bool) -> None:
    noise, levels = torch.randn(1, 48, 2, 2, 2), new_scheduler(scheduler(), 6, 3.0, is_euler=is_euler)
    flow = partial(sample_flow, lambda x, sigma: x.sin(), noise, levels)
    draws = {"times": (1000, 757, 522), "draw_noise": lambda step: torch.full_like(noise, step)}
    jumps = partial(sample_at, lambda x, sigma: x.sin() * sigma, noise, **draws)
    for sample, count in ((flow, 5), (jumps, 3)):
        states, steps = list[Any](), list[tuple[int, int]]()

        def keep(state: Any, states: list[Any] = states) -> None:
            states.append({name: tensor.clone() for name, tensor in state.items()})

        whole = sample(on_state=keep, on_step=lambda *step, steps=steps: steps.append(step[:2]))
        total = len(steps)
        assert (len(states), steps) == (count, [(step, total) for step in range(1, total + 1)])
        for number, state in enumerate(states, 1):
            steps.clear()
            again = sample(start=state, on_step=lambda *step, steps=steps: steps.append(step[:2]))
            assert torch.equal(again, whole)
            assert steps == [(step, total) for step in range(number + 1, total + 1)]
    for until in range(8):
        assert torch.equal(flow(start=flow(until=until)), flow())


def test_a_clip_that_begins_with_several_frames_adds_as_many_less() -> None:
    plan = WAN.plan(15, "forward", carried_frames=12)
    assert [section.decoded_frames for section in plan] == [113, 121, 121]
    assert [section.overlap_frames for section in plan] == [0, 9, 9]
    assert [section.decode_start for section in plan] == [0, 29, 60]
    assert (plan.total_frames, plan.section_frames, plan.encoded_latents) == (113 + 2 * 112, 112, 3)
    experts = WAN_A14B.plan(15, "forward", carried_frames=12)
    assert (experts.section_frames, experts.encoded_latents) == (72, 21)  # a clip with its pictures


@pytest.mark.parametrize(("clip_frames", "carried_frames"), [(5, 5), (5, 9), (9, 9), (13, 13), (13, 99)])
def test_the_shortest_clip_adds_frames_also_if_it_repeats_as_many_as_it_has(
    clip_frames: int, carried_frames: int
) -> None:
    plan = WAN.plan(4, "forward", clip_frames=clip_frames, carried_frames=carried_frames)
    assert (plan.section_frames, plan.total_frames) == (4, 97)


def test_a_clip_gets_the_colours_of_the_frames_that_it_repeats() -> None:
    originals = torch.rand(5, 8, 8, 3) - 0.5
    clip = torch.cat([originals, torch.rand(8, 8, 8, 3) - 0.5])
    shifted = clip * torch.tensor([0.9, 1.1, 1.0]) + torch.tensor([0.05, 0.0, -0.1])
    torch.testing.assert_close(with_colours(shifted, originals), clip, rtol=0, atol=0.002)
    end = torch.full((1, 8, 8, 3), 0.25)
    held = with_colours(shifted, originals, end)
    torch.testing.assert_close(held[0], clip[0], rtol=0, atol=0.002)
    torch.testing.assert_close(held[-1], end[0], rtol=0, atol=0.01)
    assert with_colours(shifted, 3 * originals).abs().max() == 1


def test_a_clip_has_the_colours_of_the_one_before_and_of_the_first_frame_while_its_words_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = list[tuple[Tensor, Tensor | None]]()

    def change(frames: Tensor, originals: Tensor, end: Tensor | None) -> Tensor:
        seen.append((originals, end))
        return frames - 0.5

    monkeypatch.setattr("diffusers_helper.wan.work.with_colours", change)
    plan = WAN.plan(2, "forward", clip_frames=13, carried_frames=5)
    held = GenerationRequest(prompt="a", model="wan-5b", mode="forward", seconds=2, hold_colours="on")
    others: list[dict[str, Any]] = [{}, {}, {"prompt": "b"}, {"hold_colours": "off"}, {}]
    requests = [replace(held, clip_frames=13, carried_frames=5, **other) for other in others]
    job: Any = SimpleNamespace(
        latents_shape=lambda count: (1, 48, count, 2, 2), sections=plan, family=WAN,
        request_for=lambda number: requests[number - 1],
    )  # fmt: skip
    chain, clips = ClipChain(job, None), list[Tensor]()
    for section in plan.sections[: len(others)]:
        frames = torch.linspace(-0.4, 1.4, section.decoded_frames).view(-1, 1, 1, 1) + section.number / 100
        clips.append(chain.carry(frames, section))
        wanted = frames.clamp(-1, 1) - 0.5 * (section.number > 1)
        assert torch.equal(clips[-1], wanted)
    first = clips[0][:1]
    for (originals, end), before, wanted in zip(seen, clips, (first, None, None, first), strict=False):
        assert torch.equal(originals, before[-5:])
        assert end is wanted is None or torch.equal(end, wanted)


@pytest.mark.slow
@pytest.mark.parametrize("models", ["tiny_wan_fast"], indirect=True)
def test_the_light_decoder_stands_in_for_the_vaes(
    order: GenerationRequest, models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    light = replace(order, decoder="light", seconds=1.0)
    with pytest.raises(InputError, match="decoder is given; expected none"):
        make(light, models, tmp_path / "refused")
    file = tmp_path / "taew2_2.safetensors"
    monkeypatch.setattr(ModelInfo, "small_decoder_file", file)
    monkeypatch.setattr(ModelInfo, "small_decoder", models.info.components["vae"])
    with pytest.raises(LongtakeError, match=r"The light decoder of model .* is not on this machine"):
        make(light, models, tmp_path / "missing")
    decoder = LightDecoder(48, 2)
    save_file(decoder.state_dict(), file)
    break_rungs(monkeypatch, "miopen")
    result, events = make(light, models, tmp_path / "light")
    assert models.convolutions.ladder
    assert (256, 48, 1, 3, 3) in {case.weight for case, _ in models.convolutions.ladder.errors}
    carried = read_tensors(tmp_path / "light/sections/0001.safetensors")[0]["carried"]
    frames = 2 * decoder.decode(result.latents[:, :, :LATENTS]) - 1
    torch.testing.assert_close(carried, frames[[0, -1]])
    assert [line for line in outline(events) if line.startswith("decode 2")] == [
        "decode 2", *(f"decode 2 {number}/4" for number in range(1, 5)),
    ]  # fmt: skip


@pytest.mark.slow
def test_a_job_that_is_killed_ten_times_gives_the_same_bytes(
    order: GenerationRequest, whole: Result, models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "SAVE_SECONDS", 0.0)
    chance, broken, events = random.Random(10), tmp_path / "broken", list[Event]()

    def run(last: int) -> Result:
        first = len(events)

        def stop(event: Event) -> None:
            events.append(event)
            if len(events) - first == last:
                raise Stop

        earlier = broken if broken.exists() else None
        return generate(order, models, folder=broken, on_event=stop, resume_from=earlier)

    for _ in range(10):
        with pytest.raises(Stop):
            run(chance.randint(2, 9))
    result = run(1000)
    assert result.video.read_bytes() == whole.video.read_bytes(), outline(events)
    assert torch.equal(result.latents, whole.latents)
    steps = [(event.section, event.step) for event in events if isinstance(event, StepDone)]
    assert steps == sorted(steps)  # only the step that was interrupted is made again
    assert not (broken / "sections/steps.safetensors").exists()
