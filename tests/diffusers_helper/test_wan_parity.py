"""Tests that `generate` makes what diffusers' own Wan pipelines make from the same noise.

Each clip of a chain is compared with a call of the pipeline for that clip.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import WanImageToVideoPipeline, WanPipeline
from PIL import Image
from torch import Tensor

from diffusers_helper.cancel import CancelToken
from diffusers_helper.loading.loaders import Models
from diffusers_helper.output.checkpoints import read_tensors
from diffusers_helper.pipeline import Result, generate
from diffusers_helper.request import GenerationRequest
from diffusers_helper.sampling.schedule import noise_for
from tests.support.making import load_tiny, tiny_request, write_scene

SEED, CLIPS, FRAMES, LATENTS = 7, 3, 13, 4
HEIGHT, WIDTH = 64, 96
SHAPE = (1, 48, LATENTS, HEIGHT // 16, WIDTH // 16)


def request_from(start: str, model: Path, scene: Path, **settings: Any) -> GenerationRequest:
    length = {"seconds": 12 * CLIPS / 24, "clip_frames": FRAMES, "resolution": 78}
    request = tiny_request(scene, model=str(model), mode="forward", **length, **settings)
    return replace(request, image="", shape="4:3") if start == "words" else request


def frames_handed_on(result: Result, clip: int) -> Tensor:
    tensors, _ = read_tensors(result.video.parent / f"sections/{clip:04}.safetensors")
    return tensors["carried"][1:].permute(0, 3, 1, 2)


def picture_of(start: str, result: Result, clip: int, scene: Path) -> Any:
    if clip > 1:
        return frames_handed_on(result, clip - 1)
    return None if start == "words" else Image.open(scene)


def clip_of_diffusers(models: Models, request: GenerationRequest, clip: int, image: Any) -> Tensor:
    models.load(CancelToken())
    parts: dict[str, Any] = {name: models.component(name) for name in models.info.components}
    options: dict[str, Any] = {} if image is None else {"image": image}
    kind: Any = WanPipeline if image is None else WanImageToVideoPipeline
    pipeline = kind(**parts, expand_timesteps=True)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline(
        prompt=request.prompt, negative_prompt=request.negative, height=HEIGHT, width=WIDTH,
        num_frames=FRAMES, num_inference_steps=request.steps, guidance_scale=request.cfg,
        output_type="latent", latents=noise_for(SEED, "noise", clip, SHAPE), **options,
    ).frames  # fmt: skip


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_scene(tmp_path_factory.mktemp("scene") / "scene.png", WIDTH, HEIGHT)


@pytest.mark.parametrize("start", ["words", "picture"])
def test_three_clips_are_what_diffusers_makes(
    start: str, tiny_wan: Path, scene: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("pipeline_wan", "pipeline_wan_i2v"):  # it needs a package that mends text
        monkeypatch.setattr(f"diffusers.pipelines.wan.{module}.prompt_clean", lambda text: text)
    models = load_tiny(tiny_wan)
    request = request_from(start, tiny_wan, scene, steps=5, cfg=5.0, negative="a green square slowly")
    result = generate(request, models, folder=tmp_path / "job")
    assert result.frames == 12 * CLIPS + 1
    for clip, latents in enumerate(result.latents.split(LATENTS, dim=2), 1):
        image = picture_of(start, result, clip, scene)
        expected = clip_of_diffusers(models, request, clip, image)
        assert expected.std() > 0.1
        torch.testing.assert_close(latents, expected, rtol=0, atol=1e-4)


def clip_in_plain_arithmetic(
    models: Models, start: Tensor | None, words: Tensor, clip: int, shape: tuple[int, ...]
) -> Tensor:
    """Sample a clip with the distilled model as its authors describe it, in double precision."""
    transformer: Any = models.component("transformer")
    x = noise_for(SEED, "noise", clip, shape).double()
    x0 = x
    for step, time in enumerate((1000, 757, 522)):
        sigma = time / 1000
        if step:
            x = (1 - sigma) * x0 + sigma * noise_for(SEED, "step", 3 * clip + step, shape).double()
        times = torch.full((1, shape[2], 2, 3), time)
        if start is not None:
            x[:, :, : start.shape[2]], times[:, : start.shape[2]] = start, 0
        velocity = transformer(x.float(), times.flatten(1), words, return_dict=False)[0].double()
        x0 = x - sigma * velocity
    if start is not None:
        x0[:, :, : start.shape[2]] = start
    return x0.float()


@torch.inference_mode()
@pytest.mark.parametrize(
    ("start", "carried", "sizes"), [("words", 1, [4, 4, 4]), ("picture", 6, [3, 4, 4, 4])]
)
def test_the_fast_model_samples_at_its_three_times(
    start: str, carried: int, sizes: list[int], tiny_wan_fast: Path, scene: Path, tmp_path: Path
) -> None:
    models = load_tiny(tiny_wan_fast)
    request = request_from(start, tiny_wan_fast, scene, steps=3, carried_frames=carried)
    result = generate(request, models, folder=tmp_path / "job")
    encodings, _ = read_tensors(tmp_path / "job/encodings.safetensors")
    words = torch.zeros(1, 512, encodings["states_0"].shape[2])
    words[:, : encodings["states_0"].shape[1]] = encodings["states_0"]
    vae: Any = models.component("vae")
    clips = result.latents.split(sizes, dim=2)
    assert result.frames == sum(4 * size - 3 for size in sizes) - (len(sizes) - 1) * (carried // 4 * 4 + 1)
    for clip, latents in enumerate(clips, 1):
        first = encodings.get("start")
        if clip > 1:
            frames = frames_handed_on(result, clip - 1).transpose(0, 1).unsqueeze(0)
            first = (vae.encode(frames).latent_dist.mode() - 0.1) / 0.8  # the tiny VAE's mean and deviation
        expected = clip_in_plain_arithmetic(models, first, words, clip, tuple(latents.shape))
        assert expected.std() > 0.1
        torch.testing.assert_close(latents, expected, rtol=0, atol=1e-4)


def begin_with(frames: Tensor, pipeline: Any) -> None:
    """Have a pipeline begin with several frames (T, 3, H, W), of which it takes only one by itself."""
    vae, prepare = pipeline.vae, pipeline.prepare_latents

    def prepare_with_frames(*args: Any) -> tuple[Tensor, Tensor]:
        latents, condition = prepare(*args)
        video, last_image = torch.zeros(1, 3, FRAMES, HEIGHT, WIDTH), args[-1]
        video[0, :, : len(frames)] = frames.transpose(0, 1)
        if last_image is not None:
            video[:, :, -1] = last_image
        mean, std = (torch.tensor(vae.config[name]) for name in ("latents_mean", "latents_std"))
        encoded = vae.encode(video).latent_dist.mode().movedim(1, -1)
        condition[:, 4:] = ((encoded - mean) / std).movedim(-1, 1)
        condition[:, :4, : len(frames) // 4 + 1] = 1
        return latents, condition

    pipeline.prepare_latents = prepare_with_frames


@pytest.mark.parametrize(("has_end", "carried", "sizes"), [(False, 1, [4, 4]), (True, 5, [3, 4, 4])])
def test_two_experts_make_what_diffusers_makes(
    has_end: bool, carried: int, sizes: list[int], tiny_wan_a14b: Path, scene: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("diffusers.pipelines.wan.pipeline_wan_i2v.prompt_clean", lambda text: text)
    end = write_scene(tmp_path / "end.png", WIDTH, HEIGHT)
    Image.open(end).transpose(Image.Transpose.ROTATE_180).save(end)
    models = load_tiny(tiny_wan_a14b)
    request = tiny_request(
        scene, model=str(tiny_wan_a14b), mode="forward", seconds=24 / 16, clip_frames=FRAMES, resolution=78,
        steps=6, cfg=3.5, negative="a green square slowly", end_image=str(end) if has_end else "",
        carried_frames=carried,
    )  # fmt: skip
    result = generate(request, models, folder=tmp_path / "job")
    assert (result.frames, result.latents.shape) == (25, (1, 16, sum(sizes), HEIGHT // 8, WIDTH // 8))
    parts: dict[str, Any] = {name: models.component(name) for name in models.info.components}
    pipeline: Any = WanImageToVideoPipeline(**parts, boundary_ratio=0.9)
    pipeline.set_progress_bar_config(disable=True)
    for clip, latents in enumerate(result.latents.split(sizes, dim=2), 1):
        last = {"last_image": Image.open(end)} if has_end and clip == len(sizes) else {}
        if carried > 1 and clip > 1:
            begin_with(frames_handed_on(result, clip - 1), pipeline)
        expected = pipeline(
            image=Image.open(scene) if clip == 1 else frames_handed_on(result, clip - 1)[:1],
            prompt=request.prompt, height=HEIGHT, width=WIDTH, negative_prompt=request.negative,
            num_frames=4 * latents.shape[2] - 3, num_inference_steps=6,
            guidance_scale=3.5, output_type="latent", **last,
            latents=noise_for(SEED, "noise", clip, tuple(latents.shape)),
        ).frames  # fmt: skip
        assert expected.std() > 0.1
        torch.testing.assert_close(latents, expected, rtol=0, atol=1e-4)
