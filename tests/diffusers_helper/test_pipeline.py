"""Tests of whole jobs over a tiny model: how videos grow, previews, noise, and what is refused at once."""

import json
from pathlib import Path
from typing import Any

import imageio.v3 as imageio
import numpy as np
import pytest
import torch
from PIL import Image

from diffusers_helper.errors import InputError
from diffusers_helper.events import (
    Event,
    JobStarted,
    SectionFinished,
    StepDone,
)
from diffusers_helper.families.packing import Mode
from diffusers_helper.loading.loaders import Models
from diffusers_helper.pipeline import generate
from diffusers_helper.request import GenerationRequest
from diffusers_helper.sampling.schedule import noise_for
from tests.support.making import load_tiny, make, outline, seconds_for, tiny_request, write_scene

ShortJob = tuple[GenerationRequest, list[Event], Path]


@pytest.fixture
def scene(tmp_path: Path) -> Path:
    return write_scene(tmp_path / "scene.png", 90, 100)


@pytest.fixture(scope="module")
def short_job(models: Models, tmp_path_factory: pytest.TempPathFactory) -> ShortJob:
    folder = tmp_path_factory.mktemp("short")
    request = tiny_request(write_scene(folder / "scene.png", 90, 100), prompt="the red zebra")
    return request, make(request, models, folder / "job")[1], folder / "job"


def frames_in(video: Path) -> int:
    return len(imageio.imread(video, plugin="pyav"))


def test_a_loaded_model_is_not_loaded_again(short_job: ShortJob, models: Models, tmp_path: Path) -> None:
    _, events = make(short_job[0], models, tmp_path / "second")
    assert "load" not in outline(events)


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "lengths"), [("inverted", [33, 69, 109]), ("forward", [37, 73, 109])])
def test_the_video_grows_by_sections(
    mode: Mode, lengths: list[int], models: Models, scene: Path, tmp_path: Path
) -> None:
    request = tiny_request(scene, mode=mode, seconds=seconds_for(3), steps=1)
    result, events = make(request, models, tmp_path / "job")
    finished = [event for event in events if isinstance(event, SectionFinished)]
    assert [event.frames for event in finished] == lengths
    added = [0, 36, 40] if mode == "inverted" else [0, 0, 0]
    assert [event.added_in_front for event in finished] == added
    assert len({event.video for event in finished}) == 3
    for event in finished[1:]:  # the first version is gone, as only the last two are kept
        assert Path(event.video).is_absolute()
        assert frames_in(Path(event.video)) == event.frames
    assert frames_in(result.video) == 109
    assert result.latents.shape[2] == 28


def test_without_real_guidance_the_model_is_not_asked_about_the_negative_prompt(
    models: Models, scene: Path, tmp_path: Path
) -> None:
    plain, negated = (
        make(tiny_request(scene, steps=1, negative=text), models, tmp_path / f"job {text}")[0].latents
        for text in ("", "a green square")
    )
    assert torch.equal(plain, negated)


def test_previews_show_the_section(short_job: ShortJob) -> None:
    _, events, _ = short_job
    shown = [event.preview for event in events if isinstance(event, StepDone) and event.preview]
    assert shown
    with Image.open(shown[0]) as preview:
        assert preview.format == "WEBP"
        assert getattr(preview, "n_frames", 1) == 9
        started = events[0]
        assert isinstance(started, JobStarted)
        assert preview.size == (started.width // 2, started.height // 2)
        assert np.asarray(preview.convert("RGB")).std() > 5


def test_the_folder_says_what_was_made_of_what(short_job: ShortJob) -> None:
    request, _, folder = short_job
    kept = GenerationRequest.from_dict(json.loads((folder / "request.json").read_text(encoding="utf-8")))
    assert kept == request
    with Image.open(folder / "input.png") as picture, Image.open(request.image) as given:
        assert np.array_equal(np.asarray(picture), np.asarray(given))


# The start of a section


def test_noise_depends_on_seed_purpose_and_section_alone() -> None:
    shape = (1, 16, 9, 4, 4)
    first = noise_for(1, "noise", 1, shape)
    torch.manual_seed(5)
    assert torch.equal(first, noise_for(1, "noise", 1, shape))
    others = [noise_for(2, "noise", 1, shape), noise_for(1, "noise", 2, shape)]
    others.append(noise_for(1, "start_latent", 1, shape))
    assert all((first - other).abs().mean() > 0.5 for other in others)
    assert noise_for(2**63 - 1, "noise", 100, shape).std() == pytest.approx(1, abs=0.1)


# Refusals, before anything is loaded


def refused(request: GenerationRequest, tiny_model: Path, folder: Path, **settings: Any) -> str:
    models = load_tiny(tiny_model)
    events: list[Event] = []
    with pytest.raises(InputError) as caught:
        generate(request, models, folder=folder, on_event=events.append, **settings)
    assert not models._components
    assert not events
    return caught.value.message


def test_what_cannot_be_used_is_refused_before_anything_is_loaded(
    tiny_model: Path, scene: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "job"
    assert "cannot be read" in refused(tiny_request(tmp_path / "none.png"), tiny_model, folder)
    long = tiny_request(scene, prompt="red " * 257)
    assert "257 tokens" in refused(long, tiny_model, folder)
    used = tmp_path / "used"
    (used / "segments").mkdir(parents=True)
    assert "another video" in refused(tiny_request(scene), tiny_model, used)
    assert not folder.exists()
