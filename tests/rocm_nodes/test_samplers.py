"""Tests of the samplers against a double of ComfyUI."""

import re
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from syrupy.assertion import SnapshotAssertion
from torch import Tensor

from rocm_nodes import NODE_CLASS_MAPPINGS
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
    assert comfy.texts == [("7", text.splitlines()[0])]  # shown below the node that runs
    assert model.wrappers == []  # the model itself is not changed


def test_what_a_sampler_does_and_says(
    comfy: Comfy, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    lines, observed = list[str](), list[torch.dtype]()
    monkeypatch.setattr(ModelPatcher, "set_model_compute_dtype", lambda self, dtype: observed.append(dtype))
    names = list(NODE_CLASS_MAPPINGS["ROCMOptimizedKSampler"].INPUT_TYPES()["optional"])
    for changes in (
        {}, {"optimize_for_video": True}, {"steps": 1}, {"precision_mode": "bf16"},
        {"precision_mode": "fp32"}, {"compatibility_mode": True},
        dict(zip(names, (True, "auto", True), strict=True)),  # as a workflow of the first version has them
    ):  # fmt: skip
        for record in (comfy.shown, comfy.previews, observed):
            record.clear()
        _, text = run("ROCMOptimizedKSampler", **sampler_inputs(ModelPatcher(), **changes))
        texts = re.sub(r"[\d.]+(e-\d+)? s\b", "... s", text)
        lines.append(f"{changes}: {observed} {comfy.shown} {comfy.previews} {texts}")
    assert "\n".join(lines) == snapshot


class Noise:
    seed = 3

    def generate_noise(self, latent: dict[str, Tensor]) -> Tensor:
        return torch.randn(latent["samples"].shape, generator=torch.Generator().manual_seed(self.seed))


def custom(noise: Any, guider: Any, sampler: Any, sigmas: Tensor, latent_image: Any) -> tuple[Any, ...]:
    """Do what ComfyUI's SamplerCustomAdvanced does, with a step for each noise level."""
    x = noise.generate_noise(latent_image)
    for _ in range(len(sigmas) - 1):
        x = guider.model_patcher.evaluate(x)
    return {**latent_image, "samples": x}, {**latent_image, "samples": x * 2}


@pytest.mark.parametrize("is_newer", [False, True])
def test_the_custom_sampler_is_comfyuis_own_with_a_report(
    is_newer: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("comfy_extras.nodes_custom_sampler")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    older = type("SamplerCustomAdvanced", (), {"sample": staticmethod(custom)})
    newer = SimpleNamespace(execute=lambda *given: SimpleNamespace(result=custom(*given)))
    vars(module)["SamplerCustomAdvanced"] = newer if is_newer else older
    model, latent = ModelPatcher(), {"samples": torch.zeros(1, 16, 4, 4)}
    given = {"noise": Noise(), "sampler": "euler", "sigmas": torch.ones(4), "latent_image": latent}
    guider = SimpleNamespace(model_patcher=model)
    expected = custom(guider=guider, **given)
    dtypes = list[torch.dtype]()
    monkeypatch.setattr(ModelPatcher, "set_model_compute_dtype", lambda self, dtype: dtypes.append(dtype))
    options = {"flash_attention": "disable_flash", "precision_mode": "bf16"}
    found, text = run("ROCMSamplerCustomAdvanced", guider=guider, **given, **options)
    assert dtypes == [torch.bfloat16]
    assert "bf16 instead of float32" in text
    assert len(found) == 2
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.equal(ours["samples"], theirs["samples"])
    assert "3 evaluations of the model" in text
    assert guider.model_patcher is model
    assert model.wrappers == []


def test_the_advanced_sampler_passes_all_its_inputs_on(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = sampler_inputs(ModelPatcher())
    del inputs["seed"], inputs["denoise"]
    extra = {"noise_seed": 3, "start_at_step": 1, "end_at_step": 2}
    nodes, arguments = sys.modules["nodes"], dict[str, Any]()
    common = nodes.common_ksampler
    monkeypatch.setattr(nodes, "common_ksampler", lambda *a, **k: arguments.update(k) or common(*a, **k))
    for is_last, (adds, keeps) in ((True, ("enable", "disable")), (False, ("disable", "enable"))):
        choices = {"add_noise": adds, "return_with_leftover_noise": keeps}
        (result,), _ = run("ROCMOptimizedKSamplerAdvanced", **inputs, **extra, **choices)
        assert arguments == {
            "disable_noise": not is_last, "start_step": 1, "last_step": 2, "force_full_denoise": is_last
        }  # fmt: skip
    expected = stock(**sampler_inputs(ModelPatcher(), seed=3, disable_noise=True))
    assert torch.equal(result["samples"], expected)
