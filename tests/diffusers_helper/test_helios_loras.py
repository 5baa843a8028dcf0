"""Tests that LoRAs in the names of Wan and of diffusers change Helios as diffusers would change it."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from diffusers import HeliosPipeline
from safetensors.torch import save_file
from torch import Tensor, nn

from diffusers_helper.errors import InputError
from diffusers_helper.loading.loaders import Models
from diffusers_helper.loading.lora_adapters import Loras
from diffusers_helper.memory.weights import sizes_of
from diffusers_helper.models.registry import find_model
from diffusers_helper.models.sizes import check_loras, networks, with_loras
from diffusers_helper.request import GenerationRequest
from diffusers_helper.weights.lora_files import loras_of, read_lora
from tests.support.loras import merge, write_lora
from tests.support.making import load_tiny, make, tiny_request

RANK = 3
# The layers of a block and of the rest, as diffusers and as Wan's authors name them.
BLOCK = {
    **{f"attn1.to_{one}": f"self_attn.{one}" for one in "qkv"},
    **{f"attn2.to_{one}": f"cross_attn.{one}" for one in "qkv"},
    "attn1.to_out.0": "self_attn.o", "attn2.to_out.0": "cross_attn.o",
    "ffn.net.0.proj": "ffn.0", "ffn.net.2": "ffn.2",
}  # fmt: skip
REST = {
    "condition_embedder.time_embedder.linear_1": "time_embedding.0",
    "condition_embedder.time_embedder.linear_2": "time_embedding.2",
    "condition_embedder.text_embedder.linear_1": "text_embedding.0",
    "condition_embedder.text_embedder.linear_2": "text_embedding.2",
    "condition_embedder.time_proj": "time_projection.1",
    "proj_out": "head.head",
}  # fmt: skip
Pairs = dict[str, tuple[Tensor, Tensor]]


def wan_name(layer: str) -> str:
    if not layer.startswith("blocks."):
        return REST[layer]
    _, number, rest = layer.split(".", 2)
    return f"blocks.{number}.{BLOCK[rest]}"


def pairs_for(network: nn.Module, *, with_rest: bool) -> Pairs:
    random = torch.Generator().manual_seed(5)
    found: Pairs = {}
    for name, layer in network.named_modules():
        if isinstance(layer, nn.Linear) and (with_rest or name.startswith("blocks.")):
            down = torch.randn(RANK, layer.in_features, generator=random)
            up = torch.randn(layer.out_features, RANK, generator=random) * 0.3 / layer.in_features**0.5
            found[name] = (down, up)
    return found


def of_pairs(pairs: Pairs, name_of: Callable[[str], str]) -> dict[str, Tensor]:
    return {
        f"{name_of(name)}.lora_{letter}.weight": tensor
        for name, pair in pairs.items()
        for letter, tensor in zip("AB", pair, strict=True)
    }


def of_wan_with_biases(pairs: Pairs) -> dict[str, Tensor]:
    """Return the names of distilled LoRAs: scales, changes of biases, and of norms, which are left out."""
    random = torch.Generator().manual_seed(6)
    found: dict[str, Tensor] = {"diffusion_model.blocks.0.norm3.diff": torch.ones(24)}
    for name, (down, up) in pairs.items():
        start = f"diffusion_model.{wan_name(name)}"
        found |= {f"{start}.lora_down.weight": down, f"{start}.lora_up.weight": up}
        found[f"{start}.diff_b"] = torch.randn(len(up), generator=random) * 0.1
        if name.startswith("blocks."):
            found[f"{start}.alpha"] = torch.tensor(2.0)
    return found


def of_musubi(pairs: Pairs) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for name, (down, up) in pairs.items():
        start = f"lora_unet_{wan_name(name).replace('.', '_')}"
        found |= {f"{start}.lora_down.weight": down, f"{start}.lora_up.weight": up}
        found[f"{start}.alpha"] = torch.tensor(2.0)
    return found


# By style: the names, and whether diffusers takes layers outside of blocks in it.
STYLES: dict[str, tuple[Callable[[Pairs], dict[str, Tensor]], bool]] = {
    "diffusers": (partial(of_pairs, name_of="transformer.{}".format), True),
    "wan": (partial(of_pairs, name_of=lambda name: f"diffusion_model.{wan_name(name)}"), True),
    "wan with biases": (of_wan_with_biases, True),
    "musubi": (of_musubi, False),
}  # fmt: skip


def write(file: Path, network: nn.Module, style: str, metadata: dict[str, str] | None = None) -> Path:
    names, with_rest = STYLES[style]
    save_file(names(pairs_for(network, with_rest=with_rest)), file, metadata)
    return file


def merge_as_diffusers(network: nn.Module, file: Path, weight: float) -> None:
    """Add what diffusers reads of a file to the weights and biases of a network themselves."""
    found: dict[str, Tensor] = HeliosPipeline.lora_state_dict(str(file))  # type: ignore[assignment]
    names = {name.removesuffix(".lora_A.weight") for name in found if name.endswith(".lora_A.weight")}
    merge(
        network,
        {
            name.removeprefix("transformer."): found[f"{name}.lora_B.weight"] @ found[f"{name}.lora_A.weight"]
            for name in names
        },
        weight,
    )
    for name in names:
        if (bias := found.get(f"{name}.lora_B.bias")) is not None:
            layer = network.get_submodule(name.removeprefix("transformer."))
            layer.bias = nn.Parameter(layer.bias + weight * bias, requires_grad=False)


@pytest.fixture
def models(tiny_helios: Path) -> Models:
    return load_tiny(tiny_helios)


@pytest.fixture(scope="module")
def plain(order: GenerationRequest, tiny_helios: Path, tmp_path_factory: pytest.TempPathFactory) -> Tensor:
    return make(order, load_tiny(tiny_helios), tmp_path_factory.mktemp("plain") / "job")[0].latents


@pytest.fixture(scope="module")
def order(tiny_helios: Path, small_scene: Path) -> GenerationRequest:
    return tiny_request(
        small_scene, model=str(tiny_helios), mode="forward", seconds=1.375, steps=2, resolution=64
    )


@pytest.mark.parametrize("style", STYLES)
def test_each_style_gives_the_latents_of_diffusers(
    style: str, order: GenerationRequest, plain: Tensor, models: Models, tmp_path: Path
) -> None:
    file = write(tmp_path / "style.safetensors", models.component("transformer"), style)
    found = make(replace(order, lora=f"{file}:0.7"), models, tmp_path / "lora")[0].latents
    merge_as_diffusers(models.component("transformer"), file, 0.7)
    expected = make(order, models, tmp_path / "merged")[0].latents
    assert (expected - plain).abs().max() > 0.05
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("style", STYLES)
def test_all_of_a_file_is_applied_and_counted_in_the_plan(style: str, models: Models, tmp_path: Path) -> None:
    network = models.component("transformer")
    file = write(tmp_path / "style.safetensors", network, style)
    plain = networks(models.info, on_cpu=True)["transformer"]
    planned = with_loras(plain, [read_lora(file)]).weights
    with Loras(loras_of(str(file))) as loras:
        (note,) = loras.attach(network, torch.float32)
        total, blocks = sizes_of(network, models.blocks("transformer"))
    keys = read_lora(file).keys
    assert note == f"LoRA style.safetensors, weight 1: {keys} of {keys} keys applied."
    assert (planned.total_bytes, planned.block_bytes) == (total, blocks)
    assert min(blocks) > plain.weights.block_bytes[0]


def test_a_lora_of_another_family_is_refused_in_a_sentence(
    models: Models, tiny_model: Path, tmp_path: Path
) -> None:
    wan = write(
        tmp_path / "wan.safetensors",
        models.component("transformer"),
        "wan",
        {"modelspec.architecture": "Wan"},
    )
    other = tmp_path / "framepack.safetensors"
    write_lora(other, load_tiny(tiny_model).component("transformer"), "kohya original")
    for file, name, sentence in (
        (wan, "framepack-f1", "was made for Helios; model framepack-f1 is of FramePack."),
        (wan, str(tiny_model), f"was made for Helios; model {tiny_model} is of FramePack."),
        (other, "helios-base", "was made for FramePack; model helios-base is of Helios."),
    ):
        with pytest.raises(InputError) as caught:
            check_loras(str(file), find_model(name, allow_folder=True))
        assert caught.value.message == f"LoRA {file.name} {sentence}"
        assert "Wan 2.1" in caught.value.remedy or "HunyuanVideo" in caught.value.remedy
    check_loras(str(wan), models.info)
