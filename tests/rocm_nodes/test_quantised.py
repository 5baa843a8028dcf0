"""Tests of weights that stay in blocks of GGUF, against the library `gguf` and a double of ComfyUI."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from diffusers_helper.errors import InputError
from diffusers_helper.weights.gguf_file import LOADABLE
from rocm_nodes.quantised import BlockWeight, load_gguf
from tests.support.comfy_double import Comfy, ModelPatcher
from tests.support.node_runs import run

KINDS = gguf.GGMLQuantizationType


def blocks_of(kind: str, rows: int = 4) -> Tensor:
    """Return rows of random blocks whose scales are small numbers."""
    size, num_bytes = gguf.GGML_QUANT_SIZES[KINDS[kind]]
    data = np.random.default_rng(0).integers(0, 64, (rows, 512 // size, num_bytes), np.uint8)
    data[..., 1::2] &= 0x3B  # as the second byte of a half, it is never infinite
    return torch.from_numpy(data.reshape(rows, -1))


@pytest.mark.parametrize("kind", LOADABLE)
@pytest.mark.parametrize("is_inference", [True, False])
def test_blocks_stand_for_the_values_of_the_library(kind: str, is_inference: bool) -> None:
    blocks = blocks_of(kind)
    expected = torch.from_numpy(gguf.quants.dequantize(blocks.numpy(), KINDS[kind]))
    with torch.inference_mode(is_inference):  # as ComfyUI's nodes run
        weight = BlockWeight(blocks, KINDS[kind], (4, 512))
        assert weight.shape == (4, 512)
        assert expected.std() > 0
        assert torch.equal(weight.dequantised(torch.float32), expected)
        for dtype in (torch.float16, torch.float32):
            assert torch.equal(weight.to(dtype), expected.to(dtype))
            assert torch.equal(weight.to(dtype=dtype, copy=True), expected.to(dtype))
        states = torch.randn(2, 512, dtype=torch.bfloat16)
        found = nn.functional.linear(states, weight)
        assert torch.equal(found, nn.functional.linear(states, expected.bfloat16()))
        assert isinstance(nn.Parameter(weight.to("cpu", copy=True), requires_grad=False), BlockWeight)


def test_a_weight_moves_as_blocks_and_cannot_be_written() -> None:
    weight = BlockWeight(blocks_of("Q4_0"), KINDS.Q4_0, (4, 512))
    moved = weight.to("cpu", copy=True)
    assert isinstance(moved, BlockWeight)
    assert moved.blocks.nbytes == 4 * 16 * 18
    assert isinstance(nn.Parameter(moved, requires_grad=False), BlockWeight)
    room = torch.empty_like(weight, dtype=torch.float32)
    room.copy_(weight)
    assert torch.equal(room, weight.dequantised(torch.float32))
    with pytest.raises(TypeError, match="would write to a weight in blocks of GGUF"):
        weight.mul_(2)


class Operations:
    """ComfyUI's operations, of which a model of one layer needs one."""

    class Linear(nn.Linear):
        pass


class Patcher(ModelPatcher):
    """ComfyUI's patcher, as far as it puts LoRAs into weights."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model: Any = model
        self.backup: dict[str, Any] = {}

    def patch_weight_to_device(self, key: str, device_to: Any = None, return_weight: bool = False) -> str:
        return "stock"


@pytest.fixture
def host(comfy: Comfy, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Extend the double by a loader of one layer, `layer`, and return the options that it was given."""
    given: dict[str, Any] = {}

    def load(sd: dict[str, Tensor], model_options: Any, disable_dynamic: bool = False) -> Any:
        given.update(model_options, disable_dynamic=disable_dynamic)
        if "layer.weight" not in sd:
            return None
        rows, columns = sd["layer.weight"].shape
        model = nn.Module()
        model.layer = model_options["custom_operations"].Linear(columns, rows)
        model.load_state_dict(sd, strict=False)
        return Patcher(model)

    def calculate_weight(patches: list[Tensor], weight: Tensor, key: str) -> Tensor:
        return weight + sum(patches)

    def set_attr_param(model: nn.Module, key: str, value: Tensor) -> None:
        model.layer.weight = nn.Parameter(value, requires_grad=False)

    monkeypatch.setattr(sys.modules["comfy.sd"], "load_diffusion_model_state_dict", load, raising=False)
    utils = sys.modules["comfy.utils"]
    monkeypatch.setattr(utils, "get_attr", lambda model, key: model.layer.weight, raising=False)
    monkeypatch.setattr(utils, "set_attr_param", set_attr_param, raising=False)
    for name, content in (
        ("ops", {"manual_cast": Operations}),
        ("lora", {"calculate_weight": calculate_weight}),
    ):
        module = ModuleType(f"comfy.{name}")
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, f"comfy.{name}", module)
    return given


