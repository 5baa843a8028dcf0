"""Tests of a single picture: the start picture, changed by words."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from diffusers_helper.framepack import work as framepack
from diffusers_helper.framepack.work import FramePackCondition
from diffusers_helper.loading.loaders import Models
from diffusers_helper.output.checkpoints import read_tensors
from diffusers_helper.provenance.recipe import read_recipe
from diffusers_helper.request import GenerationRequest
from diffusers_helper.sampling.guidance import CleanLatents
from tests.support.clips import read
from tests.support.making import make, tiny_request, write_scene


def test_pictures_at_times_are_controls_at_their_places(
    models: Models, small_scene: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = [write_scene(tmp_path / f"{name}.png", 64, 64) for name in "ab"]
    Image.open(others[1]).transpose(Image.Transpose.ROTATE_180).save(others[1])
    contexts: list[CleanLatents] = []
    shown: list[FramePackCondition] = []
    made_by = framepack.denoiser

    def note(network: Any, condition: FramePackCondition, context: CleanLatents, passes: Any) -> Any:
        contexts.append(context)
        shown.append(condition)
        return made_by(network, condition, context, passes)

    monkeypatch.setattr(framepack, "denoiser", note)
    pictures = f"1.333s: {others[0]}\n0.4s: {others[1]}"
    request = tiny_request(small_scene, one_frame=1, steps=1, pictures=pictures)
    made, _ = make(request, models, tmp_path / "job")
    encodings, _ = read_tensors(tmp_path / "job" / "encodings.safetensors")
    (context,), (condition,) = contexts, shown
    assert context.indices.clean == (0, 3, 10)
    assert context.indices.noisy == (1,)
    seen = torch.cat([encodings["start_pictures_1"], encodings["start_pictures_2"]], dim=2)
    assert torch.equal(context.history_1x, seen)
    assert not torch.equal(seen[:, :, 0], seen[:, :, 1])
    assert not context.history_2x.any()
    vision = 0.7 * encodings["vision"]
    vision += 0.15 * encodings["vision_pictures_1"] + 0.15 * encodings["vision_pictures_2"]
    torch.testing.assert_close(condition.image_embeds, vision)
    alone, _ = make(replace(request, pictures=""), models, tmp_path / "alone")
    assert not torch.equal(made.latents, alone.latents)


def test_the_picture_depends_on_its_time_and_its_words_and_its_recipe_makes_it_again(
    models: Models, small_scene: Path, tmp_path: Path
) -> None:
    request = tiny_request(small_scene, one_frame=9, steps=2)
    made, _ = make(request, models, tmp_path / "job")
    assert (made.frames, made.latents.shape[2]) == (1, 1)
    (frame,) = read(made.video)
    with Image.open(tmp_path / "job/first.png") as picture:
        assert picture.size == (frame.shape[1], frame.shape[0])
        assert np.abs(np.asarray(picture).astype(int) - frame).mean() < 25  # compressed noise
    for other in (replace(request, one_frame=20), replace(request, prompt="a blue ring")):
        changed, _ = make(other, models, tmp_path / f"{other.one_frame}-{other.prompt}")
        assert not torch.equal(changed.latents, made.latents)
    recipe = read_recipe(tmp_path / "job/first.png")
    assert recipe == read_recipe(made.video)
    again = GenerationRequest.from_dict(
        {**recipe.settings, "image": str(small_scene), "model": request.model}
    )
    remade, _ = make(again, models, tmp_path / "again")
    assert torch.equal(remade.latents, made.latents)
    assert (tmp_path / "again/first.png").read_bytes() == (tmp_path / "job/first.png").read_bytes()
    kept = read_tensors(tmp_path / "job/sections/0001.safetensors")[0]["latents"]
    assert torch.equal(kept, made.latents)
