"""Tests of LoRAs on a transformer: their results are those of merged weights, and nothing of them stays."""

import copy
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Self

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from diffusers_helper.loading.loaders import Models
from diffusers_helper.loading.lora_adapters import Loras
from diffusers_helper.memory.residency import Resident
from diffusers_helper.memory.staging import Staging
from diffusers_helper.memory.weights import sizes_of
from diffusers_helper.models.sizes import networks, with_loras
from diffusers_helper.weights.lora_files import loras_of, read_lora
from tests.support.deep_model import run_pass
from tests.support.loras import STYLES, merge, write_lora
from tests.support.making import load_tiny


@pytest.fixture
def network(deep_models: Models) -> nn.Module:
    return deep_models.component("transformer")


@contextmanager
def attached(network: nn.Module, text: str) -> Iterator[list[str]]:
    with Loras(loras_of(text)) as loras:
        yield loras.attach(network, torch.float32)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "style.safetensors"


def state_of(network: nn.Module) -> tuple[object, ...]:
    """List everything that a LoRA could leave in a network."""
    values = [
        (name, one.data_ptr(), one.detach().numpy().tobytes()) for name, one in network.named_parameters()
    ]
    hooks = sum(len(module._forward_hooks) for module in network.modules())
    return values, [name for name, _ in network.named_modules()], hooks


@pytest.mark.parametrize("style", STYLES)
def test_each_style_gives_what_merged_weights_give(style: str, network: nn.Module, file: Path) -> None:
    changes = write_lora(file, network, style, alpha=2.0 if "kohya" in style else None)
    merged = copy.deepcopy(network)
    merge(merged, changes, 0.7)
    plain, expected = run_pass(network), run_pass(merged)
    with attached(network, f"{file}:0.7") as reported:
        found = run_pass(network)
    total = read_lora(file).keys
    assert reported == [f"LoRA style.safetensors, weight 0.7: {total} of {total} keys applied."]
    assert (expected - plain).abs().max() > 0.1
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_two_loras_add_up(network: nn.Module, tmp_path: Path) -> None:
    one, other = tmp_path / "one.safetensors", tmp_path / "other.safetensors"
    merged = copy.deepcopy(network)
    merge(merged, write_lora(one, network, "kohya", rank=2, alpha=1, seed=1), 0.5)
    merge(merged, write_lora(other, network, "original", rank=4, seed=2), -1)
    with attached(network, f"{one}:0.5\n{other}:-1") as reported:
        assert len(reported) == 2
        torch.testing.assert_close(run_pass(network), run_pass(merged), rtol=1e-4, atol=1e-5)


def test_weights_change_between_sections(network: nn.Module, tmp_path: Path) -> None:
    one, other = tmp_path / "one.safetensors", tmp_path / "other.safetensors"
    name = "transformer_blocks.0.attn.to_q"
    bias = torch.randn(network.get_submodule(name).out_features)
    more = {f"transformer.{name}.diff_b": bias}
    changes = write_lora(one, network, rank=2, more=more), write_lora(other, network, rank=4, seed=2)
    with Loras(loras_of(f"{one}:0.5\n{other}:-1")) as loras:
        loras.attach(network, torch.float32)
        begin = run_pass(network)
        for weights, expected in (({"one": 1.5}, (1.5, -1)), ({"one": 0, "other.safetensors": 2}, (0, 2))):
            loras.weigh(weights)
            merged = copy.deepcopy(network)
            for host in merged.modules():
                host._forward_hooks.clear()
            for change, weight in zip(changes, expected, strict=True):
                merge(merged, change, weight)
            layer = merged.get_submodule(name)
            layer.bias = nn.Parameter(layer.bias + expected[0] * bias, requires_grad=False)
            torch.testing.assert_close(run_pass(network), run_pass(merged), rtol=1e-4, atol=1e-5)
        loras.weigh({})
        assert torch.equal(run_pass(network), begin)


