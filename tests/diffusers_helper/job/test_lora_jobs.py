"""Tests of whole jobs with LoRAs: their pixels, records and ends. Memory is tested in `test_caps`."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from diffusers import HunyuanVideoFramepackTransformer3DModel

from diffusers_helper.errors import InputError, LongtakeError
from diffusers_helper.events import Event, StepDone, Warned
from diffusers_helper.files import file_sha256
from diffusers_helper.loading.loaders import Models
from diffusers_helper.models.sizes import check_loras
from diffusers_helper.pipeline import generate
from diffusers_helper.provenance.branch import branch
from diffusers_helper.provenance.job_folder import JobFolder
from diffusers_helper.provenance.recipe import read_recipe
from diffusers_helper.request import GenerationRequest
from tests.support.loras import merge, write_lora
from tests.support.making import Stop, load_tiny, make, seconds_for, tiny_request

pytestmark = pytest.mark.slow


@pytest.fixture
def lora(deep_models: Models, tmp_path: Path) -> Path:
    file = tmp_path / "private" / "style.safetensors"
    write_lora(file, deep_models.component("transformer"), "kohya original", alpha=2)
    return file


@pytest.fixture
def request_with(small_scene: Path, lora: Path) -> GenerationRequest:
    return tiny_request(small_scene, lora=f"{lora}:0.8")


def weights(models: Models) -> dict[str, torch.Tensor]:
    return {name: one.clone() for name, one in models.component("transformer").state_dict().items()}


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_a_job_gives_what_merged_weights_give_and_leaves_nothing(
    request_with: GenerationRequest, deep_model: Path, deep_models: Models, tmp_path: Path
) -> None:
    plain_request = replace(request_with, lora="")
    before = weights(deep_models)
    plain, _ = make(plain_request, deep_models, tmp_path / "plain")
    found, events = make(request_with, deep_models, tmp_path / "lora")
    assert equal(weights(deep_models), before)
    again, _ = make(plain_request, deep_models, tmp_path / "again")
    assert again.video.read_bytes() == plain.video.read_bytes()
    merged = load_tiny(deep_model)
    changes = write_lora(
        tmp_path / "same.safetensors", merged.component("transformer"), "kohya original", alpha=2
    )
    merge(merged.component("transformer"), changes, 0.8)
    expected, _ = make(plain_request, merged, tmp_path / "merged")
    assert (found.latents - plain.latents).abs().max() > 0.1
    torch.testing.assert_close(found.latents, expected.latents, rtol=1e-3, atol=1e-4)
    reported = [event.message for event in events if isinstance(event, Warned)]
    total = 3 * (10 * 3) + 5 * (3 * 3)
    assert f"LoRA style.safetensors, weight 0.8: {total} of {total} keys applied." in reported


def test_the_recipe_has_name_and_checksum_and_no_path(
    request_with: GenerationRequest, lora: Path, deep_models: Models, tmp_path: Path
) -> None:
    plain, _ = make(replace(request_with, lora=""), deep_models, tmp_path / "plain")
    made, _ = make(request_with, deep_models, tmp_path / "made")
    assert "lora" not in read_recipe(plain.video).settings
    recipe = read_recipe(made.video)
    pinned = f"style.safetensors:0.8 sha256:{file_sha256(lora)}"
    assert recipe.settings["lora"] == pinned
    assert b"private" not in made.video.read_bytes()
    # The same content anywhere gives the same video; another one is refused.
    same = replace(request_with, lora=pinned.replace("style", f"{lora.parent}/style"))
    again, _ = make(same, deep_models, tmp_path / "again")
    assert again.video.read_bytes() == made.video.read_bytes()
    write_lora(lora, deep_models.component("transformer"), seed=9)
    with pytest.raises(InputError, match=r"LoRA style\.safetensors has another content"):
        make(same, deep_models, tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_a_job_is_not_resumed_with_another_lora(
    request_with: GenerationRequest, lora: Path, deep_models: Models, tmp_path: Path
) -> None:
    def stop(event: Event) -> None:
        if isinstance(event, StepDone) and event.section == 2:
            raise Stop

    order = replace(request_with, seconds=seconds_for(2), steps=1)
    whole, _ = make(order, deep_models, tmp_path / "whole")
    before = weights(deep_models)
    with pytest.raises(Stop):
        generate(order, deep_models, folder=tmp_path / "job", on_event=stop)
    assert equal(weights(deep_models), before)
    for other in ("", f"{lora}:0.7"):
        with pytest.raises(LongtakeError, match="A LoRA, or its weight, changed"):
            generate(replace(order, lora=other), deep_models, resume_from=tmp_path / "job")
    moved = lora.rename(tmp_path / "renamed.safetensors")
    same = replace(order, lora=f"{moved}:0.8")
    resumed, _ = make(same, deep_models, tmp_path / "on", resume_from=tmp_path / "job")
    assert torch.equal(resumed.latents, whole.latents)
    write_lora(moved, deep_models.component("transformer"), seed=9)
    with pytest.raises(LongtakeError, match="A LoRA, or its weight, changed"):
        generate(same, deep_models, resume_from=tmp_path / "job")


def test_a_lora_of_another_size_is_refused_and_nothing_stays(
    request_with: GenerationRequest, deep_models: Models, lora: Path, tmp_path: Path
) -> None:
    other = lora.with_name("large.safetensors")
    wide = {"num_attention_heads": 3, "attention_head_dim": 16, "num_layers": 3, "num_single_layers": 5}
    write_lora(other, HunyuanVideoFramepackTransformer3DModel(**wide, text_embed_dim=16))
    before = weights(deep_models)
    with pytest.raises(InputError, match=r"LoRA large.safetensors fits this model with 0 of its \d+ keys"):
        make(replace(request_with, lora=f"{lora}\n{other}"), deep_models, tmp_path / "job")
    assert equal(weights(deep_models), before)
    check_loras(str(lora), deep_models.info)
    for text in (f"{lora}\n{other}", f"{other}\n{lora}"):
        with pytest.raises(InputError, match=r"LoRA large.safetensors fits this model with 0"):
            check_loras(text, deep_models.info)


def test_a_branch_keeps_the_lora_and_cannot_change_it(
    request_with: GenerationRequest, deep_models: Models, tmp_path: Path
) -> None:
    order = replace(request_with, seconds=seconds_for(2), steps=1, mode="forward")
    make(order, deep_models, tmp_path / "parent")
    parent = JobFolder(tmp_path / "parent")
    made = branch(parent, order, 1, {"prompt": "the blue square moves left"})
    assert made.request.lora == order.lora
    with pytest.raises(InputError, match="A branch cannot change lora"):
        branch(parent, order, 1, {"lora": ""})
    folder = JobFolder(tmp_path / "branch")
    folder.path.mkdir()
    made.fill(folder)
    found, _ = make(made.request, deep_models, folder.path, resume_from=folder.path)
    assert "style.safetensors:0.8 sha256:" in read_recipe(found.video).settings["lora"]
