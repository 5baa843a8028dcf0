"""A job that was broken off goes on where it was, and ends in the same bytes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from diffusers_helper.errors import LongtakeError
from diffusers_helper.events import Event
from diffusers_helper.loaders import Models
from diffusers_helper.packing import Mode
from diffusers_helper.pipeline import Result, generate
from diffusers_helper.request import GenerationRequest
from tests.support.making import load_tiny, make, outline, seconds_for, tiny_request, write_scene

SECTIONS = 3


class Stop(Exception):
    pass


@pytest.fixture(scope="module")
def models(tiny_model: Path) -> Models:
    return load_tiny(tiny_model)


@pytest.fixture(scope="module", params=["inverted", "forward"])
def mode(request: pytest.FixtureRequest) -> Mode:
    return request.param


@pytest.fixture(scope="module")
def order(mode: Mode, tmp_path_factory: pytest.TempPathFactory) -> GenerationRequest:
    scene = write_scene(tmp_path_factory.mktemp("scene") / "scene.png")
    return tiny_request(scene, mode=mode, seconds=seconds_for(SECTIONS), steps=1)


@pytest.fixture(scope="module")
def whole(order: GenerationRequest, models: Models, tmp_path_factory: pytest.TempPathFactory) -> Result:
    """A job that nothing happened to. Read-only by agreement."""
    return make(order, models, tmp_path_factory.mktemp("jobs") / "whole")[0]


@pytest.mark.parametrize(
    ("where", "made"),
    [("sample 2", 1), ("decode 2", 2), ("write 2", 2), ("finished 2/3", 2), ("decode 3", 3)],
)
def test_a_resumed_job_gives_the_same_bytes(
    where: str, made: int, order: GenerationRequest, whole: Result, models: Models, tmp_path: Path
) -> None:
    def stop(event: Event) -> None:
        if outline([event]) == [where]:
            raise Stop

    broken = tmp_path / "broken"
    with pytest.raises(Stop):
        generate(order, models, folder=broken, on_event=stop)
    assert len(list((broken / "sections").iterdir())) == made
    result, events = make(order, models, broken, resume_from=broken)
    assert result.video.read_bytes() == whole.video.read_bytes()
    assert torch.equal(result.latents, whole.latents)
    sampled = [line for line in outline(events) if line.startswith("sample")]
    assert sampled == [f"sample {n}" for n in range(made + 1, SECTIONS + 1)]


def test_sections_are_taken_over_into_another_folder(
    order: GenerationRequest, whole: Result, models: Models, tmp_path: Path
) -> None:
    copy, events = make(order, models, tmp_path / "copy", resume_from=whole.video.parent)
    assert copy.video.read_bytes() == whole.video.read_bytes()
    assert not any(line.startswith("sample") for line in outline(events))


def test_any_section_can_be_made_again_alone(
    order: GenerationRequest, whole: Result, models: Models, tmp_path: Path
) -> None:
    sections = tmp_path / "first" / "sections"
    sections.mkdir(parents=True)
    kept = whole.video.parent / "sections"
    for name in ("0001.safetensors", "0003.safetensors"):  # the third, after a gap, is not taken over
        (sections / name).write_bytes((kept / name).read_bytes())
    make(order, models, tmp_path / "again", resume_from=tmp_path / "first")
    for name in ("0002.safetensors", "0003.safetensors"):
        again = load_file(tmp_path / "again" / "sections" / name)["latents"]
        assert torch.equal(again, load_file(kept / name)["latents"])


def test_latents_that_do_not_belong_are_refused(
    order: GenerationRequest, whole: Result, models: Models, tmp_path: Path
) -> None:
    other = tiny_request(Path(order.image), mode=order.mode, resolution=96)
    with pytest.raises(LongtakeError, match="holds latents of shape"):
        generate(other, models, folder=tmp_path / "other", resume_from=whole.video.parent)
    damaged = tmp_path / "damaged" / "sections" / "0001.safetensors"
    damaged.parent.mkdir(parents=True)
    damaged.write_bytes(b"not latents")
    with pytest.raises(LongtakeError, match="cannot be read"):
        generate(order, models, folder=tmp_path / "other", resume_from=tmp_path / "damaged")
