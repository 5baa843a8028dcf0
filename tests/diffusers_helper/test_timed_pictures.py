"""Tests of pictures at times of a video: their paths and their bytes."""

import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from diffusers_helper.conditions.pictures import JobPictures
from diffusers_helper.errors import InputError, LongtakeError
from diffusers_helper.families.packing import MODES, Mode
from diffusers_helper.framepack import work
from diffusers_helper.loading.loaders import Models
from diffusers_helper.output.checkpoints import read_tensors
from diffusers_helper.picture_names import with_pictures
from diffusers_helper.provenance.recipe import read_recipe
from diffusers_helper.sampling.schedule import noise_for
from tests.support.making import make, seconds_for, tiny_request, write_scene


def test_pictures_get_other_paths_by_their_names() -> None:
    settings = {"image": "a.png", "pictures": "1.2s: b.png\n2.4s@1: c.png"}
    found = with_pictures(settings, {"image": "x.png", "pictures_2": "y.png"})
    assert found == {"image": "x.png", "pictures": "1.2s: b.png\n2.4s@1: y.png"}


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_a_picture_at_a_time_changes_the_video_which_its_recipe_makes_again(
    mode: Mode, models: Models, tmp_path: Path
) -> None:
    scene = write_scene(tmp_path / "scene.png", 90, 100)
    other = tmp_path / "other.png"
    Image.effect_noise((140, 80), 90).convert("RGB").save(other)
    plain = tiny_request(scene, mode=mode, seconds=seconds_for(2), steps=1, model=str(models.info.folder))
    request = replace(plain, pictures=f"1.2s@0.1: {other}")
    made, _ = make(request, models, tmp_path / "job")
    usual, _ = make(plain, models, tmp_path / "plain")
    # The section that begins with the picture is the second in the video.
    own, others = (
        read_tensors(tmp_path / name / "sections" / f"{1 if mode == 'inverted' else 2:04}.safetensors")[0]
        for name in ("job", "plain")
    )
    assert not torch.equal(own["latents"], others["latents"])
    encodings, _ = read_tensors(tmp_path / "job/encodings.safetensors")
    assert {"start", "start_pictures_1", "vision", "vision_pictures_1"} <= set(encodings)
    with Image.open(tmp_path / "job/pictures_1.png") as kept, Image.open(other) as given:
        assert np.array_equal(np.asarray(kept), np.asarray(given))

    shutil.copytree(tmp_path / "job", tmp_path / "killed")
    for file in ("sections/0002.safetensors", "video-0002.mp4"):
        (tmp_path / "killed" / file).unlink()
    again, _ = make(request, models, tmp_path / "killed", resume_from=tmp_path / "killed")
    assert again.video.read_bytes() == made.video.read_bytes() != usual.video.read_bytes()
    for change in (f"2s@0.1: {other}", f"1.2s@0.9: {other}", f"1.2s@0.1: {scene}"):
        with pytest.raises(LongtakeError, match="pictures"):
            make(replace(request, pictures=change), models, tmp_path / "job", resume_from=tmp_path / "job")

    recipe = read_recipe(made.video)
    assert recipe.settings["pictures"] == "1.2s: pictures_1"
    paths = {name: tmp_path / f"{name}-again.png" for name in recipe.pictures}
    for name, file in paths.items():
        file.write_bytes(recipe.pictures[name])
    told = recipe.request({name: str(file) for name, file in paths.items()}, model=request.model)
    assert make(told, models, tmp_path / "told")[0].video.read_bytes() == made.video.read_bytes()
    with pytest.raises(InputError, match="lacks the picture 'pictures_1'"):
        recipe.request({"image": str(scene)}, model=request.model)


def test_equal_pictures_are_encoded_once_and_each_has_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    red, blue = (Image.new("RGB", (96, 64), colour) for colour in ("red", "blue"))
    fitted = {"image": red, "pictures_1": blue, "pictures_2": red.copy(), "end_image": blue.copy()}
    encoded, keys = list[str](), list[str]()

    def latent_of(job: object, of: str) -> str:
        encoded.append(of)
        return of

    def look(components: object, encode: Any, picture: str) -> Any:
        keys.append(picture)
        return encode()

    monkeypatch.setattr(work, "latent_of", latent_of)
    monkeypatch.setattr(work, "_vision_states", lambda job, of: f"states of {of}")
    for mode, shape, has_start in (("inverted", (64, 96), True), ("forward", (96, 64), False)):
        pictures = {name: picture for name, picture in fitted.items() if has_start or name != "image"}
        job: Any = SimpleNamespace(
            pictures=JobPictures({}, pictures, shape), request=SimpleNamespace(mode=mode), original=None,
            root=SimpleNamespace(seed=1), note_vae=lambda number: None, encoded=look,
            latents_shape=lambda count: (1, 1, count, 1, 1),
        )  # fmt: skip
        latents, states = work.latents(job), work.encode_images(job)
        first = "image" if has_start else "pictures_2"
        wanted = {"pictures_1": "pictures_1", "pictures_2": first, "end_image": "pictures_1"}
        assert states == {
            "vision": "states of image",
            **{f"vision_{name}": f"states of {equal}" for name, equal in wanted.items()},
        }
        places = {
            f"start_{name}": equal for name, equal in wanted.items() if has_start or name != "end_image"
        }
        if has_start:
            assert latents == {"start": "image", **places}
        else:
            assert torch.equal(latents.pop("start"), noise_for(1, "start_latent", 0, (1, 1, 1, 1, 1)))
            assert latents == places
    black = work._vision_pictures(job)["image"]  # of the last job, which has no start picture
    assert (black.size, black.getcolors()) == ((64, 96), [(64 * 96, (0, 0, 0))])
    assert encoded == ["image", "pictures_1", "pictures_1", "pictures_2"]
    assert len(keys) == len({*keys}) == 2 + 3  # without a start picture, a black one is seen
