"""Tests of monitors, benchmark and memory optimizer against a double of ComfyUI."""

import itertools
import json
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from syrupy.assertion import SnapshotAssertion

from diffusers_helper.errors import InputError, LongtakeError
from diffusers_helper.memory.measuring import Measured
from diffusers_helper.planning.vae import VaeSettings
from diffusers_helper.units import GB
from rocm_nodes import NODE_CLASS_MAPPINGS, monitors
from rocm_nodes.page import Run
from tests.support.comfy_double import VAE, Comfy, ModelPatcher, PictureVae, WanVAE
from tests.support.node_runs import run


def test_what_the_vaes_monitor_tries_and_tells(
    monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    lines, shift = list[str](), {"fp32": 0.0, "bf16": 0.001, "fp16": 0.5}

    def decode(vae: Any, latents: torch.Tensor, settings: VaeSettings) -> Any:
        lines.append(f"{tuple(latents.shape)} {settings.precision} {settings.tile_px}")
        if settings.precision == "fp16" and settings.tile_px:
            raise LongtakeError("No room.", "Free some.")
        return torch.full((2,), shift[settings.precision] + settings.tile_px / 1e6), ()

    def measured(work: Any, place: object, *, warm_up: int, runs: int) -> Measured:
        work()
        return Measured((1.0 + warm_up,) * runs, 0)

    monkeypatch.setattr(monitors, "decode", decode)
    monkeypatch.setattr(monitors, "measure", measured)
    narrow = {"vae_dtype": torch.float16, "working_dtypes": [torch.bfloat16, torch.float32, torch.int8]}
    for network, side, own in ((PictureVae, 512, {}), (PictureVae, 576, narrow), (WanVAE, 256, {})):
        vae = VAE(network())
        vars(vae).update(own)
        texts, _ = run("ROCMVAEPerformanceMonitor", vae=vae, test_resolution=side)
        lines += [f"> {network.__name__} {side}", *texts[1:]]
    assert "\n".join(lines) == snapshot


@pytest.mark.parametrize(("dimensions", "ratio", "shape"), [(2, None, (8, 12)), (3, 16, (1, 4, 6))])
def test_empty_latents_have_the_form_of_the_model(dimensions: int, ratio: Any, shape: Any) -> None:
    form = SimpleNamespace(latent_channels=5, latent_dimensions=dimensions, spacial_downscale_ratio=ratio)
    if ratio is None:
        del form.spacial_downscale_ratio
    model = SimpleNamespace(get_model_object={"latent_format": form}.get)
    latents = monitors.empty_latent(model, 64, 96)
    assert (latents.shape, int(latents.count_nonzero())) == ((1, 5, *shape), 0)


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


def test_what_the_benchmark_does_writes_and_tells(
    comfy: Comfy, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    lines, library = list[str](), ["its own"]
    seconds, peaks = itertools.cycle([(5.0, 1.0, 2.0), (7.0,)]), itertools.cycle([4 * GB, GB])

    @contextmanager
    def timing() -> Iterator[Run]:
        yield Run(4.0, next(peaks))

    def preferred(name: str | None = None) -> str:
        library[0] = name or library[0]
        return library[0]

    def timed(model: ModelPatcher) -> Any:
        steps = next(seconds)
        return model.clone(), SimpleNamespace(measured=lambda: steps, seconds=steps)

    def measured(work: Any, place: object, runs: int) -> Measured:
        work()
        return Measured((0.5,) * runs, 3 * GB)

    def decode(vae: Any, latents: torch.Tensor, settings: VaeSettings) -> None:
        comfy.calls.append(f"  decode {tuple(latents.shape)} with {library[0]}, {settings == VaeSettings()}")
        if comfy.calls[6:]:
            raise RuntimeError("No room.\nMore.")

    for name, value in {
        "timing": timing, "timed": timed, "measure": measured, "decode": decode,
        "wait_for": lambda place: None, "device": lambda: SimpleNamespace(has_gpu=True),
        "device_lines": lambda: ("a card", "half used"),
    }.items():  # fmt: skip
        monkeypatch.setattr(f"rocm_nodes.benchmark.{name}", value)
    monkeypatch.setattr(torch.backends.cuda, "preferred_blas_library", preferred)
    monkeypatch.setattr("rocm_nodes.benchmark.torch.__version__", "2.0")
    for on_amd, wants, writes in ((True, True, True), (True, False, False), (False, True, False)):
        monkeypatch.setattr("rocm_nodes.benchmark.is_rocm", lambda on_amd=on_amd: on_amd)
        comfy.calls.clear()
        choices = {"test_hipblas": wants, "generate_report": writes, "test_cfg_values": "1.0,5"}
        texts, text = benchmark(test_resolutions="64x96", **choices)
        lines += [f"> {choices}, {on_amd}", *comfy.calls, f"  then {library[0]}", text, texts[1] * writes]
        assert text.partition("used\n")[2].startswith("\n".join((texts[0], *texts[2:])))
    (file,) = (comfy.root / "output").glob("rocm_flux_benchmark_*_*.json")
    facts = json.loads(file.read_text())
    lines += [str(facts | {"rows": len(facts["rows"])}), *map(str, facts["rows"][-2:])]
    assert "\n".join(lines).replace(str(file), "FILE") == snapshot
    assert math.isnan(NODE_CLASS_MAPPINGS["ROCMFluxBenchmark"].IS_CHANGED())


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
