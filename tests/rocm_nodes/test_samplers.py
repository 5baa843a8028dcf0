"""Tests of the samplers against a double of ComfyUI."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.comfy_double import Comfy, ModelPatcher
from tests.support.node_runs import run


def sampler_inputs(model: Any, **changes: Any) -> dict[str, Any]:
    return {
        "model": model, "seed": 7, "steps": 3, "cfg": 1.0, "sampler_name": "euler", "scheduler": "simple",
        "positive": [], "negative": [], "latent_image": {"samples": torch.zeros(1, 16, 4, 4), "extra": 1},
        "denoise": 1.0,
    } | changes  # fmt: skip


def stock(**inputs: Any) -> Tensor:
    import nodes  # type: ignore[import-not-found]

    inputs["latent"] = inputs.pop("latent_image")
    return nodes.common_ksampler(**inputs)[0]["samples"]


@pytest.mark.parametrize("is_for_video", [False, True])
def test_a_sample_has_the_bits_of_the_stock_node(is_for_video: bool, comfy: Comfy) -> None:
    model = ModelPatcher()
    expected = stock(**sampler_inputs(model))
    (found,), text = run("ROCMOptimizedKSampler", **sampler_inputs(model), optimize_for_video=is_for_video)
    assert torch.equal(found["samples"], expected)
    assert found["extra"] == 1
    assert "3 evaluations of the model" in text
    assert model.wrappers == []  # the model itself is not changed
    assert comfy.shown == ([(1, 3), (2, 3), (3, 3)] if is_for_video else [])


def test_the_precision_is_set_on_a_clone(monkeypatch: pytest.MonkeyPatch) -> None:
    model, seen = ModelPatcher(), list[torch.dtype]()
    monkeypatch.setattr(ModelPatcher, "set_model_compute_dtype", lambda self, dtype: seen.append(dtype))
    _, text = run("ROCMOptimizedKSampler", **sampler_inputs(model), precision_mode="bf16")
    assert seen == [torch.bfloat16]
    assert "the bits differ from those of the stock node" in text


def test_the_advanced_sampler_passes_all_its_inputs_on() -> None:
    inputs = sampler_inputs(ModelPatcher())
    del inputs["seed"], inputs["denoise"]
    extra = {
        "add_noise": "disable",
        "noise_seed": 3,
        "start_at_step": 1,
        "end_at_step": 2,
        "return_with_leftover_noise": "enable",
    }
    (found,), _ = run("ROCMOptimizedKSamplerAdvanced", **inputs, **extra)
    expected = stock(**sampler_inputs(ModelPatcher(), seed=3, disable_noise=True))
    assert torch.equal(found["samples"], expected)
