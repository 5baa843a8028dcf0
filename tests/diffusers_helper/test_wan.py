"""Tests that jobs with Wan have what jobs with other models have, and that their clips hang together."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import av
import pytest
import torch

from diffusers_helper.errors import InputError
from diffusers_helper.events import Event, StepDone
from diffusers_helper.families.wan import WAN
from diffusers_helper.loading.loaders import Models
from diffusers_helper.models.registry import find_model, plan_of
from diffusers_helper.output import saved_steps
from diffusers_helper.pipeline import Result, generate
from diffusers_helper.provenance.lineage import Lineage, Span
from diffusers_helper.provenance.recipe import read_recipe
from diffusers_helper.request import GenerationRequest
from tests.support.making import Stop, load_tiny, make, outline, tiny_request, write_scene

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


@pytest.fixture(scope="module")
def whole(order: GenerationRequest, models: Models, tmp_path_factory: pytest.TempPathFactory) -> Result:
    """Return an uninterrupted job. Tests only read it."""
    return make(order, models, tmp_path_factory.mktemp("jobs") / "whole")[0]


@pytest.mark.parametrize(
    ("seconds", "clip_frames", "clips", "frames"),
    [(5, 0, 1, 121), (15, 0, 3, 361), (2, 13, 4, 49), (2, 15, 4, 49), (5, 49, 2, 97)],
)
def test_the_first_clip_has_a_frame_more_than_the_others(
    seconds: float, clip_frames: int, clips: int, frames: int
) -> None:
    plan = WAN.plan(seconds, "forward", clip_frames=clip_frames)
    assert (len(plan), plan.total_frames, plan.fps) == (clips, frames, 24)


def test_the_video_has_the_frames_of_all_clips(order: GenerationRequest, whole: Result) -> None:
    assert whole.frames == plan_of(order).total_frames == 49
    with av.open(whole.video) as container:
        assert sum(1 for _ in container.decode(video=0)) == 49


@pytest.mark.slow
@pytest.mark.parametrize("where", ["step 3 3/", "decode 2 1/", "finished 2/4"])
def test_a_job_that_is_killed_anywhere_gives_the_same_bytes(
    where: str, order: GenerationRequest, whole: Result, models: Models, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(saved_steps, "INTERVAL_SECONDS", 0.0)

    def stop(event: Event) -> None:
        if outline([event])[0].startswith(where):
            raise Stop

    broken = tmp_path / "broken"
    with pytest.raises(Stop):
        generate(order, models, folder=broken, on_event=stop)
    result, events = make(order, models, broken, resume_from=broken)
    assert result.video.read_bytes() == whole.video.read_bytes()
    assert torch.equal(result.latents, whole.latents)
    if where.startswith("step"):  # the step that was interrupted is the first one that is made again
        first = next(event for event in events if isinstance(event, StepDone))
        assert (first.section, first.step) == (int(where[5]), int(where[7]))
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


@pytest.mark.parametrize(
    ("name", "changes", "sentence"),
    [
        ("wan-5b", {"end_image": "x.png"}, "end_image is given; expected none for model wan-5b."),
        ("wan-5b", {"pictures": "1s: x.png"}, "pictures is given; expected none for model wan-5b."),
        ("wan-a14b", {"image": "", "end_image": ""}, "Model wan-a14b makes videos of pictures."),
        (
            "wan-5b-fast",
            {"steps": 25},
            "steps is 25; expected 3, the steps that model wan-5b-fast was made for.",
        ),
    ],
)
def test_what_a_model_cannot_do_is_refused_in_a_sentence(
    name: str, changes: dict[str, Any], sentence: str
) -> None:
    request = GenerationRequest(image="a.png", prompt="a boat", mode="forward")
    with pytest.raises(InputError) as caught:
        find_model(name).check(replace(request, **changes))
    assert str(caught.value).startswith(sentence)
    find_model("wan-a14b").check(replace(request, end_image="x.png"))
