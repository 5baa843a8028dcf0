"""Tests of jobs that are directed: each section's latents follow from its own words and pictures."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from diffusers_helper import pipeline
from diffusers_helper.cancel import CancelToken
from diffusers_helper.conditions.pictures import pictures_of
from diffusers_helper.conditions.timeline import steps_of
from diffusers_helper.errors import InputError, LongtakeError
from diffusers_helper.events import SectionFinished, StepDone
from diffusers_helper.families.framepack import FRAMEPACK
from diffusers_helper.families.packing import plan_sections, with_closing_section
from diffusers_helper.framepack.joining import FrameBlender
from diffusers_helper.framepack.work import TextCondition, mix_prompts
from diffusers_helper.loading.loaders import Models
from diffusers_helper.output.checkpoints import read_tensors
from diffusers_helper.provenance.lineage import Lineage, Span
from diffusers_helper.provenance.recipe import read_recipe
from tests.support.clips import read
from tests.support.loras import write_lora
from tests.support.making import make, seconds_for, tiny_request, write_scene

RIGHT, UP = "the red ball moves right", "the red ball moves up"


@pytest.fixture
def scene(tmp_path: Path) -> Path:
    return write_scene(tmp_path / "scene.png", 90, 100)


def text(values: list[list[float]], pooled: list[float]) -> TextCondition:
    return TextCondition(torch.tensor([values]), torch.tensor([pooled]))


def test_texts_of_different_lengths_are_mixed_in_the_length_of_the_last() -> None:
    short, long = text([[4.0, 8.0]], [1.0]), text([[0.0, 4.0], [8.0, 8.0]], [3.0])
    grown = mix_prompts([(short, 0.25), (long, 0.75)])
    assert grown.prompt_embeds.tolist() == [[[1.0, 5.0], [6.0, 6.0]]]
    assert grown.pooled_prompt_embeds.tolist() == [[2.5]]
    assert mix_prompts([(long, 0.25), (short, 0.75)]).prompt_embeds.tolist() == [[[3.0, 7.0]]]
    assert mix_prompts([(long, 1.0)]) is long


@pytest.mark.slow
@pytest.mark.parametrize(("cue", "change"), [(UP, {"prompt": UP}), ("seed 5", {"seed": 5})])
def test_a_prompt_with_times_makes_the_latents_of_a_branch(
    cue: str, change: dict[str, Any], models: Models, scene: Path, tmp_path: Path
) -> None:
    settings = {"mode": "forward", "seconds": seconds_for(2), "steps": 1}
    directed = tiny_request(scene, prompt=f"{RIGHT} [1.2s: {cue}]", **settings)
    before = replace(directed, prompt=RIGHT)
    branch = Lineage((Span.of(1, before),))
    found, _ = make(directed, models, tmp_path / "directed")
    expected, _ = make(replace(before, **change), models, tmp_path / "b", lineage=branch)
    plain, _ = make(before, models, tmp_path / "plain")
    assert torch.equal(found.latents, expected.latents)
    assert not torch.equal(found.latents, plain.latents)


@pytest.mark.slow
def test_what_comes_after_a_cut_begins_with_the_end_of_a_draft(
    models: Models, scene: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = tiny_request(scene, prompt=f"{RIGHT} [1.2s: {UP}]", seconds=seconds_for(3))
    seen: list[tuple[int, Tensor, Tensor]] = []
    sampled = pipeline.denoise

    def denoise(job: Any, section: Any, condition: Any, context: Any, *others: Any) -> Tensor:
        seen.append((section.number, context.start, context.history_1x))
        return sampled(job, section, condition, context, *others)

    monkeypatch.setattr(pipeline, "denoise", denoise)
    made, events = make(request, models, tmp_path / "job")
    picture = made.latents[:, :, :1]
    assert [number for number, *_ in seen] == [3, 1, 2, 3]
    starts = [start for _, start, _ in seen]
    assert all(torch.equal(starts[n], picture) for n in (0, 3))
    assert not seen[0][2].any(), "a draft sees nothing of what comes after it"
    assert torch.equal(starts[1], starts[2])
    assert starts[1].shape == picture.shape
    assert not torch.equal(starts[1], picture)
    steps = [(one.section, one.step, one.steps) for one in events if isinstance(one, StepDone)]
    assert steps == [(1, n, 4) for n in (1, 2, 3, 4)] + [(k, n, 2) for k in (2, 3) for n in (1, 2)]
    assert steps_of(request, models.info) == [4, 2, 2]

    killed = tmp_path / "killed"
    shutil.copytree(tmp_path / "job", killed)
    for file in [killed / "sections/0002.safetensors", killed / "sections/0003.safetensors"]:
        file.unlink()
    assert torch.equal(make(request, models, killed, resume_from=killed)[0].latents, made.latents)
    other = replace(request, prompt=f"{UP} quickly [1.2s: {UP}]")
    with pytest.raises(LongtakeError, match="drafted"):
        make(other, models, killed, resume_from=killed)


@pytest.mark.slow
def test_a_lora_has_another_weight_in_a_section(models: Models, scene: Path, tmp_path: Path) -> None:
    file = tmp_path / "style.safetensors"
    if not models.is_loaded:
        models.load(CancelToken())
    write_lora(file, models.component("transformer"))
    settings = {"mode": "forward", "seconds": seconds_for(2), "steps": 1, "lora": f"{file}:0.5"}
    half = tiny_request(scene, prompt=RIGHT, **settings)
    changed = replace(half, prompt=f"{RIGHT} [1.2s: lora style:1.5]")
    plain, _ = make(half, models, tmp_path / "half")
    found, _ = make(changed, models, tmp_path / "changed")
    assert torch.equal(found.latents[:, :, :10], plain.latents[:, :, :10])
    assert not torch.equal(found.latents[:, :, 10:], plain.latents[:, :, 10:])
    more, _ = make(replace(half, lora=f"{file}:1.5"), models, tmp_path / "more")
    whole, _ = make(replace(changed, prompt=f"{RIGHT} [0s: lora style:1.5]"), models, tmp_path / "whole")
    torch.testing.assert_close(whole.latents, more.latents, rtol=1e-3, atol=1e-3)
    with pytest.raises(LongtakeError, match="made with lora_weights"):
        make(half, models, tmp_path / "changed", resume_from=tmp_path / "changed")
    _, facts = read_tensors(tmp_path / "changed" / "sections" / "0002.safetensors")
    assert json.loads(facts["origin"])["weights"] == models.fingerprint


@pytest.mark.slow
def test_a_blended_section_is_kept_for_its_own_words_only(
    models: Models, scene: Path, tmp_path: Path
) -> None:
    settings = {"mode": "forward", "seconds": seconds_for(2), "steps": 1}
    cut = tiny_request(scene, prompt=f"{RIGHT} [1.2s: {UP}]", **settings)
    soft = replace(cut, prompt_blend=1)
    first, _ = make(soft, models, tmp_path / "job")
    again, _ = make(soft, models, tmp_path / "job", resume_from=tmp_path / "job")
    assert torch.equal(first.latents, again.latents)
    assert not torch.equal(first.latents, make(cut, models, tmp_path / "cut")[0].latents)
    with pytest.raises(LongtakeError, match="prompt"):
        make(cut, models, tmp_path / "job", resume_from=tmp_path / "job")


def test_sections_of_a_branch_keep_the_share_that_they_were_made_with() -> None:
    request = tiny_request(Path("a"), end_image="b", mode="forward", seconds=2.4)
    lineage = Lineage((Span.of(2, request),))
    longer = replace(request, seconds=4.8, end_strength=0.5)
    assert len(lineage.sections(longer)) == 4
    owns = [(number, lineage.request_for(number, longer)) for number in (1, 2, 3, 4)]
    found = [pictures_of(number, own, FRAMEPACK)[1][1] for number, own in owns]
    assert found == [1 / 4, 3 / 4, 5 / 16, 7 / 16]
    assert "seconds" not in Span.of(2, replace(request, end_image="")).settings


@pytest.mark.slow
def test_an_end_picture_lasts_through_a_kill_and_in_the_recipe(
    models: Models, scene: Path, tmp_path: Path
) -> None:
    end = write_scene(tmp_path / "end.png", 120, 60)
    request = tiny_request(scene, end_image=str(end), end_crop=0.25, seconds=seconds_for(2), steps=1)
    made, _ = make(request, models, tmp_path / "job")
    bare, _ = make(replace(request, end_image=""), models, tmp_path / "bare")
    assert made.latents.shape == bare.latents.shape
    assert not torch.equal(made.latents, bare.latents)

    interrupted = tmp_path / "interrupted"
    shutil.copytree(tmp_path / "job", interrupted)
    for file in ("sections/0002.safetensors", "encodings.safetensors"):
        (interrupted / file).unlink()
    again, _ = make(request, models, interrupted, resume_from=interrupted)
    assert torch.equal(again.latents, made.latents)
    for change in ({"end_crop": 0.75}, {"end_image": str(scene)}, {"end_strength": 0.5}):
        with pytest.raises(LongtakeError, match=next(iter(change))):
            make(replace(request, **change), models, tmp_path / "job", resume_from=tmp_path / "job")

    recipe = read_recipe(made.video)
    paths = {name: tmp_path / f"{name}-again.png" for name in recipe.pictures}
    for name, file in paths.items():
        file.write_bytes(recipe.pictures[name])
    told = recipe.request({name: str(file) for name, file in paths.items()}, model=request.model)
    assert make(told, models, tmp_path / "told")[0].video.read_bytes() == made.video.read_bytes()


def test_frames_of_a_closing_section_lead_to_the_first_frame_of_the_video() -> None:
    plan, joiner = with_closing_section(plan_sections(1.0)), FrameBlender("inverted")
    joiner.add(torch.linspace(-0.5, 0.5, 37).view(37, 1, 1, 1).expand(37, 2, 2, 3), plan[0])
    final, pending = joiner.add(torch.full((69, 2, 2, 3), 0.5), plan[1])
    expected = [0.75 - 0.5 * number / 37 for number in range(1, 37)]  # as shares of white
    assert np.abs(final[:, 0, 0, 0] / 255 - expected).max() <= 0.5 / 255
    assert (len(final), len(pending)) == (plan[1].final_frames, 0) == (36, 0)


@pytest.mark.slow
def test_a_loop_is_the_video_with_one_more_section_also_after_a_kill(
    models: Models, scene: Path, tmp_path: Path
) -> None:
    request = tiny_request(scene, seconds=1.0, loop="on")
    made, events = make(request, models, tmp_path / "job")
    plain, _ = make(replace(request, loop="off"), models, tmp_path / "plain")
    assert (made.frames, made.latents.shape[2]) == (73, 19)
    assert torch.equal(made.latents[:, :, :10], plain.latents)
    assert [one.frames for one in events if isinstance(one, SectionFinished)] == [37, 73]
    assert np.array_equal(read(made.video)[:37], read(plain.video))
    shutil.copytree(tmp_path / "job", tmp_path / "killed")
    for file in ("sections/0002.safetensors", "video-0002.mp4"):
        (tmp_path / "killed" / file).unlink()
    again, _ = make(request, models, tmp_path / "killed", resume_from=tmp_path / "killed")
    assert again.video.read_bytes() == made.video.read_bytes()
    assert read_recipe(made.video).settings["loop"] == "on"
    with pytest.raises(InputError, match="leads to no picture"):
        replace(request, mode="forward")