def write(file: Path, *, shape: list[int] | None = None, name: str = "layer.weight") -> Tensor:
    """Write a file with one weight in Q8_0 and its bias, and return the weight."""
    writer = gguf.GGUFWriter(file, "wan")
    plain = np.random.default_rng(1).standard_normal((8, 64), np.float32)
    blocks = gguf.quants.quantize(plain, KINDS.Q8_0)
    writer.add_tensor(name, blocks, raw_dtype=KINDS.Q8_0)
    writer.add_tensor("layer.bias", np.ones(shape[0] if shape else 8, np.float32))
    if shape:
        writer.add_array(f"comfy.gguf.orig_shape.{name}", shape)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return torch.from_numpy(gguf.quants.dequantize(blocks, KINDS.Q8_0))


def test_the_loader_lists_gguf_files_and_keeps_their_weights(comfy: Comfy, host: dict[str, Any]) -> None:
    folder = comfy.root / "diffusion_models"
    folder.mkdir()
    plain = write(folder / "wan-Q8_0.gguf")
    from rocm_nodes import NODE_CLASS_MAPPINGS

    names, _ = NODE_CLASS_MAPPINGS["ROCMOptimizedUNetLoader"].INPUT_TYPES()["required"]["unet_name"]
    assert names == ["wan-Q8_0.gguf"]
    (model,), text = run("ROCMOptimizedUNetLoader", unet_name=names[0], weight_dtype="fp8_e5m2")
    layer = model.model.layer
    assert isinstance(layer.weight, BlockWeight)
    assert torch.equal(layer.weight.dequantised(torch.float32), plain)
    assert torch.equal(layer.bias, torch.ones(8))
    assert sum(value.nbytes for value in model.model.state_dict().values()) == 8 * 2 * 34 + 32
    assert host["disable_dynamic"]
    assert "The weights stay quantised" in text
    assert "weight_dtype fp8_e5m2 is not used: the file's weights stay as they are." in text


def test_a_lora_is_added_when_a_weight_computes(comfy: Comfy, host: dict[str, Any]) -> None:
    plain = write(comfy.root / "a.gguf")
    model = load_gguf(comfy.root / "a.gguf")
    assert model.patch_weight_to_device("layer.weight") == "stock"  # there is no LoRA
    original = model.model.layer.weight
    model.patches = {"layer.weight": [torch.full((8, 64), 0.5)]}
    for _ in range(2):  # a second call adds it only once
        model.patch_weight_to_device("layer.weight", torch.device("cpu"))
    changed = model.model.layer.weight
    assert isinstance(changed, BlockWeight)
    assert torch.equal(changed.dequantised(torch.float32), plain + 0.5)
    assert model.backup["layer.weight"].weight is original
    assert torch.equal(original.dequantised(torch.float32), plain)
    assert model.patch_weight_to_device("layer.weight", return_weight=True) == "stock"


def test_a_shape_that_a_converter_has_noted_is_restored(comfy: Comfy, host: dict[str, Any]) -> None:
    plain = write(comfy.root / "a.gguf", shape=[16, 32])
    weight = load_gguf(comfy.root / "a.gguf").model.layer.weight
    assert weight.shape == (16, 32)
    assert torch.equal(weight.dequantised(torch.float32), plain.reshape(16, 32))


def test_packages_that_are_missing_are_named_with_the_command(
    comfy: Comfy, monkeypatch: pytest.MonkeyPatch
) -> None:
    (comfy.root / "diffusion_models").mkdir()
    write(comfy.root / "diffusion_models" / "a.gguf")
    monkeypatch.setattr("rocm_nodes.loaders.version_of", lambda name: "")
    with pytest.raises(InputError, match=r"it lacks gguf, diffusers.* Install what is missing: .*-m pip"):
        run("ROCMOptimizedUNetLoader", unet_name="a.gguf")


def test_an_unknown_model_is_refused(comfy: Comfy, host: dict[str, Any]) -> None:
    write(comfy.root / "a.gguf", name="unknown")
    with pytest.raises(InputError, match=r"ComfyUI does not know the model in a\.gguf"):
        load_gguf(comfy.root / "a.gguf")


def test_blocks_that_cannot_be_taken_apart_are_refused(comfy: Comfy, host: dict[str, Any]) -> None:
    file = comfy.root / "a.gguf"
    writer = gguf.GGUFWriter(file, "wan")
    writer.add_tensor("layer.weight", np.zeros((8, 50), np.uint8), raw_dtype=KINDS.IQ1_S)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(InputError, match=r"a\.gguf contains IQ1_S \(layer\.weight\); use a file with one of"):
        load_gguf(file)