class Packed(nn.Linear):
    """A layer with weights in 8 bits and a scale, in a flat tensor without the layer's shape."""

    @classmethod
    def of(cls, layer: nn.Linear) -> Self:
        packed = cls(layer.in_features, layer.out_features, device="meta")
        packed.scale = (layer.weight.abs().max() / 127).item()
        values = (layer.weight / packed.scale).round().to(torch.int8).flatten()
        packed.weight, packed.bias = nn.Parameter(values, requires_grad=False), layer.bias
        return packed

    @property
    def plain(self) -> Tensor:
        return self.weight.view(self.out_features, self.in_features).float() * self.scale

    def forward(self, input: Tensor) -> Tensor:
        return nn.functional.linear(input, self.plain, self.bias)


def test_layers_with_packed_weights_take_a_lora(network: nn.Module, file: Path) -> None:
    packed, merged = copy.deepcopy(network), copy.deepcopy(network)
    changes = write_lora(file, network)
    for name in changes:
        layer = Packed.of(network.get_submodule(name))
        packed.set_submodule(name, layer)
        merged.get_submodule(name).weight.data = layer.plain
    merge(merged, changes)
    before = state_of(packed)
    with attached(packed, str(file)):
        torch.testing.assert_close(run_pass(packed), run_pass(merged), rtol=1e-4, atol=1e-5)
    assert state_of(packed) == before


def test_layerwise_casting_leaves_the_branches_alone(network: nn.Module, file: Path) -> None:
    cast, merged = copy.deepcopy(network), copy.deepcopy(network)
    changes = write_lora(file, network)
    cast.enable_layerwise_casting(torch.float8_e4m3fn, torch.float32)
    for name, parameter in cast.named_parameters():
        merged.get_parameter(name).data = parameter.float()
    merge(merged, changes)
    with attached(cast, str(file)):
        torch.testing.assert_close(run_pass(cast), run_pass(merged), rtol=1e-4, atol=1e-5)
        assert {one.dtype for one in cast.parameters()} == {torch.float32, torch.float8_e4m3fn}


def test_weight_0_is_no_lora(network: nn.Module, file: Path) -> None:
    write_lora(file, network)
    plain = run_pass(network)
    with attached(network, f"{file}:0") as reported:
        assert reported == []
        assert torch.equal(run_pass(network), plain)


def test_nothing_of_a_lora_stays(network: nn.Module, file: Path) -> None:
    write_lora(file, network)
    plain, before = run_pass(network), state_of(network)
    with attached(network, str(file)):
        assert not torch.equal(run_pass(network), plain)
        assert state_of(network) != before
    assert state_of(network) == before
    assert torch.equal(run_pass(network), plain)


def test_streamed_blocks_give_the_same_bits_and_count_the_same_bytes(network: nn.Module, file: Path) -> None:
    write_lora(file, network)
    blocks = [*network.transformer_blocks, *network.single_transformer_blocks]
    plain_bytes = sizes_of(network, blocks)
    with attached(network, str(file)):
        staging, streamed = Staging(torch.device("cpu")), [0, 1, 3, 4, 6]
        with closing(Resident(network, staging)):
            whole = run_pass(network)
        with closing(Resident(network, staging, blocks=blocks, streamed=streamed)) as resident:
            assert torch.equal(run_pass(network), whole)
        assert resident.bytes_streamed >= sum(sizes_of(network, blocks)[1][index] for index in streamed)
        more = sizes_of(network, blocks)[0] - plain_bytes[0]
    assert more == sum(tensor.numel() * 4 for tensor in load_file(file).values())
    assert sizes_of(network, blocks) == plain_bytes


@pytest.mark.parametrize("style", ["diffusers", "kohya original"])
def test_the_plan_counts_the_bytes_that_the_branches_have(
    style: str, deep_model: Path, tmp_path: Path
) -> None:
    models = load_tiny(deep_model)
    file, network = tmp_path / "style.safetensors", models.component("transformer")
    write_lora(file, network, style, rank=5, alpha=1.0 if "kohya" in style else None)
    plain = networks(models.info, on_cpu=True)["transformer"]
    planned = with_loras(plain, [read_lora(file)]).weights
    with attached(network, str(file)):
        total, blocks = sizes_of(network, models.blocks("transformer"))
    assert (planned.total_bytes, planned.block_bytes) == (total, blocks)
    assert planned.total_bytes > plain.weights.total_bytes
