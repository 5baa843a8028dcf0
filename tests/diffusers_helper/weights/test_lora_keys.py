"""Tests of the names in LoRAs against the full model: its layers, their sizes, and diffusers' conversion."""

import pytest
import torch
from diffusers import HunyuanVideoFramepackTransformer3DModel
from diffusers.loaders.single_file_utils import convert_hunyuan_video_transformer_to_diffusers
from torch import nn

from diffusers_helper.weights.lora_keys import Target, split_key, target_of
from tests.support.loras import HUNYUAN, comfyui_name, numbered

TENCENT = "Hunyuan_video_I2V_lora_", "Hunyuan_video_lora_"
OWN_TO_FRAMEPACK = ("clean_x_embedder", "image_projection", "x_embedder")


@pytest.fixture(scope="module")
def layers() -> dict[str, tuple[int, int]]:
    """Return (outputs, inputs) of each linear layer of the full transformer."""
    with torch.device("meta"):
        network = HunyuanVideoFramepackTransformer3DModel(has_image_proj=True, has_clean_x_embedder=True)
    return {
        name: (module.out_features, module.in_features)
        for name, module in network.named_modules()
        if isinstance(module, nn.Linear)
    }


def test_every_layer_of_framepack_is_known_by_its_own_name(layers: dict[str, tuple[int, int]]) -> None:
    assert len(layers) == 20 * 14 + 40 * 6 + 2 * 7 + 5 + 6 + 2 + 2
    for name in layers:
        for beginning in (
            name,
            f"transformer.{name}",
            f"diffusion_model.{name}",
            f"base_model.model.{name}",
            f"lora_unet_{name.replace('.', '_')}",
            f"lycoris_{name.replace('.', '_')}",
            f"module.{name}",
        ):
            assert target_of(beginning) == Target((name,)), beginning


def test_hunyuans_names_stand_for_the_layers_with_their_sizes(layers: dict[str, tuple[int, int]]) -> None:
    seen: list[str] = []
    for pattern, (outputs, inputs) in HUNYUAN.items():
        for name in numbered(pattern):
            targets = {target_of(start) for start in (name, f"diffusion_model.{name}", _kohya(name))}
            (target,) = targets
            assert sum(layers[layer][0] for layer in target.layers) == outputs
            assert {layers[layer][1] for layer in target.layers} == {inputs}
            for prefix in TENCENT:
                assert target_of(prefix + name.replace(".", "_")) == target
            seen += target.layers
    assert sorted(seen) == sorted(name for name in layers if not name.startswith(OWN_TO_FRAMEPACK))


def test_comfyuis_names_stand_for_the_same_layers() -> None:
    names = [(name, comfyui_name(name)) for pattern in HUNYUAN for name in numbered(pattern)]
    assert sum(own != comfyui for own, comfyui in names) == len(names) - 40 * 2 - 2 - 1 - 2 - 2
    for own, comfyui in names:
        expected = target_of(own)
        assert expected is not None
        for beginning in (comfyui, f"diffusion_model.{comfyui}", f"transformer.{comfyui}", _kohya(comfyui)):
            assert target_of(beginning) == expected, beginning
    assert target_of("double_blocks.3.img_mod.lin") == Target(("transformer_blocks.3.norm1.linear",))
    assert target_of("single_blocks.3.modulation.lin") == Target(("single_transformer_blocks.3.norm.linear",))
    assert target_of("diffusion_model.double_blocks.3.txt_mlp.2") == Target(
        ("transformer_blocks.3.ff_context.net.2",)
    )


def test_the_outputs_are_divided_as_diffusers_divides_them() -> None:
    # Each row carries its number, and diffusers needs only the rows to be of the full size.
    own = {name: outputs for pattern, (outputs, _) in HUNYUAN.items() for name in numbered(pattern)}
    given = {f"{name}.weight": torch.arange(rows).float()[:, None] for name, rows in own.items()}
    expected = convert_hunyuan_video_transformer_to_diffusers(dict(given))
    for name, rows in own.items():
        target = target_of(name)
        assert target is not None
        matrix = given[f"{name}.weight"]
        if target.swaps_halves:
            matrix = torch.cat(matrix.chunk(2)[::-1])
        parts = [expected.pop(f"{layer}.weight") for layer in target.layers]
        assert torch.equal(torch.cat(parts), matrix), name
        assert sum(map(len, parts)) == rows
    assert not expected


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("transformer.proj_out.lora_A.weight", ("transformer.proj_out", "down")),
        ("base_model.model.proj_out.lora_B.default.weight", ("base_model.model.proj_out", "up")),
        ("lora_unet_single_blocks_0_linear1.lora_down.weight", ("lora_unet_single_blocks_0_linear1", "down")),
        ("proj_out.lora.up.weight", ("proj_out", "up")),
        ("proj_out.lora_A.style_1.weight", ("proj_out", "down")),
        ("lora_unet_single_blocks_0_linear1.alpha", ("lora_unet_single_blocks_0_linear1", "alpha")),
        ("proj_out.weight", None),
        ("proj_out.lora_B.bias", ("proj_out", "bias")),
        ("proj_out.diff", None),
    ],
)
def test_the_kind_of_a_tensor(key: str, expected: tuple[str, str] | None) -> None:
    assert split_key(key) == expected


@pytest.mark.parametrize(
    "beginning",
    [
        "lora_te1_text_model_encoder_layers_0_mlp_fc1",
        "double_blocks.0.img_mlp.1",
        "double_blocks.0.img_mod.in_layer",
        "transformer_blocks.0.attn.to_q.processor",
        "blocks.0.self_attn.x",
        "transformer_blocks.x.attn.to_q",
        "transformer_blocks",
        "",
    ],
)
def test_foreign_names_stand_for_no_layer(beginning: str) -> None:
    assert target_of(beginning) is None


def _kohya(name: str) -> str:
    return f"lora_unet_{name.replace('.', '_')}"


WAN = "blocks.3.self_attn.q", "blocks.3.cross_attn.o", "blocks.3.ffn.0", "blocks.3.ffn.2"


@pytest.mark.parametrize(
    "beginning",
    ["{}", "diffusion_model.{}", "base_model.model.{}", "lora_unet_{}", "lora_unet__{}", "dit.{}"],
)
def test_wans_names_are_known_with_each_trainers_prefix(beginning: str) -> None:
    for name in WAN:
        flat = name.replace(".", "_") if "lora_unet" in beginning else name
        target = target_of(beginning.format(flat))
        assert target is not None
        assert target == target_of(name)
        assert target.families == ("helios", "wan", "wan-a14b")
