"""Tests that `generate` and diffusers' own FramePack pipeline make the same video from the same noise.

docs/parity.md lists what had to be matched for this.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, HunyuanVideoFramepackPipeline
from PIL import Image

from diffusers_helper.cancel import CancelToken
from diffusers_helper.families.framepack import COMPONENTS
from diffusers_helper.families.packing import Mode
from diffusers_helper.framepack.work import encode_vision
from diffusers_helper.loading.loaders import Models
from diffusers_helper.pipeline import generate
from diffusers_helper.request import GenerationRequest
from diffusers_helper.sampling.schedule import noise_for
from tests.support.making import Frames, seconds_for, tiny_request, write_scene

SAMPLING_TYPES = {"inverted": "inverted_anti_drifting", "forward": "vanilla"}


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    """Return a picture of one of the model's own shapes, so that neither side has to crop it."""
    return write_scene(tmp_path / "scene.png", 64, 64)


class Diffusers:
    """diffusers' pipeline over the same parts, given the noise that `generate` draws."""

    def __init__(self, models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self._models = models
        models.load(CancelToken())
        parts: dict[str, Any] = {name: models.component(name) for name in COMPONENTS}
        scheduler = FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True)
        self._pipeline = HunyuanVideoFramepackPipeline(**parts, scheduler=scheduler)
        self._pipeline.set_progress_bar_config(disable=True)

    def _hand_out(self, seed: int) -> None:
        section: Iterator[int] = iter(range(1, 1000))

        def noise(shape: tuple[int, ...], **_: Any) -> torch.Tensor:
            return noise_for(seed, "noise", next(section), tuple(shape))

        def start_noise(shape: tuple[int, ...], **_: Any) -> torch.Tensor:
            return noise_for(seed, "start_latent", 0, tuple(shape))

        pipelines = "diffusers.pipelines.hunyuan_video.pipeline_hunyuan_video_framepack"
        self._monkeypatch.setattr(f"{pipelines}.randn_tensor", noise)
        self._monkeypatch.setattr("diffusers.models.autoencoders.vae.randn_tensor", start_noise)

    def _see(self, picture: Image.Image) -> None:
        """Replace diffusers' own processing, which works on floats and differs by up to 2 of 255.

        Of an end picture, diffusers encodes what it shows, but does not use it.
        """
        encoder, processor = (
            self._models.component("image_encoder"),
            self._models.component("feature_extractor"),
        )
        vision = encode_vision(encoder, processor, picture)
        self._monkeypatch.setattr(self._pipeline, "encode_image", lambda image, device: vision)

    def make(self, request: GenerationRequest, num_sections: int, output_type: str) -> Any:
        picture, end = (Image.open(path) if path else None for path in (request.image, request.end_image))
        assert picture is not None
        self._hand_out(request.seed)
        self._see(picture)
        return self._pipeline(
            image=picture, last_image=end, prompt=request.prompt, negative_prompt=request.negative, height=64,
            width=64, num_frames=33 * num_sections, num_inference_steps=request.steps,
            guidance_scale=request.guidance, true_cfg_scale=request.cfg,
            sampling_type=SAMPLING_TYPES[request.mode], output_type=output_type,
        ).frames  # fmt: skip


def check(
    models: Models,
    request: GenerationRequest,
    num_sections: int,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    frames = Frames(monkeypatch)
    result = generate(request, models, folder=folder)
    theirs = Diffusers(models, monkeypatch)
    their_latents = theirs.make(request, num_sections, "latent")[-1]
    assert result.latents.shape == their_latents.shape == (1, 16, 9 * num_sections + 1, 8, 8)
    assert their_latents.std() > 0.1
    torch.testing.assert_close(result.latents, their_latents, rtol=0, atol=1e-4)

    their_frames = theirs.make(request, num_sections, "np")[0]
    assert result.frames == len(frames.all()) == len(their_frames) == 36 * num_sections + 1
    assert their_frames.std(axis=0).mean() > 0.01
    difference = np.abs(frames.all() / 255 - their_frames)
    assert difference.max() <= 1 / 255


@pytest.mark.slow
@pytest.mark.parametrize("num_sections", [1, 2, 3, 5])
@pytest.mark.parametrize("mode", ["inverted", "forward"])
def test_latents_and_frames_are_those_of_diffusers(
    mode: Mode,
    num_sections: int,
    models: Models,
    picture: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    request = tiny_request(picture, mode=mode, seconds=seconds_for(num_sections), sampler="euler", steps=3)
    check(models, request, num_sections, tmp_path / "job", monkeypatch)


def test_real_guidance_is_that_of_diffusers(
    models: Models, picture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = tiny_request(
        picture, negative="a green square slowly", cfg=3.0, guidance=4.0, sampler="euler", steps=3
    )
    check(models, request, 1, tmp_path / "job", monkeypatch)
