"""Tests of estimated working sets against the accounting device, of sizes from files, and of calibration."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.calibrate_memory import Result, clip, llama, siglip, transformer, vae, videos
from diffusers_helper.errors import LongtakeError
from diffusers_helper.families.family import buckets
from diffusers_helper.machine.local import Local
from diffusers_helper.models.registry import find_model
from diffusers_helper.models.sizes import networks
from diffusers_helper.planning.estimates import (
    calibration_of,
    demand_of,
    largest_bucket,
    latent_tokens,
    tile_steps,
)

DEMO = networks(find_model("demo"), on_cpu=False)
FULL = networks(find_model("framepack-i2v"), on_cpu=False)
ATEN = torch.ops.aten


def check(*results: Result) -> None:
    assert results
    for result in results:
        assert 0.99 < result.ratio < 1.1, result


def test_sampling_is_within_a_tenth() -> None:
    for dtype in (torch.bfloat16, torch.float32):
        check(
            transformer(8, 64, 96, 128, dtype=dtype, text=16, vision=4),
            transformer(4, 128, 128, 96, dtype=dtype, text=60, vision=64),
        )
    check(transformer(4, 64, 64, 64, dtype=torch.bfloat16, text=256, vision=729))  # more text than picture


def test_encoders_are_within_a_tenth() -> None:
    check(
        llama(3, 128, 512, 351, torch.float32),
        llama(6, 256, 768, 108, torch.bfloat16),
        clip(256, 1024, torch.float32),
        siglip(512, 2048, 112, 14, torch.float32),
    )


class NoConvolutions(TorchDispatchMode):
    """A mode in which convolutions give zeros, since some processors take minutes for those in bf16."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket not in (ATEN.convolution, ATEN.conv2d, ATEN.conv3d):
            return func(*args, **(kwargs or {}))
        shapes = (
            argument.to("meta") if isinstance(argument, torch.Tensor) else argument for argument in args
        )
        return args[0].new_zeros(func(*shapes, **(kwargs or {})).shape)


@pytest.mark.slow
def test_videos_of_both_kinds_are_estimated_from_above() -> None:
    with NoConvolutions():
        check(*videos(torch.bfloat16))


@pytest.mark.slow
@pytest.mark.parametrize(("height", "width", "tile"), [(64, 64, 256), (64, 96, 64)])
def test_the_vae_is_estimated_from_above(height: int, width: int, tile: int) -> None:
    # With so few channels the frames dominate, and fp32 on a CPU does not copy them.
    check(*vae(8, 1, height, width, tile, torch.float32))


def test_tokens_are_those_that_the_paper_packs() -> None:
    assert latent_tokens(640, 608) == 17500
    counts = [latent_tokens(*shape) for shape in buckets()]
    assert (min(counts), max(counts)) == (17226, 17970)
    assert largest_bucket(640, 32) == (960, 416) or largest_bucket(640, 32) == (416, 960)


def test_sizes_of_the_demo_are_those_of_its_tensors() -> None:
    folder = Path(find_model("demo").components["transformer"].location)
    tensors = load_file(next(folder.glob("*.safetensors")))
    network = DEMO["transformer"]
    assert network.weights.total_bytes == sum(tensor.nbytes for tensor in tensors.values())
    blocks = [
        sum(tensor.nbytes for key, tensor in tensors.items() if key.startswith(f"{prefix}.{index}."))
        for prefix, count in (("transformer_blocks", 1), ("single_transformer_blocks", 7))
        for index in range(count)
    ]
    assert list(network.weights.block_bytes) == blocks
    assert len(DEMO["text_encoder"].weights.block_bytes) == 3
    assert network.dtype_bytes == 2


def test_smaller_tiles_need_less() -> None:
    peaks = [demand_of(FULL, 640, 608, tile).stages[-1].working_bytes for tile in tile_steps(256)]
    assert len(peaks) == 5
    assert peaks == sorted(peaks, reverse=True)
    assert tile_steps(256, 96) == (96,)
    assert tile_steps(320) == (320, 256, 192, 128, 96, 64)


@pytest.mark.parametrize("text", ["{", "[]", '{"cpu": 5}'])
def test_a_calibration_of_no_use_changes_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "calibration.json").write_text(text)
    assert calibration_of(Local(folder=tmp_path).calibration, "cpu") == {}


def test_files_that_are_no_weights_are_refused(tmp_path: Path) -> None:
    model = tmp_path / "model"
    for part in find_model("demo").components:
        (model / part).mkdir(parents=True)
    with pytest.raises(LongtakeError, match=r"text_encoder in .* cannot be read"):
        networks(find_model(str(model), allow_folder=True), on_cpu=True)
