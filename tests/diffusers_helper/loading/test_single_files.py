"""Tests that single files in each format and layout of names give the video of the model they came from."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType
from torch import Tensor

from diffusers_helper.events import Finished
from diffusers_helper.families.framepack import CONFIGS
from diffusers_helper.loading.casting import RestoringCasting
from diffusers_helper.loading.keys import library_names
from diffusers_helper.loading.loaders import Models
from diffusers_helper.loading.networks import empty_network
from diffusers_helper.machine import sysfs
from diffusers_helper.models.sizes import networks, published_bytes
from diffusers_helper.pipeline import Result
from diffusers_helper.weights.recognition import is_precise
from tests.support.checkpoints import (
    comfyui_names,
    model_with,
    original_names,
    to_fp8,
    to_int8,
    to_scaled_fp8,
    unscaled,
    with_prefix,
    write_quantised_gguf,
)
from tests.support.making import make, tiny_request

pytestmark = pytest.mark.usefixtures("own_models")

BF16, FP8 = torch.bfloat16, (torch.float8_e4m3fn, torch.float8_e5m2)
STYLES: dict[str, Callable[[Mapping[str, Tensor]], dict[str, Tensor]]] = {
    "diffusers": dict,
    "original": original_names,
    "checkpoint": with_prefix("model.diffusion_model."),
    "comfyui": comfyui_names,
    "comfyui checkpoint": lambda tensors: with_prefix("model.diffusion_model.")(comfyui_names(tensors)),
}
Weights, Add, Video = dict[str, Tensor], Callable[..., Models], Callable[..., Result]
BLOCKS = (GGMLQuantizationType.Q5_1, GGMLQuantizationType.Q8_0, GGMLQuantizationType.Q4_0)


@pytest.fixture
def video(small_scene: Path, tmp_path: Path) -> Video:
    """Return a function that makes a picture, and streams as many of the blocks as possible if asked."""
    numbers = iter(range(99))

    def made(models: Models, *, streamed: bool = False, **settings: Any) -> Result:
        settings |= {"preserved_gb": 64} if streamed else {}
        request = tiny_request(small_scene, one_frame=9, **settings)
        result, events = make(request, models, tmp_path / f"job{next(numbers)}")
        assert isinstance(events[-1], Finished)
        assert (events[-1].bytes_streamed > 0) == streamed
        return result

    return made


@pytest.fixture(scope="module")
def expected(deep_models: Models, small_scene: Path, tmp_path_factory: pytest.TempPathFactory) -> Tensor:
    """Return the latents of the picture that the model makes of its own files."""
    folder = tmp_path_factory.mktemp("expected") / "job"
    return make(tiny_request(small_scene, one_frame=9), deep_models, folder)[0].latents


def equal(network: torch.nn.Module, tensors: Mapping[str, Tensor]) -> bool:
    found = network.state_dict()
    return found.keys() == tensors.keys() and all(
        found[name].dtype == tensor.dtype and torch.equal(found[name], tensor)
        for name, tensor in tensors.items()
    )


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, BF16])
def test_plain_weights_are_those_of_the_file(
    style: str, dtype: torch.dtype, weights: Weights, add: Add
) -> None:
    plain = {name: tensor.to(dtype) for name, tensor in weights.items()}
    models = add(transformer=STYLES[style](plain))
    assert equal(models.component("transformer"), plain)
    assert models.stored_dtype("transformer") == dtype


@pytest.mark.slow
@pytest.mark.parametrize("style", STYLES)
def test_the_video_is_the_same_whole_and_streamed(
    style: str, weights: Weights, expected: Tensor, add: Add, video: Video
) -> None:
    models = add(transformer=STYLES[style](weights))
    assert torch.equal(video(models).latents, expected)
    streamed = video(models, streamed=True)
    assert torch.equal(streamed.latents, expected)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "style"), [*zip(FP8, STYLES, strict=False)])
def test_fp8_gives_the_video_of_the_rounded_weights(
    kind: torch.dtype, style: str, weights: Weights, deep_model: Path, add: Add, tmp_path: Path, video: Video,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(sysfs, "computes_bf16", lambda: True)  # both compute in the same type
    stored = to_fp8({name: tensor.to(BF16) for name, tensor in weights.items()}, kind)
    tensors = {name: tensor.to(BF16) for name, tensor in stored.items()}
    rounded = model_with(deep_model, tmp_path / "folder", transformer=tensors)
    expected = video(rounded).latents
    models = add(transformer=STYLES[style](stored))
    assert torch.equal(video(models).latents, expected)
    assert torch.equal(video(models, streamed=True).latents, expected)
    network = models.component("transformer")
    assert network.transformer_blocks[0].ff.net[2].weight.dtype == kind
    assert network.x_embedder.proj.weight.dtype == BF16


@pytest.mark.slow
@pytest.mark.parametrize(
    ("quantise", "style"),
    [
        (to_scaled_fp8, "original"), (partial(to_scaled_fp8, by_row=True), "diffusers"),
        (to_scaled_fp8, "comfyui"),
        (to_int8, "original"), (to_int8, "diffusers"),
    ],
)  # fmt: skip
def test_scaled_weights_give_the_video_of_what_they_stand_for(
    quantise: Callable[..., dict[str, Tensor]], style: str, weights: Weights, deep_model: Path, add: Add,
    tmp_path: Path, video: Video, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(sysfs, "computes_bf16", lambda: True)  # both compute in the same type
    named = STYLES[style]({name: tensor.to(BF16) for name, tensor in weights.items()})
    stored = quantise(named)
    models = add(transformer=stored)
    own, _ = library_names(unscaled(stored, BF16), weights, 32)
    expected = video(model_with(deep_model, tmp_path / "folder", transformer=own)).latents
    assert torch.equal(video(models).latents, expected)
    assert torch.equal(video(models, streamed=True).latents, expected)


def test_weights_are_rounded_to_int8_while_they_are_streamed(
    deep_models: Models, expected: Tensor, video: Video
) -> None:
    whole = video(deep_models, weight_dtype="int8").latents
    assert torch.equal(video(deep_models, streamed=True, weight_dtype="int8").latents, whole)
    assert not torch.equal(expected, whole)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "style"), [*zip(BLOCKS, STYLES, strict=False)])
def test_gguf_is_as_near_as_its_blocks(
    kind: GGMLQuantizationType, style: str, weights: Weights, expected: Tensor, add: Add, tmp_path: Path,
    video: Video,
) -> None:  # fmt: skip
    file = write_quantised_gguf(tmp_path / "model.gguf", STYLES[style](weights), kind)
    models = add(transformer=file)
    whole = video(models).latents
    assert torch.equal(video(models, streamed=True).latents, whole)
    error = ((whole - expected).norm() / expected.norm()).item()
    assert error < {"Q8_0": 0.05, "Q5_1": 0.2, "Q4_0": 0.4}[kind.name]


def test_a_gguf_file_without_blocks_is_exact(weights: Weights, add: Add, tmp_path: Path) -> None:
    plain = {name: tensor.to(BF16) for name, tensor in weights.items()}
    narrow = {name: tensor for name, tensor in plain.items() if tensor.dim() != 2 or tensor.shape[1] % 32}
    assert narrow
    file = write_quantised_gguf(tmp_path / "m.gguf", plain, GGMLQuantizationType.BF16, plain=BF16)
    assert equal(add(transformer=file).component("transformer"), plain)


@pytest.mark.parametrize("wrapped", [False, True])
def test_pickles_of_weights_alone_are_mapped(
    wrapped: bool, weights: Weights, add: Add, tmp_path: Path
) -> None:
    content = {"state_dict": weights, "global_step": 7} if wrapped else weights
    torch.save(content, tmp_path / "model.ckpt")
    assert equal(add(transformer=tmp_path / "model.ckpt").component("transformer"), weights)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("part", "prefix"),
    [
        ("vae", "vae."), ("text_encoder", "model."), ("text_encoder_2", "text_model."),
        ("image_encoder", "vision_model."),
    ],
)  # fmt: skip
def test_the_other_parts_take_single_files(
    part: str, prefix: str, deep_models: Models, expected: Tensor, add: Add, video: Video
) -> None:
    own = deep_models.component(part).state_dict()
    beside = {"lm_head.weight": torch.zeros(2, 2)} if part == "text_encoder" else {}
    named = {prefix + name: tensor for name, tensor in own.items()} | beside
    models = add(**{part: named})
    assert equal(models.component(part), own)
    assert torch.equal(video(models).latents, expected)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [FP8[0], torch.int8])
@pytest.mark.parametrize("part", ["text_encoder", "text_encoder_2", "image_encoder", "vae"])
def test_the_other_parts_take_8_bit(
    kind: torch.dtype, part: str, deep_models: Models, add: Add, video: Video
) -> None:
    whole = deep_models.component(part).state_dict()
    stored = to_int8(whole) if kind == torch.int8 else to_fp8(whole, kind)
    models = add(**{part: stored})
    result = video(models)
    assert result.latents.isfinite().all()
    layers = [one for one in models.component(part).modules() if type(one) is torch.nn.Linear]
    assert sum(one.weight.dtype == kind for one in layers) > 3


def test_the_published_names_are_known_in_all_layouts() -> None:
    network = empty_network("transformer", CONFIGS["transformer"])
    expected = network.state_dict()
    assert len(expected) == 1274
    layouts = [original_names(expected), comfyui_names(expected)]
    for layout in layouts:
        assert len(layout) == 866
        back, _ = library_names(layout, expected, 3072)
        assert {name: tensor.shape for name, tensor in back.items()} == {
            name: tensor.shape for name, tensor in expected.items()
        }
    for layout in (expected, *layouts):  # the plan counts what diffusers' list would cast
        castable = [t for n, t in layout.items() if t.dim() == 2 and not is_precise(n)]
        assert sum(t.numel() for t in castable) == 9_130_868_736


@pytest.mark.parametrize("part", CONFIGS)
def test_the_published_configurations_have_the_published_sizes(part: str) -> None:
    network = empty_network(part, CONFIGS[part])
    assert 2 * sum(parameter.numel() for parameter in network.parameters()) == published_bytes(part)


def test_what_a_plan_counts_is_what_is_stored(weights: Weights, add: Add, tmp_path: Path) -> None:
    plain = {name: tensor.to(BF16) for name, tensor in weights.items()}
    files = {
        "fp8": original_names(to_fp8(plain, FP8[0])), "scaled": to_scaled_fp8(plain), "int8": to_int8(plain),
        "gguf": write_quantised_gguf(tmp_path / "c.gguf", plain, GGMLQuantizationType.Q8_0),
    }  # fmt: skip
    for name, file in files.items():
        models = add(name, transformer=file)
        found = networks(models.info, on_cpu=True)["transformer"]
        network = models.component("transformer")
        blocks = [size_of(one) for one in models.blocks("transformer")]
        assert found.weights.block_bytes == tuple(blocks)
        assert found.weights.total_bytes == size_of(network)
        assert found.dtype_bytes == 2
        assert found.cast_bytes > 0


def size_of(module: torch.nn.Module) -> int:
    return sum(tensor.nbytes for tensor in (*module.parameters(), *module.buffers()))


def test_a_hook_puts_the_mapped_weight_back(weights: Weights, add: Add) -> None:
    layer = add(transformer=to_fp8(weights, FP8[0])).component("transformer").proj_out
    before = layer.weight.data_ptr()
    hook = layer._diffusers_hook.get_hook("layerwise_casting")
    assert isinstance(hook, RestoringCasting)
    with torch.inference_mode():
        assert layer(torch.ones(1, layer.in_features, dtype=BF16)).dtype == BF16
    assert layer.weight.data_ptr() == before
    assert layer.weight.dtype == FP8[0]


def test_a_file_of_several_types_computes_in_that_of_most_values(weights: Weights, add: Add) -> None:
    mixed = {name: tensor.to(BF16) if tensor.dim() > 1 else tensor for name, tensor in weights.items()}
    assert sum(tensor.dtype == BF16 for tensor in mixed.values()) < len(mixed) / 2
    models = add(transformer=mixed)
    assert equal(models.component("transformer"), {name: tensor.to(BF16) for name, tensor in weights.items()})
    found = networks(models.info, on_cpu=False)["transformer"]
    assert found.weights.total_bytes == 2 * sum(tensor.numel() for tensor in weights.values())
