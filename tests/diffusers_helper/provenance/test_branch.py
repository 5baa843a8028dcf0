"""Tests that recipes and branches give the same bytes, with real model classes at tiny size."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from diffusers_helper.errors import InputError
from diffusers_helper.families.packing import Mode
from diffusers_helper.loading.loaders import Models
from diffusers_helper.pipeline import Result
from diffusers_helper.provenance.branch import Branch, branch, extension
from diffusers_helper.provenance.job_folder import JobFolder
from diffusers_helper.provenance.lineage import Lineage
from diffusers_helper.provenance.recipe import read_recipe
from diffusers_helper.request import GenerationRequest
from tests.support.making import make, outline, seconds_for, tiny_request, write_scene

pytestmark = pytest.mark.slow  # each test makes whole jobs

SECTIONS = 2


@pytest.fixture(scope="module", params=["inverted", "forward"])
def mode(request: pytest.FixtureRequest) -> Mode:
    return request.param


@pytest.fixture(scope="module")
def order(mode: Mode, tmp_path_factory: pytest.TempPathFactory) -> GenerationRequest:
    """Return a request whose picture has another shape than the video."""
    scene = write_scene(tmp_path_factory.mktemp("scene") / "scene.png", 90, 80)
    return tiny_request(scene, mode=mode, seconds=seconds_for(SECTIONS), steps=1, vram_cap_gb=4.0)


def folder_of(result: Result) -> JobFolder:
    return JobFolder(result.video.parent)


def make_branch(made: Branch, models: Models, folder: Path) -> tuple[Result, list[str]]:
    folder.mkdir()
    made.fill(JobFolder(folder))
    result, events = make(made.request, models, folder, resume_from=folder)
    return result, outline(events)


def make_again(video: Path, models: Models, folder: Path, **changes: Any) -> Result:
    recipe = read_recipe(video)
    assert recipe.notices == ()
    folder.mkdir()
    picture = folder / "start.png"
    picture.write_bytes(recipe.pictures["image"])
    request = recipe.request({"image": str(picture)}, model="demo", **changes)
    return make(request, models, folder / "job", lineage=recipe.lineage)[0]


def test_a_video_restored_from_its_own_metadata_has_the_same_bytes(
    whole: Result, models: Models, tmp_path: Path
) -> None:
    copy = tmp_path / "sent by a friend.mp4"
    copy.write_bytes(whole.video.read_bytes())
    again = make_again(copy, models, tmp_path / "again")
    assert again.video.read_bytes() == whole.video.read_bytes()
    so_far = read_recipe(sorted(whole.video.parent.glob("video-0*.mp4"))[0])
    assert so_far.settings == read_recipe(copy).settings


def test_a_branch_equals_a_fresh_job_with_the_same_history(
    order: GenerationRequest, whole: Result, models: Models, tmp_path: Path
) -> None:
    changes = {"seed": 8, "prompt": "the blue square moves left", "seconds": seconds_for(3)}
    made = branch(folder_of(whole), order, 1, changes)
    result, lines = make_branch(made, models, tmp_path / "branch")
    # Of the kept section only the frames that face the first new one are made again.
    assert [line for line in lines if line.startswith("sample")] == ["sample 2", "sample 3"]
    assert "Warned" not in lines
    # The kept latents lie at the end of an inverted video, and at the beginning of a forward one.
    kept = slice(-9, None) if order.mode == "inverted" else slice(0, 10)
    assert torch.equal(result.latents[:, :, kept], whole.latents[:, :, kept])
    assert not torch.equal(result.latents[:, :, 10:19], whole.latents[:, :, 10:19])
    fresh = make_again(result.video, models, tmp_path / "fresh")
    assert torch.equal(fresh.latents, result.latents)
    assert fresh.video.read_bytes() == result.video.read_bytes()

    again = branch(folder_of(result), made.request, 2, {"guidance": 3.0, "cfg": 2.0, "negative": "a square"})
    assert [span.last for span in again.lineage.spans] == [1, 2]
    grandchild, lines = make_branch(again, models, tmp_path / "grandchild")
    assert [line for line in lines if line.startswith("sample")] == ["sample 3"]
    assert next(line for line in lines if line.startswith("decode")) == "decode 1"
    fresh = make_again(grandchild.video, models, tmp_path / "fresh grandchild")
    assert fresh.video.read_bytes() == grandchild.video.read_bytes()


def test_an_extended_video_keeps_what_there_was(
    order: GenerationRequest, whole: Result, models: Models, tmp_path: Path
) -> None:
    before = {path: path.read_bytes() for path in whole.video.parent.rglob("*") if path.is_file()}
    made = extension(folder_of(whole), order, 1.0)
    result, lines = make_branch(made, models, tmp_path / "longer")
    assert not {"text", "vae_encode", "vision"} & set(lines)
    sampled = [line for line in lines if line.startswith("sample")]
    if order.mode == "forward":
        assert sampled == ["sample 3"]
        assert torch.equal(result.latents[:, :, :19], whole.latents)
        other = make(made.request, models, tmp_path / "made so from the start")[0]
    else:
        assert sampled == ["sample 2", "sample 3"]
        assert torch.equal(result.latents[:, :, -9:], whole.latents[:, :, -9:])
        assert Lineage.read(folder_of(result).lineage).spans[0].settings["seconds"] == order.seconds
        other = make_again(result.video, models, tmp_path / "fresh")
    assert other.video.read_bytes() == result.video.read_bytes()
    # The parent stays as it was, though files are shared.
    assert {path: path.read_bytes() for path in before} == before
    shared = Path("sections", "0001.safetensors")
    assert (result.video.parent / shared).samefile(whole.video.parent / shared)
    assert Lineage.read(folder_of(result).lineage).parent == "whole"


def test_a_branch_says_what_it_cannot_change(order: GenerationRequest, whole: Result, tmp_path: Path) -> None:
    folder = folder_of(whole)
    for change, words in (
        ({"mode": "forward" if order.mode == "inverted" else "inverted"}, "in this order"),
        ({"resolution": 96}, "one size"),
        ({"model": "other"}, "latents of this model"),
        ({"crf": 30}, "encoded with it"),
        ({"vae_tile": 96}, "decoded with it"),
        ({"seconds": seconds_for(1)}, "at least one new section"),
    ):
        with pytest.raises(InputError) as refusal:
            branch(folder, order, 1, change)
        assert words in refusal.value.message
        assert refusal.value.remedy
    for keep in 0, -1, SECTIONS + (order.mode == "forward"):
        with pytest.raises(InputError, match="expected a number from 1 to"):
            branch(folder, order, keep, {"seconds": 60.0})
    with pytest.raises(InputError, match="no finished section"):
        branch(JobFolder(tmp_path), order, 1, {})
    for seconds in 0.0, -3.0, 200.0, float("nan"):
        with pytest.raises(InputError, match=r"at most 117\.6 s"):
            extension(folder, order, seconds)
    with pytest.raises(InputError, match="is not finished"):
        extension(folder, replace(order, seconds=12.0), 1.0)
