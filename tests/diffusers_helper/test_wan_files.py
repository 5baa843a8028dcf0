"""Tests of Wan's networks in single files and with LoRAs. One table alone has another name than in Helios."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import AutoencoderKLWan
from gguf import GGMLQuantizationType
from safetensors.torch import load_file
from torch import Tensor

from app.commands.models.add import default_base
from diffusers_helper.events import Warned
from diffusers_helper.families.family import LORA
from diffusers_helper.loading.loaders import load_models
from diffusers_helper.loading.networks import load_network
from diffusers_helper.models.installed import verify
from diffusers_helper.models.registry import ComponentSource
from diffusers_helper.models.sizes import check_loras
from diffusers_helper.provenance.recipe import read_recipe
from diffusers_helper.request import GenerationRequest
from diffusers_helper.weights.inspection import inspect_checkpoint
from diffusers_helper.weights.reading import is_complete
from tests.diffusers_helper.test_helios_files import VAE_NAMES, check_sizes, equal, renamed, wan_names
from tests.diffusers_helper.test_helios_loras import merge_as_diffusers, write
from tests.support.checkpoints import to_int8, to_scaled_fp8, write_quantised_gguf, write_safetensors
from tests.support.making import add_model, load_tiny, make, tiny_request

pytestmark = pytest.mark.usefixtures("own_models")

_LAST_TABLE = {r"^modulation": "head.modulation"}
NAMES = {"wan": lambda tensors: renamed(_LAST_TABLE)(wan_names(tensors)), "diffusers": dict}


@pytest.fixture(scope="module")
def weights(tiny_wan: Path) -> dict[str, Tensor]:
    return load_file(tiny_wan / "transformer" / "diffusion_pytorch_model.safetensors")


@pytest.fixture
def order(tiny_wan: Path, small_scene: Path) -> GenerationRequest:
    return tiny_request(
        small_scene, model=str(tiny_wan), mode="forward", steps=2, resolution=64, clip_frames=25
    )


@pytest.mark.parametrize("style", NAMES)
def test_plain_weights_are_those_of_the_file(
    style: str, weights: dict[str, Tensor], tiny_wan: Path, tmp_path: Path
) -> None:
    file = write_safetensors(tmp_path / "wan2.2_ti2v_5B_fp16.safetensors", NAMES[style](weights))
    facts = inspect_checkpoint(file, "transformer")
    assert (facts.model, facts.variant, facts.problems) == ("Wan", "5B", ())
    assert default_base({"transformer": file}) == "wan-5b"
    assert default_base({"transformer": file.rename(tmp_path / "FastWan2.2-5B.safetensors")}) == "wan-5b-fast"
    file = tmp_path / "FastWan2.2-5B.safetensors"
    assert equal(add_model(tiny_wan, transformer=file).component("transformer"), weights)


@pytest.mark.parametrize("kind", ["scaled fp8", "int8", "gguf"])
def test_quantised_files_compute_nearly_the_same(
    kind: str, weights: dict[str, Tensor], tiny_wan: Path, tmp_path: Path, order: GenerationRequest
) -> None:
    named = NAMES["wan"](weights)
    if kind == "gguf":
        file = write_quantised_gguf(tmp_path / "m.gguf", named, GGMLQuantizationType.Q8_0)
    else:
        stored = {name: tensor.to(torch.bfloat16) for name, tensor in named.items()}
        file = write_safetensors(
            tmp_path / "m.safetensors", to_int8(stored) if kind == "int8" else to_scaled_fp8(stored)
        )
    models = add_model(tiny_wan, transformer=file)
    check_sizes(models)
    result = make(order, models, tmp_path / "job")[0].latents
    expected = make(order, load_tiny(tiny_wan), tmp_path / "exact")[0].latents
    assert 0 < (result - expected).norm() / expected.norm() < 0.15


def test_the_vae_of_wan_2_2_is_read_as_its_authors_name_it(tiny_wan: Path, tmp_path: Path) -> None:
    vae: Any = AutoencoderKLWan.from_pretrained(tiny_wan / "vae")
    file = write_safetensors(
        tmp_path / "wan2.2_vae.safetensors",
        {_authors_name(name): tensor for name, tensor in vae.state_dict().items()},
    )
    assert inspect_checkpoint(file, "vae").problems == ()
    config = {**vae.config, "_class_name": "AutoencoderKLWan"}
    assert equal(load_network("vae", file, config).network, vae.state_dict())


def _authors_name(name: str) -> str:
    for pattern, new in {
        r"\.(down|up)_blocks\.(\d)\.resnets\.": r".\1samples.\2.\1samples.",
        # The layer that changes the size follows the residual ones, of which a decoder has one more.
        r"\.down_blocks\.(\d)\.downsampler\.": r".downsamples.\1.downsamples.1.",
        r"\.up_blocks\.(\d)\.upsampler\.": r".upsamples.\1.upsamples.2.",
        **VAE_NAMES,
    }.items():
        name = re.sub(pattern, new, name)
    return name


@pytest.mark.parametrize("style", ["wan", "musubi"])
def test_a_lora_gives_the_latents_of_merged_weights(
    style: str, tiny_wan: Path, tmp_path: Path, order: GenerationRequest
) -> None:
    models = load_tiny(tiny_wan)
    file = write(tmp_path / "style.safetensors", models.component("transformer"), style)
    check_loras(str(file), models.info)
    result = make(replace(order, lora=str(file)), models, tmp_path / "lora")[0].latents
    plain = make(order, models, tmp_path / "plain")[0].latents
    merge_as_diffusers(models.component("transformer"), file, 1.0)
    expected = make(order, models, tmp_path / "merged")[0].latents
    assert (expected - plain).abs().max() > 0.05
    torch.testing.assert_close(result, expected, rtol=0, atol=1e-4)


def test_a_pair_of_loras_changes_one_transformer_each(
    tiny_wan_a14b: Path, small_scene: Path, tmp_path: Path
) -> None:
    models = load_tiny(tiny_wan_a14b)
    parts = {"high": "transformer", "low": "transformer_2"}
    folder = tmp_path / "few-steps"
    folder.mkdir()
    files = {
        noise: write(folder / f"{noise}_noise_model.safetensors", models.component(part), "wan")
        for noise, part in parts.items()
    }
    request = tiny_request(
        small_scene, model=str(tiny_wan_a14b), mode="forward", steps=4, resolution=64, clip_frames=17,
        lora="\n".join(map(str, files.values())),
    )  # fmt: skip
    result = make(request, models, tmp_path / "pair")[0].latents
    # The pair may belong to the model itself.
    assert is_complete(folder)
    source = ComponentSource(location=str(folder))
    with_pair = replace(models.info, components={**models.info.components, LORA: source})
    assert not [verdict.problems for verdict in verify(with_pair) if verdict.problems]
    owned, events = make(replace(request, lora=""), load_models(with_pair, device="cpu"), tmp_path / "own")
    assert torch.equal(owned.latents, result)
    recipe = read_recipe(owned.video)
    assert recipe is not None
    assert recipe.settings.get("lora", "") == ""
    assert not [event for event in events if isinstance(event, Warned)]
    for noise, part in parts.items():
        merge_as_diffusers(models.component(part), files[noise], 1.0)
    expected = make(replace(request, lora=""), models, tmp_path / "merged")[0].latents
    torch.testing.assert_close(result, expected, rtol=0, atol=1e-4)
    both = make(replace(request, lora=str(files["high"])), load_tiny(tiny_wan_a14b), tmp_path / "one")[
        0
    ].latents
    assert not torch.allclose(both, expected, atol=0.01)
