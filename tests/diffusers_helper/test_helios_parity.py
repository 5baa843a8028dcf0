"""Tests that `generate` and diffusers' own Helios pipelines make the same video from the same noise.

diffusers cuts the video to 4 n + 1 frames, where `generate` keeps all 33 of every section.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import imageio.v3 as imageio
import numpy as np
import pytest
import torch
from diffusers import HeliosPipeline, HeliosPyramidPipeline, HeliosTransformer3DModel
from PIL import Image
from torch import Tensor

from diffusers_helper.cancel import CancelToken
from diffusers_helper.conditions.footage import all_frames
from diffusers_helper.helios.schedule import block_noise
from diffusers_helper.loading.loaders import Models
from diffusers_helper.pipeline import generate
from diffusers_helper.request import GenerationRequest
from diffusers_helper.sampling.schedule import noise_for, uniform_for
from tests.support.clips import scene
from tests.support.making import Frames, load_tiny, tiny_request, write_scene

SEED, SIDE, GRID = 7, 64, 8
STARTS = ("words", "picture", "video")


def request_from(start: str, model: Path, folder: Path, sections: int, **settings: Any) -> GenerationRequest:
    given = {"model": str(model), "mode": "forward", "seconds": 33 * sections / 24, "resolution": SIDE}
    if start == "video":
        imageio.imwrite(folder / "before.mp4", scene(105, SIDE, SIDE), fps=24, codec="libx264")
        return tiny_request(folder / "before.mp4", **given, video=str(folder / "before.mp4"), **settings)
    if start == "words":
        return replace(tiny_request(Path("none"), **given, **settings), image="")
    return tiny_request(write_scene(folder / "scene.png", SIDE, SIDE), **given, **settings)


def drawn_before(start: str) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """Return what `generate` draws before the first section: noise for the VAE, levels, and noise."""
    count = 27 if start == "video" else 1
    shapes = [(1, 16, 1, GRID, GRID), (1, 16, count, GRID, GRID)]
    blurs = [noise_for(SEED, "blur", n, shape) for n, shape in enumerate(shapes)]
    levels = [uniform_for(SEED, "levels", n, shape[2]) for n, shape in enumerate(shapes)]
    whole = (1, 16, 9, GRID, GRID)
    if start == "video":
        of_vae = [
            noise_for(SEED, "first", 0, shapes[0]),
            *(noise_for(SEED, "tail", n, whole) for n in range(3)),
        ]
        return of_vae, [levels[0], *levels[1].split(9)], [blurs[0], *blurs[1].split(9, dim=2)]
    if start == "picture":
        return (
            [noise_for(SEED, "start_latent", 0, shapes[0]), noise_for(SEED, "still", 0, whole)],
            levels,
            blurs,
        )
    return [], [], []


class Diffusers:
    """A pipeline of diffusers over the same parts, given the noise that `generate` draws."""

    def __init__(self, models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
        self._models, self._monkeypatch = models, monkeypatch
        models.load(CancelToken())
        self._is_pyramid = models.info.multiple == 64
        parts: dict[str, Any] = {name: models.component(name) for name in models.info.components}
        own = {"is_distilled": True} if self._is_pyramid else {}
        kind: Any = HeliosPyramidPipeline if self._is_pyramid else HeliosPipeline
        self._pipeline = kind(**parts, **own)
        self._pipeline.set_progress_bar_config(disable=True)

    def _hand_out(self, start: str, patch: pytest.MonkeyPatch) -> None:
        of_vae, levels, blurs = map(iter, drawn_before(start))
        section, stages = iter(range(1, 1000)), iter(range(1000))

        def noise(shape: tuple[int, ...], **_: Any) -> Tensor:
            blur = next(blurs, None)
            return noise_for(SEED, "noise", next(section), tuple(shape)) if blur is None else blur

        def of_blocks(_: Any, *size: Any) -> Tensor:
            number = next(stages)
            place, (height, width) = 3 * (number // 2 + 1) + number % 2 + 1, size[3:5]
            values = noise_for(SEED, "stage", place, (16 * 9 * (height // 2) * (width // 2), 4))
            return block_noise(values, (1, 16, 9, height, width), 1 / 3)

        name = "pipeline_helios_pyramid" if self._is_pyramid else "pipeline_helios"
        module = f"diffusers.pipelines.helios.{name}"
        patch.setattr(f"{module}.randn_tensor", noise)
        patch.setattr(f"{module}.prompt_clean", lambda text: text)
        patch.setattr("diffusers.models.autoencoders.vae.randn_tensor", lambda *_, **__: next(of_vae))
        patch.setattr(torch, "rand", lambda *_, **__: next(levels))
        if self._is_pyramid:
            patch.setattr(HeliosPyramidPipeline, "sample_block_noise", of_blocks)

    def make(self, request: GenerationRequest, start: str, sections: int, output_type: str) -> Any:
        given: dict[str, Any] = {}
        if start == "picture":
            given["image"] = Image.open(request.image)
        elif start == "video":
            given["video"] = list(all_frames(Path(request.video), 24))
        if self._is_pyramid:
            stages = [request.steps // 3] * 3
            given |= {"pyramid_num_inference_steps_list": stages, "is_amplify_first_chunk": True}
        else:
            given["num_inference_steps"] = request.steps
        with self._monkeypatch.context() as patch:
            self._hand_out(start, patch)
            return self._pipeline(
                prompt=request.prompt, negative_prompt=request.negative, height=SIDE, width=SIDE,
                num_frames=33 * sections, guidance_scale=request.cfg, output_type=output_type, **given,
            ).frames  # fmt: skip


def check(
    models: Models, request: GenerationRequest, start: str, sections: int, folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    frames = Frames(monkeypatch)
    result = generate(request, models, folder=folder)
    theirs = Diffusers(models, monkeypatch)
    their_latents = theirs.make(request, start, sections, "latent")[:, :, -9 * sections :]
    assert result.latents.shape == their_latents.shape == (1, 16, 9 * sections, GRID, GRID)
    assert their_latents.std() > 0.1
    torch.testing.assert_close(result.latents, their_latents, rtol=0, atol=1e-4)

    their_frames = theirs.make(request, start, sections, "np")[0]
    made = frames.all()
    assert len(made) == 33 * sections
    assert len(their_frames) == (33 * sections - 1) // 4 * 4 + 1
    assert their_frames.std(axis=0).mean() > 0.01
    assert np.abs(made[: len(their_frames)] / 255 - their_frames).max() <= 1 / 255


@pytest.fixture(scope="module")
def base(tiny_helios: Path) -> Models:
    return load_tiny(tiny_helios)


@pytest.fixture(scope="module")
def distilled(tiny_helios_distilled: Path) -> Models:
    return load_tiny(tiny_helios_distilled)


@pytest.mark.parametrize("sections", [1, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("start", STARTS)
def test_base_makes_what_diffusers_makes(
    start: str, sections: int, base: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = request_from(
        start, Path(str(base.info.folder)), tmp_path, sections, cfg=5.0, negative="a green square slowly",
        steps=4,
    )  # fmt: skip
    check(base, request, start, sections, tmp_path / "job", monkeypatch)


@pytest.mark.parametrize("sections", [1, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("start", STARTS)
def test_distilled_makes_what_diffusers_makes_in_a_pyramid(
    start: str, sections: int, distilled: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = request_from(start, Path(str(distilled.info.folder)), tmp_path, sections, steps=6)
    check(distilled, request, start, sections, tmp_path / "job", monkeypatch)


def test_bf16_computes_as_in_diffusers_with_the_same_parts_in_fp32(
    base: Models, tiny_helios: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Only the first pass is compared: diffusers' sampling between the passes is in bf16, and ours in fp32.
    passes: list[Tensor] = []
    forward = HeliosTransformer3DModel.forward

    def kept(*args: Any, **named: Any) -> Any:
        found = forward(*args, **named)
        passes.append(found[0].float())
        return found

    monkeypatch.setattr(HeliosTransformer3DModel, "forward", kept)
    request = request_from("picture", tiny_helios, tmp_path, 1, weight_dtype="bf16", steps=2)
    generate(request, base, folder=tmp_path / "job")
    theirs = Diffusers(base, monkeypatch)
    half: Any = HeliosTransformer3DModel.from_pretrained(
        tiny_helios / "transformer", torch_dtype=torch.bfloat16
    )
    theirs._pipeline.transformer = half
    theirs.make(request, "picture", 1, "latent")
    torch.nn.Module.to(half, torch.bfloat16)  # all of it, which would be wrong
    theirs.make(request, "picture", 1, "latent")
    assert torch.equal(passes[0], passes[2])
    assert not torch.equal(passes[0], passes[4])
