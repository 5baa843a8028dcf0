"""Tests of pictures at times of a video: their text, what each section sees of them, and their bytes."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from diffusers_helper.conditions.pictures import pictures_of, start_picture_of
from diffusers_helper.errors import InputError, LongtakeError
from diffusers_helper.families.framepack import FRAMEPACK
from diffusers_helper.families.packing import MODES, Mode, paddings, plan_sections, split_at
from diffusers_helper.loading.loaders import Models
from diffusers_helper.output.checkpoints import read_tensors
from diffusers_helper.picture_names import with_pictures
from diffusers_helper.provenance.recipe import read_recipe
from diffusers_helper.request import GenerationRequest
from diffusers_helper.setting import text_of
from diffusers_helper.timed_pictures import TimedPicture, timed_pictures_of
from tests.support.making import make, seconds_for, tiny_request, write_scene


def test_each_line_is_a_time_and_a_file() -> None:
    text = " 4.8s : b c.png\n\n2.4 s@0.25: a:1s.png\n"
    assert timed_pictures_of(text) == (TimedPicture(2.4, "a:1s.png", 0.25), TimedPicture(4.8, "b c.png"))
    assert text_of(timed_pictures_of(text)) == "2.4s@0.25: a:1s.png\n4.8s: b c.png"
    for wrong in ("a.png", "2.4: a.png", "2.4s@2: a.png", "-1s: a.png"):
        with pytest.raises(InputError, match="pictures has the line"):
            GenerationRequest(image="a.png", pictures=wrong)
    with pytest.raises(InputError, match="names 17 pictures; expected at most 16"):
        GenerationRequest(image="a.png", pictures="\n".join(f"{n}s: a.png" for n in range(17)))


def test_times_are_moved_to_where_sections_meet() -> None:
    times = (0.0, 0.7, 1.2, 1.9, 2.4, 100.0)
    assert [TimedPicture(time, "a").section_index(1.2) for time in times] == [1, 1, 1, 2, 2, 83]


def test_each_run_has_the_distances_of_a_video_of_its_own() -> None:
    plan = split_at(plan_sections(seconds_for(8)), [3, 3, 99])
    assert [section.padding for section in plan] == [*paddings(5), *paddings(3)]
    assert plan[4].indices == plan_sections(1.0)[0].indices  # it begins with the picture
    assert replace(plan, sections=()) == replace(plan_sections(seconds_for(8)), sections=())
    forward = plan_sections(seconds_for(8), mode="forward")
    assert split_at(forward, [3]) is forward


def test_each_section_sees_the_picture_before_it_and_states_between_two() -> None:
    request = GenerationRequest(
        image="a.png", pictures="2.4s: b.png\n90s: late.png", end_image="c.png", seconds=seconds_for(4)
    )
    places = [section.video_index for section in FRAMEPACK.sections(request)]
    seen = [pictures_of(number, request, FRAMEPACK) for number in range(1, 5)]
    starts = [start_picture_of(number, request, FRAMEPACK) for number in range(1, 5)]
    assert dict(zip(places, starts, strict=True)) == {
        0: "image", 1: "image", 2: "pictures_1", 3: "pictures_1"
    }  # fmt: skip
    assert dict(zip(places, seen, strict=True)) == {
        0: (("image", 0.75), ("pictures_1", 0.25)), 1: (("image", 0.25), ("pictures_1", 0.75)),
        2: (("pictures_1", 0.75), ("end_image", 0.25)), 3: (("pictures_1", 0.25), ("end_image", 0.75)),
    }  # fmt: skip
    alone = replace(request, end_image="")
    assert pictures_of(1, alone, FRAMEPACK) == (("pictures_1", 1.0),)


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


def test_the_same_picture_is_encoded_once(
    models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from diffusers_helper.framepack import work

    scene, calls = write_scene(tmp_path / "scene.png"), list[str]()
    for name in ("latent_of", "encode_vision"):
        function = getattr(work, name)
        monkeypatch.setattr(work, name, lambda *given, f=function, n=name: calls.append(n) or f(*given))
    request = tiny_request(scene, seconds=seconds_for(2), steps=1, pictures=f"1.2s: {scene}")
    make(request, models, tmp_path / "job")
    assert sorted(calls) == ["encode_vision", "latent_of"]
