"""Tests of the setting `weight_dtype`: its pixels, its memory, and its place in recipes and origins."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from gguf import GGMLQuantizationType
from safetensors.torch import load_file
from torch import Tensor

from diffusers_helper.cancel import CancelToken
from diffusers_helper.errors import GenerationCancelled, InputError, LongtakeError
from diffusers_helper.events import Cancelled, Event, Finished, JobStarted, Reading, StageStarted, Warned
from diffusers_helper.families.framepack import CONFIGS
from diffusers_helper.job.plans import MemoryPlans
from diffusers_helper.loading import casting
from diffusers_helper.loading.loaders import Models, load_models
from diffusers_helper.loading.networks import empty_network
from diffusers_helper.machine.local import Local
from diffusers_helper.models.registry import ComponentSource, find_model
from diffusers_helper.pipeline import Result, generate
from diffusers_helper.planning.profiles import Machine, profile_for
from diffusers_helper.planning.video import VideoPlan, plan_video
from diffusers_helper.provenance.recipe import read_recipe
from diffusers_helper.weights.recognition import is_precise
from tests.support.checkpoints import (
    model_with,
    to_fp8,
    to_scaled_fp8,
    write_quantised_gguf,
)
from tests.support.making import load_tiny, make, tiny_request

BF16, E4M3 = torch.bfloat16, torch.float8_e4m3fn
Video = Callable[..., Result]


@pytest.fixture
def video(small_scene: Path, tmp_path: Path) -> Video:
    numbers = iter(range(99))

    def made(models: Models, **settings: Any) -> Result:
        request = tiny_request(small_scene, one_frame=9, **settings)  # a picture, which costs less
        return make(request, models, tmp_path / f"job{next(numbers)}")[0]

    return made


@pytest.fixture
def model_of(deep_model: Path, tmp_path: Path) -> Callable[[dict[str, Tensor] | Path], Models]:
    """Return a function that returns the model with another transformer, as a folder."""
    numbers = iter(range(99))
    return lambda tensors: model_with(deep_model, tmp_path / f"model{next(numbers)}", transformer=tensors)


def rounded_rows(weight: Tensor) -> Tensor:
    scales = weight.double().abs().amax(1, keepdim=True).float() / 127
    return ((weight / scales).round() * scales).to(weight.dtype)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "rounded"),
    [("fp8_e4m3fn", lambda weight: weight.to(E4M3).to(weight.dtype)), ("int8", rounded_rows)],
)
def test_8_bit_is_the_video_of_the_rounded_layers_and_leaves_no_trace(
    name: str, rounded: Callable[[Tensor], Tensor], weights: dict[str, Tensor], deep_models: Models,
    model_of: Callable[..., Models], video: Video,
) -> None:  # fmt: skip
    tensors = {
        key: rounded(tensor) if tensor.dim() == 2 and not is_precise(key) else tensor
        for key, tensor in weights.items()
    }
    default = video(deep_models).latents
    expected = video(model_of(tensors)).latents
    assert not torch.equal(expected, default)
    assert torch.equal(video(deep_models, weight_dtype=name).latents, expected)
    assert torch.equal(video(deep_models).latents, default)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "dtype"), [("bf16", BF16), ("fp16", torch.float16)])
def test_16_bit_is_the_video_of_the_cast_weights(
    name: str, dtype: torch.dtype, weights: dict[str, Tensor], deep_models: Models,
    model_of: Callable[..., Models], video: Video,
) -> None:  # fmt: skip
    cast = model_of({key: tensor.to(dtype) for key, tensor in weights.items()})
    expected = video(cast, weight_dtype=name).latents
    assert torch.equal(video(deep_models, weight_dtype=name).latents, expected)
    assert not torch.equal(video(deep_models).latents, expected)
    stored = model_of(to_fp8(weights, E4M3))
    assert video(stored, weight_dtype=name).latents.isfinite().all()


def test_the_layers_are_those_that_diffusers_would_cast() -> None:
    network = empty_network("transformer", CONFIGS["transformer"])
    network.enable_layerwise_casting(storage_dtype=E4M3, compute_dtype=BF16)
    cast = {name for name, layer in network.named_modules() if hasattr(layer, "_diffusers_hook")}
    linear = {n for n, layer in network.named_modules() if isinstance(layer, torch.nn.Linear)}
    assert cast == {name for name in linear if not is_precise(f"{name}.weight")}
    assert len(cast) > 300
    for dtype, names in ((E4M3, cast), (BF16, linear), (torch.float16, linear)):
        types = casting.layer_types(network, dtype)
        assert {name for name, _, wanted in types if wanted == dtype} == names


def test_the_search_for_scales_is_told_and_can_be_cancelled(
    deep_model: Path, small_scene: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(casting, "_REPORT_SECONDS", 0.0)
    models = load_models(find_model(str(deep_model), allow_folder=True), device="cpu")
    default, _ = make(tiny_request(small_scene), models, tmp_path / "default")
    request = tiny_request(small_scene, weight_dtype="int8")
    cancel, reported = CancelToken(), list[Event]()

    def watch(event: Event) -> None:
        reported.append(event)
        if isinstance(event, Reading):
            cancel.cancel()

    with pytest.raises(GenerationCancelled):
        generate(request, models, on_event=watch, cancel=cancel, folder=tmp_path / "cancelled")
    reported = [event for event in reported if not isinstance(event, Warned)]
    assert [type(event) for event in reported] == [JobStarted, StageStarted, Reading, Cancelled]
    again, _ = make(tiny_request(small_scene), models, tmp_path / "again")
    assert torch.equal(again.latents, default.latents)  # what was found does not touch other types
    made, events = make(request, models, tmp_path / "int8")
    readings = [event for event in events if isinstance(event, Reading)]
    kinds = casting.layer_types(models.component("transformer"), torch.int8)
    layers = [layer for _, layer, wanted in kinds if wanted == torch.int8]
    assert len(readings) == len(layers) - 1  # one was found before the cancel
    assert readings[-1].done_bytes == readings[-1].total_bytes
    first = reported[2]
    assert isinstance(first, Reading)
    assert first.total_bytes == sum(cast(Any, layer.weight).nbytes for layer in layers)
    assert first.done_bytes + readings[-1].total_bytes == first.total_bytes
    loads = [event.stage for event in events if isinstance(event, StageStarted)]
    assert loads[0] == "load"
    fresh = load_models(find_model(str(deep_model), allow_folder=True), device="cpu")
    expected, events = make(request, fresh, tmp_path / "fresh")
    assert torch.equal(made.latents, expected.latents)
    assert [e.stage for e in events if isinstance(e, StageStarted)].count("load") == 1
    _, events = make(request, fresh, tmp_path / "known")
    assert not [e for e in events if isinstance(e, Reading)]


def test_int8_is_nearer_to_16_bit_than_fp8(
    weights: dict[str, Tensor], model_of: Callable[..., Models], video: Video
) -> None:
    models = model_of({key: tensor.to(BF16) for key, tensor in weights.items()})
    expected = video(models).latents
    errors = {
        name: ((video(models, weight_dtype=name).latents - expected).norm() / expected.norm()).item()
        for name in ("int8", "fp8_e4m3fn", "fp8_e5m2")
    }
    assert 0 < errors["int8"] < 0.01
    assert errors["int8"] < errors["fp8_e4m3fn"] < errors["fp8_e5m2"]


def test_what_is_quantised_with_scales_keeps_its_type(
    weights: dict[str, Tensor], deep_model: Path, model_of: Callable[..., Models], video: Video,
    tmp_path: Path,
) -> None:  # fmt: skip
    with pytest.raises(InputError, match="with scales"):
        video(model_of(to_scaled_fp8(weights)), weight_dtype="bf16")
    file = write_quantised_gguf(tmp_path / "blocks.gguf", weights, GGMLQuantizationType.Q8_0)
    info = find_model(str(deep_model), allow_folder=True)
    blocks = ComponentSource(location=str(file), config=CONFIGS["transformer"])
    models = load_models(replace(info, components=info.components | {"transformer": blocks}), device="cpu")
    with pytest.raises(InputError, match="GGUF"):
        video(models, weight_dtype="fp8_e4m3fn")


def test_the_recipe_has_it_and_a_job_goes_on_only_with_it(
    deep_models: Models, small_scene: Path, tmp_path: Path
) -> None:
    request = tiny_request(small_scene, weight_dtype="fp8_e5m2", mode="forward")
    result, _ = make(request, deep_models, tmp_path / "job")
    recipe = read_recipe(result.video)
    assert recipe.settings["weight_dtype"] == "fp8_e5m2"
    assert recipe.request({"image": str(small_scene)}, model="demo").weight_dtype == "fp8_e5m2"
    plain = tiny_request(small_scene, mode="forward")
    with pytest.raises(LongtakeError, match="weight_dtype"):
        make(plain, deep_models, tmp_path / "other", resume_from=tmp_path / "job")
    result, _ = make(plain, deep_models, tmp_path / "plain")
    assert "weight_dtype" not in read_recipe(result.video).settings


def test_the_published_model_takes_less_in_fp8(small_scene: Path) -> None:
    profile = profile_for(Machine("rocm", "gfx1100", "RX 7900 XTX", 24 * 1024**3), {})

    def plan(name: str, preserved: float) -> VideoPlan:
        request = tiny_request(small_scene, weight_dtype=name, preserved_gb=preserved)
        return plan_video(request, find_model("framepack-i2v"), profile)

    sizes = {name: plan(name, 0).job.stage("sample") for name in ("default", "fp8_e4m3fn", "int8")}
    whole = {name: stage.resident_bytes + stage.streamed_bytes for name, stage in sizes.items()}
    assert whole["default"] == 2 * 12_874_314_816
    assert whole["fp8_e4m3fn"] == 2 * 12_874_314_816 - 9_130_868_736
    assert whole["int8"] == whole["fp8_e4m3fn"] + 4 * 2_119_680
    assert not sizes["fp8_e4m3fn"].streamed_blocks
    assert sizes["default"].streamed_blocks
    # The files stay as they are, so that main memory has to keep more than is streamed.
    streamed = plan("fp8_e4m3fn", 18)
    assert streamed.waiting_bytes > 1.5 * streamed.job.stage("sample").streamed_bytes
    default = plan("default", 18)
    assert default.waiting_bytes == default.job.stage("sample").streamed_bytes


@pytest.mark.slow
def test_the_plan_predicts_the_peak_of_each_type(mid_model: Path, small_scene: Path, tmp_path: Path) -> None:
    models = load_tiny(mid_model)
    tensors = load_file(mid_model / "transformer" / "diffusion_pytorch_model.safetensors")
    file = write_quantised_gguf(tmp_path / "blocks.gguf", tensors, GGMLQuantizationType.Q8_0)
    config = json.loads((mid_model / "transformer" / "config.json").read_text(encoding="utf-8"))
    blocks = {"transformer": ComponentSource(location=str(file), config=config)}
    of_blocks = load_models(replace(models.info, components=models.info.components | blocks), device="cpu")
    peaks: dict[str, int] = {}
    for name in ("default", "fp8_e4m3fn", "int8", "gguf"):
        models = of_blocks if name == "gguf" else models
        request = tiny_request(small_scene, one_frame=9, weight_dtype="default" if name == "gguf" else name)
        _, events = make(request, models, tmp_path / name, local=Local())
        assert isinstance(events[-1], Finished)
        plans = MemoryPlans(request, models, 64, 64, Local())
        record = read_stage(tmp_path / name, "sample")
        peaks[name] = record["measured_bytes"]
        predicted = plans.plan.stage("sample").peak_bytes - plans.plan.budget.reserve_bytes
        assert 0.9 < record["measured_bytes"] / predicted <= 1
    assert peaks["fp8_e4m3fn"] < 0.9 * peaks["default"]
    assert peaks["fp8_e4m3fn"] < peaks["int8"] < 1.01 * peaks["fp8_e4m3fn"]
    assert peaks["gguf"] < 0.85 * peaks["default"]


def read_stage(folder: Path, stage: str) -> dict[str, Any]:
    stages = json.loads((folder / "memory.json").read_text(encoding="utf-8"))["stages"]
    return next(one for one in stages if one["stage"] == stage)
