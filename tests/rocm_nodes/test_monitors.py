"""Tests of monitors, benchmark and memory optimizer against a double of ComfyUI."""

import json
import math
import re
from functools import partial
from typing import Any

import pytest
import torch
from syrupy.assertion import SnapshotAssertion

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


def failing(error: str, dtype: torch.dtype | None = None) -> VAE:
    """Return a VAE that cannot decode, or not in one type."""

    def fail(_: Any, args: tuple[Any, ...]) -> None:
        if dtype in (None, args[0].dtype):
            raise RuntimeError(error)

    vae = VAE(PictureVae())
    vae.first_stage_model.decoder.register_forward_pre_hook(fail)
    return vae


def test_what_fails_is_a_row_with_its_reason(snapshot: SnapshotAssertion) -> None:
    replaced = ModelPatcher()
    replaced.clone = lambda: replaced
    replaced.wrapped = lambda kind, call: call
    lines = [
        *benchmark(vae=failing("shapes cannot be multiplied"), generate_report=False)[0],
        *benchmark(model=replaced, test_cfg_values="1", generate_report=False)[0],
    ]
    narrow = failing("not implemented for 'BFloat16'", torch.bfloat16)
    (_, tips, settings), _ = run("ROCMVAEPerformanceMonitor", vae=narrow, test_resolution=64)
    assert settings.startswith("precision_mode fp32")
    lines.append(tips)
    monitor = partial(run, "ROCMSamplerPerformanceMonitor", model=ModelPatcher(), test_steps=4)
    lines += [monitor()[0][1], monitor(positive=[])[0][1]]
    for refused in (
        lambda: benchmark(test_resolutions="64x65"), lambda: benchmark(test_cfg_values="x"),
        lambda: benchmark(clip=None), lambda: monitor(model=replaced, positive=[]),
    ):  # fmt: skip
        with pytest.raises(InputError) as caught:
            refused()
        lines.append(str(caught.value))
    assert re.sub(r"[\d.]+(e-\d+)?( s\b|%)", "...", "\n".join(lines)) == snapshot


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
