"""Tests that each type of weights gives on the device what it gives on the CPU, whole and streamed."""

import json
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType
from safetensors.torch import load_file
from torch import Tensor

from diffusers_helper.loading.casting import WEIGHT_DTYPES, cast_weights
from diffusers_helper.loading.networks import load_network
from diffusers_helper.memory.residency import Resident
from diffusers_helper.memory.staging import Staging
from tests.support.checkpoints import to_scaled_fp8, write_quantised_gguf, write_safetensors
from tests.support.deep_model import blocks_of, run_pass
from tests.support.gpu import DEVICES

Write = Callable[[Path, Mapping[str, Tensor]], Path]
PLAIN: Write = lambda folder, tensors: write_safetensors(folder / "plain.safetensors", tensors)  # noqa: E731
SCALED: Write = lambda folder, tensors: PLAIN(folder, to_scaled_fp8(tensors))  # noqa: E731


def in_blocks(kind: GGMLQuantizationType) -> Write:
    return lambda folder, tensors: write_quantised_gguf(folder / "blocks.gguf", tensors, kind)


# How the weights are stored, and the type of the setting `weight_dtype`.
KINDS: dict[str, tuple[Write, str]] = {
    **{name: (PLAIN, name) for name in ("", "bf16", "fp8_e4m3fn", "fp8_e5m2", "int8")},
    "scaled fp8": (SCALED, ""),
    "Q8_0": (in_blocks(GGMLQuantizationType.Q8_0), ""),
    "Q5_1": (in_blocks(GGMLQuantizationType.Q5_1), ""),
    "Q4_0": (in_blocks(GGMLQuantizationType.Q4_0), ""),
}


@pytest.fixture(scope="module")
def weights(deep_model: Path) -> dict[str, Tensor]:
    return load_file(deep_model / "transformer" / "diffusion_pytorch_model.safetensors")


@pytest.fixture(scope="module")
def config(deep_model: Path) -> dict[str, Any]:
    return json.loads((deep_model / "transformer" / "config.json").read_text())


@pytest.mark.parametrize("name", DEVICES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_pass_is_that_of_the_cpu_whole_and_streamed(
    kind: str, name: str, weights: dict[str, Tensor], config: dict[str, Any], tmp_path: Path
) -> None:
    write, stored = KINDS[kind]
    network = load_network("transformer", write(tmp_path, weights), config).network
    dtype = torch.bfloat16 if kind == "bf16" else torch.float32
    cast_weights(network, dtype, WEIGHT_DTYPES.get(stored))

    def outcome(device: str, *streamed: int) -> Tensor:
        staging, blocks = Staging(torch.device(device)), blocks_of(network)
        with closing(Resident(network, staging, blocks=blocks, streamed=streamed, dtype=dtype)):
            return run_pass(network, device, dtype).float()

    expected, found = outcome("cpu"), outcome(name)
    assert expected.isfinite().all()
    assert torch.equal(outcome(name, 0, 2, 4, 6), found)
    error = ((found - expected).norm() / expected.norm()).item()
    assert error < (0.05 if dtype == torch.bfloat16 else 0.005)  # convolutions may compute in TF32
