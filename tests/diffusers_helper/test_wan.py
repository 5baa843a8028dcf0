"""Tests that jobs with Wan have what jobs with other models have, and that their clips hang together."""

import random
import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import av
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from diffusers_helper.errors import InputError, LongtakeError
from diffusers_helper.events import Event, StepDone
from diffusers_helper.families.wan import WAN
from diffusers_helper.loading.loaders import Models
from diffusers_helper.models.registry import ModelInfo, plan_of
from diffusers_helper.output import checkpoints
from diffusers_helper.output.checkpoints import read_tensors
from diffusers_helper.output.previews import LightDecoder
from diffusers_helper.pipeline import Result, generate
from diffusers_helper.provenance.lineage import Lineage, Span
from diffusers_helper.provenance.recipe import read_recipe
from diffusers_helper.request import GenerationRequest
from diffusers_helper.wan.colours import with_colours
from diffusers_helper.wan.schedule import new_scheduler, sample_flow
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


def test_a_clip_that_begins_with_several_frames_adds_as_many_less() -> None:
    plan = WAN.plan(15, "forward", carried_frames=12)
    assert [section.decoded_frames for section in plan] == [113, 121, 121]
    assert [section.overlap_frames for section in plan] == [0, 9, 9]
    assert [section.decode_start for section in plan] == [0, 29, 60]
    assert (plan.total_frames, plan.section_frames, plan.encoded_latents) == (113 + 2 * 112, 112, 3)


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
@pytest.mark.parametrize("models", ["tiny_wan_fast"], indirect=True)
def test_colours_are_held_until_the_words_change(
    order: GenerationRequest, models: Models, tmp_path: Path
) -> None:
    changing = replace(order, prompt="a boat [0.5s: it rains]", seconds=1.0)

    def colours(request: GenerationRequest, name: str) -> list[Tensor]:
        """Return the mean colours of the first frame, and of the last one of each clip."""
        job = make(request, models, tmp_path / name)[0].video.parent
        frames = [read_tensors(file)[0]["carried"] for file in sorted((job / "sections").iterdir())]
        return [frames[0][0].mean(dim=(0, 1)), *(pair[-1].mean(dim=(0, 1)) for pair in frames)]

    start, first, *others = colours(replace(order, hold_colours="on"), "held")
    assert all((colour - start).abs().max() < (first - start).abs().max() / 2 for colour in others)
    plain, held = (colours(replace(changing, hold_colours=way), way) for way in ("off", "on"))
    torch.testing.assert_close(held, plain, rtol=0, atol=0)


def test_the_video_has_the_frames_of_all_clips(order: GenerationRequest, whole: Result) -> None:
    assert whole.frames == plan_of(order).total_frames == 49
    with av.open(whole.video) as container:
        assert sum(1 for _ in container.decode(video=0)) == 49


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


@pytest.mark.slow
def test_a_branch_begins_with_the_frame_of_the_clip_that_it_keeps(
    order: GenerationRequest, whole: Result, models: Models, tmp_path: Path
) -> None:
    earlier = tmp_path / "earlier"
    shutil.copytree(whole.video.parent, earlier)
    for number in (3, 4):
        (earlier / f"sections/{number:04}.safetensors").unlink()
    lineage = Lineage((Span.of(2, order),), kept=2)
    same, _ = make(order, models, tmp_path / "same", resume_from=earlier, lineage=lineage)
    assert torch.equal(same.latents, whole.latents)
    other = replace(order, prompt="the blue square moves left", seed=8)
    branch, _ = make(other, models, tmp_path / "branch", resume_from=earlier, lineage=lineage)
    assert torch.equal(branch.latents[:, :, : 2 * LATENTS], whole.latents[:, :, : 2 * LATENTS])
    assert not torch.equal(branch.latents[:, :, -LATENTS:], whole.latents[:, :, -LATENTS:])


@pytest.mark.slow
def test_the_recipe_of_the_video_makes_it_again(
    order: GenerationRequest, whole: Result, models: Models, tmp_path: Path
) -> None:
    recipe = read_recipe(whole.video)
    assert recipe is not None
    settings = {**recipe.settings, "model": order.model, "image": order.image}
    again, _ = make(GenerationRequest.from_dict(settings), models, tmp_path / "again")
    assert again.video.read_bytes() == whole.video.read_bytes()
