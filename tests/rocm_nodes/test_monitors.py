"""Tests of monitors, benchmark and memory optimizer against a double of ComfyUI."""

import json
import math
from typing import Any

import pytest
import torch

from diffusers_helper.errors import InputError
from rocm_nodes import NODE_CLASS_MAPPINGS
from tests.support.comfy_double import VAE, Comfy, ModelPatcher, PictureVae
from tests.support.node_runs import run


@pytest.mark.slow
def test_the_vae_monitor_measures() -> None:
    (machine, tips, settings), _ = run(
        "ROCMVAEPerformanceMonitor", vae=VAE(PictureVae()), test_resolution=256
    )
    assert machine.startswith("Device: CPU (no GPU), torch ")
    rows = tips.splitlines()
    assert [row.split(":")[0] for row in rows] == [
        "fp32, one piece", "fp32, tiles of 128 pixels", "bf16, one piece", "bf16, tiles of 128 pixels",
    ]  # fmt: skip
    assert "largest difference from fp32 0" in rows[0]
    assert settings.startswith("precision_mode fp32, ")
    assert math.isnan(NODE_CLASS_MAPPINGS["ROCMVAEPerformanceMonitor"].IS_CHANGED(vae=None))


def test_the_sampler_monitor_measures_or_says_what_it_lacks() -> None:
    model = ModelPatcher()
    (_, tips, _), _ = run("ROCMSamplerPerformanceMonitor", model=model, test_steps=4)
    assert tips == "Nothing was measured: connect a conditioning to positive."
    (_, tips, _), _ = run("ROCMSamplerPerformanceMonitor", model=model, test_steps=4, positive=[])
    assert tips.startswith("4 evaluations at latents 1x16x64x64: ")


class Clip:
    def tokenize(self, text: str) -> str:
        return text

    def encode_from_tokens_scheduled(self, tokens: str) -> list[Any]:
        return []


def benchmark(**changes: Any) -> tuple[tuple[str, ...], str]:
    inputs = {
        "model": ModelPatcher(), "vae": VAE(PictureVae()), "clip": Clip(), "test_resolutions": "64x64",
        "test_steps": 2, "test_cfg_values": "1.0, 3.5", "test_hipblas": True, "generate_report": True,
    }  # fmt: skip
    return run("ROCMFluxBenchmark", **(inputs | changes))


def test_the_benchmark_samples_decodes_and_writes_its_figures(comfy: Comfy) -> None:
    (results, chart, advice, memory), _ = benchmark()
    assert [line.split(":")[0] for line in results.splitlines()] == ["64x64, cfg 1", "64x64, cfg 3.5"]
    assert "decoded in" in results
    assert chart.count("#") >= 2
    assert "hipBLASLt could not be measured" in advice
    assert memory.startswith("The peak could not be measured: there is no GPU.")
    (file,) = (comfy.root / "output").glob("rocm_flux_benchmark_*.json")
    report = json.loads(file.read_text())
    assert (report["comfyui"], len(report["rows"])) == ("0.3.64", 2)
    assert report["rows"][0]["seconds_per_step"] > 0


def test_the_benchmark_decodes_once_before_it_measures() -> None:
    vae, decodes = VAE(PictureVae()), list[int]()
    vae.first_stage_model.decoder.register_forward_pre_hook(lambda *_: decodes.append(1))
    benchmark(vae=vae, test_cfg_values="1.0", generate_report=False)
    assert len(decodes) == 2


def test_a_run_that_fails_is_a_row_with_its_reason(comfy: Comfy) -> None:
    vae = VAE(PictureVae())

    def fail(*_: Any) -> None:
        raise RuntimeError("shapes cannot be multiplied")

    vae.first_stage_model.decoder.register_forward_pre_hook(fail)
    (results, _, advice, _), _ = benchmark(vae=vae, generate_report=False)
    assert results.count("failed (shapes cannot be multiplied)") == 2
    assert "2 of 2 runs failed" in advice


def test_texts_from_other_nodes_are_checked_when_the_benchmark_begins() -> None:
    for changes in ({"test_resolutions": "64x65"}, {"test_cfg_values": "x"}):
        with pytest.raises(InputError, match=r"is '64x65'|is 'x'"):
            benchmark(**changes)


def test_a_checkpoint_without_a_text_encoder_is_refused_in_words() -> None:
    with pytest.raises(InputError, match="The input clip is empty"):
        benchmark(clip=None)


def test_a_model_whose_evaluation_is_replaced_is_not_measured() -> None:
    model = ModelPatcher()
    model.clone = lambda: model
    model.wrapped = lambda kind, call: call
    (results, *_), _ = benchmark(model=model, test_cfg_values="1", generate_report=False)
    assert "failed (A patch replaces the model's evaluation. Remove it to measure the model.)" in results
    with pytest.raises(InputError, match="A patch replaces the model's evaluation"):
        run("ROCMSamplerPerformanceMonitor", model=model, test_steps=1, positive=[])


def test_a_precision_that_the_device_lacks_is_a_row_with_its_reason() -> None:
    vae = VAE(PictureVae())

    def fail(_: Any, args: tuple[Any, ...]) -> None:
        if args[0].dtype is torch.bfloat16:
            raise RuntimeError("not implemented for 'BFloat16'")

    vae.first_stage_model.decoder.register_forward_pre_hook(fail)
    (_, tips, settings), _ = run("ROCMVAEPerformanceMonitor", vae=vae, test_resolution=64)
    assert tips.count("failed (not implemented for 'BFloat16')") == 2
    assert settings.startswith("precision_mode fp32")


def test_the_optimizer_takes_any_type_and_passes_it_on() -> None:
    (status, _, _, passed), _ = run(
        "ROCMMemoryOptimizer",
        optimization_level="conservative",
        enable_gc=True,
        clear_cache=True,
        anything="x",
    )  # fmt: skip
    assert (passed, "8 GB free" in status) == ("x", True)
    kind = NODE_CLASS_MAPPINGS["ROCMMemoryOptimizer"]
    assert math.isnan(kind.IS_CHANGED(anything="x"))
    assert not kind.RETURN_TYPES[3] != "IMAGE"  # noqa: SIM202 - ComfyUI compares in this way
    assert kind.VALIDATE_INPUTS(input_types={"anything": "IMAGE"})
