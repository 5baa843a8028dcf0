"""Tests of videos that start from words alone."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from diffusers_helper.families.packing import MODES, Mode
from diffusers_helper.loading.loaders import Models
from diffusers_helper.output.checkpoints import read_tensors
from diffusers_helper.provenance.recipe import read_recipe
from diffusers_helper.request import GenerationRequest
from diffusers_helper.sampling.schedule import noise_for
from tests.support.clips import read
from tests.support.making import Frames, make, seconds_for


def from_words(models: Models, mode: Mode, sections: int, **settings: object) -> GenerationRequest:
    given = {"prompt": "a red ball", "steps": 2, "seed": 7, "model": str(models.info.folder), **settings}
    return GenerationRequest.from_dict({"mode": mode, "seconds": seconds_for(sections), **given})


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_a_video_from_words_is_the_same_after_a_kill_and_from_its_recipe(
    mode: Mode, models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request, frames = from_words(models, mode, 2), Frames(monkeypatch)
    made, _ = make(request, models, tmp_path / "job")
    assert (made.frames, made.latents.shape[2], len(read(made.video))) == (69, 18, 69)
    encodings, _ = read_tensors(tmp_path / "job/encodings.safetensors")
    assert torch.equal(encodings["start"], noise_for(7, "start_latent", 0, (1, 16, 1, 8, 8)))
    assert not (tmp_path / "job/input.png").exists()
    with Image.open(tmp_path / "job/first.png") as first:
        assert np.array_equal(np.asarray(first), frames.all()[0])
    monkeypatch.undo()

    shutil.copytree(tmp_path / "job", tmp_path / "killed")
    for file in ("sections/0002.safetensors", "video-0002.mp4", "first.png"):
        (tmp_path / "killed" / file).unlink()
    again, _ = make(request, models, tmp_path / "killed", resume_from=tmp_path / "killed")
    assert again.video.read_bytes() == made.video.read_bytes()
    assert (tmp_path / "killed/first.png").read_bytes() == (tmp_path / "job/first.png").read_bytes()

    recipe = read_recipe(made.video)
    assert (recipe.settings["image"], recipe.pictures, recipe.notices) == ("", {}, ())
    told = recipe.request({}, model=request.model)
    assert make(told, models, tmp_path / "told")[0].video.read_bytes() == made.video.read_bytes()
