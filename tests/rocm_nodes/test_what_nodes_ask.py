"""Tests of what the nodes ask of the engine for each input, and of the advice that they give on figures."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from diffusers_helper.memory.measuring import Measured
from diffusers_helper.planning.vae import VaeSettings
from rocm_nodes import benchmark, host, monitors, page, samplers
from rocm_nodes.benchmark import Row
from rocm_nodes.monitors import DecodeTrial
from tests.support.comfy_double import VAE, Comfy, ModelPatcher, PictureVae, WanVAE
from tests.support.node_runs import noise, picture, run

GB = 1024**3
IDLE = {
    "compatibility_mode": True, "cpu_offload": False, "mixed_precision": True, "enable_hip_memory": False,
    "attention_optimization": False, "kernel_tuning": False, "memory_fraction": 0.5, "synchronization": False,
    "fallback": "fp32",
}  # fmt: skip


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[VaeSettings, bool]]:
    """Collect the settings that reach the engine, and whether failing convolutions have other ways."""
    collected = list[tuple[VaeSettings, bool]]()

    def work(
        vae: Any, content: Any, settings: VaeSettings, *, has_ladder: bool
    ) -> tuple[Any, tuple[str, ...]]:
        collected.append((settings, has_ladder))
        return content, ()

    for name in ("decode", "encode"):
        monkeypatch.setattr(f"rocm_nodes.vae_nodes.{name}", work)
    return collected


@pytest.mark.parametrize(
    ("network", "inputs", "changes"),
    [
        (PictureVae, {}, {}),
        (WanVAE, {}, {"chunk": 8}),
        (WanVAE, {"video_chunk_size": 7}, {"chunk": 4}),
        (WanVAE, {"video_chunk_size": 1}, {"chunk": 1}),
        (WanVAE, {"video_chunk_size": 1, "chunk_size": "8"}, {"chunk": 8}),
        (PictureVae, {"chunk_size": "2"}, {"chunk": 2}),
        (PictureVae, {"tile_size": 800, "overlap": 100}, {"fallback_px": 800}),
        (PictureVae, {"tile_size": 799, "overlap": 0}, {"fallback_px": 768, "overlap": 0.0}),
        (PictureVae, {"tile_size": 64, "overlap": 32}, {"fallback_px": 64, "overlap": 0.5}),
        (PictureVae, {"tile_size": 256, "overlap": 256}, {"fallback_px": 256, "overlap": 0.5}),
        (PictureVae, {"precision_mode": "bf16"}, {"precision": "bf16"}),
        (PictureVae, {"memory_threshold": 0.3}, {"memory_threshold": 0.3}),
        (PictureVae, {"memory_threshold": 0.3, "memory_optimization_enabled": False},
         {"memory_threshold": 1.0}),
        (PictureVae, {"cleanup_frequency": 5}, {"cleanup_frequency": 5}),
        (PictureVae, {"batch_optimization": False}, {"batch": False}),
        (PictureVae, IDLE, {}),
    ],
)  # fmt: skip
def test_each_input_of_the_decoder_is_a_setting_of_the_engine(
    network: Any, inputs: dict[str, Any], changes: dict[str, Any], asked: list[tuple[VaeSettings, bool]]
) -> None:
    latents = noise(1, 16, 4, 4) if network is PictureVae else noise(1, 16, 2, 4, 4)
    values = {"samples": {"samples": latents}, "vae": VAE(network()), "tile_size": 768, "overlap": 96}
    for has_ladder in (True, False):
        run("ROCMOptimizedVAEDecode", **values | inputs, use_rocm_optimizations=has_ladder)
    expected = VaeSettings(**{
        "chunk": None, "fallback_px": 768, "overlap": 0.125, "memory_threshold": 0.8, "cleanup_frequency": 1,
        "batch": True, **changes,
    })  # fmt: skip
    assert asked == [(expected, True), (expected, False)]


@pytest.mark.parametrize(
    ("network", "frames", "size", "chunk"),
    [
        (WanVAE, 99, 8, None),  # it is exact without windows
        (PictureVae, 10, 9, 4),
        (PictureVae, 10, 10, None),
        (PictureVae, 99, 10, 8),
        (PictureVae, 4, 1, 1),
        (PictureVae, 3, 1, None),
    ],
)
def test_the_tiled_decoder_works_in_windows_where_the_video_is_longer(
    network: Any, frames: int, size: int, chunk: int | None, asked: list[tuple[VaeSettings, bool]]
) -> None:
    values = {"samples": {"samples": noise(1, 16, frames, 2, 2)}, "vae": VAE(network())}
    run(
        "ROCMOptimizedVAEDecodeTiled", **values, tile_size=256, overlap=64, temporal_size=size,
        temporal_overlap=8, rocm_optimizations=False,
    )  # fmt: skip
    assert asked == [(VaeSettings(chunk=chunk, largest_px=256), False)]


def test_the_encoders_ask_for_their_tiles_and_precision(asked: list[tuple[VaeSettings, bool]]) -> None:
    values = {"pixels": picture(), "vae": VAE(PictureVae()), "tile_size": 512, "overlap": 64}
    run("ROCMOptimizedVAEEncode", **values, use_rocm_optimizations=True, precision_mode="fp16")
    run("ROCMOptimizedVAEEncodeTiled", **values, rocm_optimizations=False)
    assert asked == [
        (VaeSettings(fallback_px=512, overlap=0.125, precision="fp16"), True),
        (VaeSettings(largest_px=512, overlap=0.125), False),
    ]


@pytest.mark.parametrize(
    ("own", "mode", "preferred", "is_on", "on_amd", "expected"),
    [
        ("float16", "auto", "fp32", True, True, "fp32"),
        ("float16", "auto", "fp32", False, True, "auto"),
        ("float16", "auto", "fp32", True, False, "auto"),
        ("float16", "auto", "fp16", True, True, "auto"),
        ("float16", "auto", "auto", True, True, "auto"),
        ("bfloat16", "auto", "fp32", True, True, "auto"),
        ("float16", "fp16", "fp32", True, True, "fp16"),
    ],
)
def test_an_encoder_avoids_fp16_where_it_may(
    own: str, mode: str, preferred: str, is_on: bool, on_amd: bool, expected: str,
    asked: list[tuple[VaeSettings, bool]], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("rocm_nodes.vae_nodes.is_rocm", lambda: on_amd)
    vae = VAE(PictureVae())
    vae.vae_dtype = getattr(torch, own)
    run(
        "ROCMOptimizedVAEEncode", pixels=picture(), vae=vae, tile_size=512, overlap=64, precision_mode=mode,
        use_rocm_optimizations=is_on, rocm_preferred=preferred,
    )  # fmt: skip
    assert [settings.precision for settings, _ in asked] == [expected]


# ---- advice -------------------------------------------------------------------------------------------


def trial(precision: str, tile_px: int, seconds: float, deviation: float, spread: float = 0.0) -> DecodeTrial:
    times = (seconds, seconds, seconds * (1 + spread))
    return DecodeTrial(precision, tile_px, Measured(times, 0), deviation)


FAILED = DecodeTrial("fp16", 0, None, math.nan, "no memory")
FEW = " differed by more than one step of an 8-bit picture"


@pytest.mark.parametrize(
    ("trials", "expected"),
    [
        ([trial("fp32", 0, 3, 0), trial("bf16", 512, 2, 1 / 255)],
         "bf16, in the tiled node with tile_size 512"),
        ([trial("fp32", 0, 3, 0), trial("bf16", 0, 2, 1.01 / 255)], f"fp32, without tiles. 1 other way{FEW}"),
        ([trial("fp32", 0, 3, 0), FAILED], "fp32, without tiles"),
        ([trial("fp32", 0, 3, 0, 0.2)], "fp32, without tiles"),
        ([trial("fp32", 0, 3, 0, 0.3)],
         "fp32, without tiles. The runs differed by 30%, so a small lead means little"),
    ],
)  # fmt: skip
def test_the_fastest_way_whose_pictures_look_the_same_is_recommended(
    trials: list[DecodeTrial], expected: str
) -> None:
    assert monitors._recommended(trials) == f"precision_mode {expected}."
    assert monitors._recommended([FAILED, trial("bf16", 0, 1, 0.5)]).startswith("No setting can be")


def test_a_trial_is_told_in_a_line() -> None:
    assert str(FAILED) == "fp16, one piece: failed (no memory)"
    told = DecodeTrial("bf16", 128, Measured((1.0, 2.0, 1.5), 3 * GB), 0.00391)
    assert str(told) == (
        "bf16, tiles of 128 pixels: 1.5 s (spread 67%), peak 3 GB, largest difference from fp32 0.0039"
    )


def row(blas: str = "", step: float | None = 1.0, cfg: float = 1.0, **values: Any) -> Row:
    facts = {"spread": 0.0, "sample_seconds": 4.0, "decode_seconds": 1.0, **values}
    return Row(64, 32, cfg, blas, step, **facts)


PAIR = [row("hipblaslt", 1.5), row("hipblas", 2.0), row("hipblas", 9.0, cfg=8.0)]


@pytest.mark.parametrize(
    ("rows", "wants", "on_amd", "expected"),
    [
        ([row()], False, False, "The figures suggest no change."),
        ([row()], True, False,
         "hipBLASLt could not be measured: this torch does not compute on an AMD card."),
        (PAIR, True, True, "hipBLASLt was 25% faster than hipBLAS over 1 run."),
        ([row("hipblaslt", 3.0), row("hipblas", 2.0)], True, True,
         "hipBLASLt was 50% slower than hipBLAS over 1 run."),
        ([row(), row(step=None, error="x")], False, True,
         "1 of 2 runs failed; the results name the reasons."),
        ([row(decode_seconds=4.0)], False, True, "The figures suggest no change."),
        ([row(decode_seconds=4.1)], False, True,
         "Decoding took longer than sampling; measure it with ROCm VAE Performance Monitor."),
    ],
)  # fmt: skip
def test_the_benchmark_advises_on_its_figures(
    rows: list[Row], wants: bool, on_amd: bool, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(benchmark, "is_rocm", lambda: on_amd)
    assert benchmark._advice(rows, wants) == expected


def test_the_benchmarks_chart_and_memory_are_of_the_rows_that_worked() -> None:
    rows = [
        row(step=2.0, peak_bytes=2 * GB),
        row(step=0.5, cfg=3.5, peak_bytes=3 * GB),
        row(step=None, error="x"),
    ]
    assert benchmark._chart(rows) == f"64x32 1 {40 * '#'} 2 s\n64x32 3.5 {10 * '#'} 0.5 s"
    assert benchmark._chart([row(step=100.0), row(step=0.1)]).splitlines()[1] == "64x32 1 # 0.1 s"
    assert benchmark._chart(rows[2:]) == ""
    assert benchmark._memory(rows).startswith(
        "Highest peak 3 GB, lowest 2 GB. Memory now: 8 GB used of 16 GB"
    )
    assert [benchmark._line(row) for row in (rows[0], row("hipblas", None, error="no memory"))] == [
        "64x32, cfg 1: 2 s per step (spread 0%), sampled in 4 s, decoded in 1 s, peak 2 GB",
        "64x32, cfg 1, hipblas: failed (no memory)",
    ]


def test_each_library_is_used_for_its_rows_and_the_one_before_comes_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    used = ["cublas"]

    def preferred(name: str | None = None) -> str:
        used.extend([name] if name else [])
        return used[-1]

    monkeypatch.setattr(torch.backends.cuda, "preferred_blas_library", preferred)
    for name in ("hipblaslt", "hipblas", ""):
        with benchmark._library(name):
            pass
    assert used == ["cublas", "cublaslt", "cublas", "cublas", "cublas"]


@pytest.mark.parametrize(
    ("level", "unused", "calls", "given_back", "advice"),
    [
        ("conservative", 255, [], "0 GB", "The level aggressive would unload 1 model"),
        ("conservative", 256, [], "0 GB", "The level balanced could give back 0.25 GB."),
        ("balanced", 255, [], "0 GB", "The level aggressive would unload 1 model"),
        ("balanced", 256, ["soft_empty_cache"], "0.25 GB", "The level aggressive would unload 1 model"),
        ("aggressive", 0, ["unload_all_models", "soft_empty_cache"], "1 GB", "There is nothing else"),
    ],
)
def test_the_optimizer_gives_back_what_is_worth_it_and_says_what_more_there_is(
    level: str, unused: int, calls: list[str], given_back: str, advice: str, comfy: Comfy,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    management, held = host.management(), [unused * 2**20]
    monkeypatch.setattr(management, "get_torch_device", lambda: SimpleNamespace(type="cuda"))
    monkeypatch.setattr(monitors, "device_lines", lambda: ("machine", "memory"))

    def free(dev: Any = None, torch_free_too: bool = False) -> Any:
        return (comfy.free, held[0]) if torch_free_too else comfy.free

    def empty(force: bool = False) -> None:
        comfy.calls.append("soft_empty_cache")
        held[0] = 0

    monkeypatch.setattr(management, "get_free_memory", free)
    monkeypatch.setattr(management, "soft_empty_cache", empty)
    values = {"optimization_level": level, "enable_gc": level == "balanced", "clear_cache": True}
    (_, log, more, _), _ = run("ROCMMemoryOptimizer", **values)
    assert comfy.calls == calls
    assert f"{given_back} were given back to the driver" in log
    assert ("garbage collector" in log) == (level == "balanced")
    assert more.startswith(advice)
    comfy.calls.clear()
    run("ROCMMemoryOptimizer", **values | {"clear_cache": False})
    assert comfy.calls == calls[:-1]


@pytest.mark.parametrize(("hip", "software"), [(None, "CUDA 13.0"), ("7.2", "ROCm 7.2, gfx1100")])
def test_the_card_its_software_and_its_memory_are_told(
    hip: str | None, software: str, comfy: Comfy, monkeypatch: pytest.MonkeyPatch
) -> None:
    card = SimpleNamespace(name="Card", gcnArchName="gfx1100:sramecc+")
    monkeypatch.setattr(host.management(), "get_torch_device", lambda: SimpleNamespace(type="cuda"))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: card)
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(host, "miopen_line", lambda: "MIOpen is off.")
    comfy.free = 3 * GB
    assert host.device_lines() == (
        f"Device: Card ({software}), torch {torch.__version__}. MIOpen is off.",
        "13 GB used of 16 GB; 3 GB free",
    )
    assert host.is_rocm() is (hip is not None)


@pytest.mark.parametrize("has_gpu", [True, False])
def test_a_run_has_the_time_and_the_peak_of_its_own(has_gpu: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, peak = iter([10.0, 14.0]), [9 * GB]
    place = SimpleNamespace(has_gpu=has_gpu, reset_peak=peak.clear, peak_bytes=lambda: max(peak))
    monkeypatch.setattr(page, "device", lambda: place)
    monkeypatch.setattr(page.time, "perf_counter", lambda: next(clock))
    with page.timing() as measured:
        peak.append(2 * GB)
    assert (measured.seconds, measured.peak_bytes) == (4.0, 2 * GB if has_gpu else 0)
    assert measured.peak == ("The peak on the device was 2 GB." if has_gpu else "")


def test_steps_are_timed_between_marks_and_the_first_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 5.0, 6.0, 7.0, 8.0, 11.0])
    monkeypatch.setattr(samplers, "_mark", lambda: next(clock))
    times = samplers.StepTimes()
    assert [times(lambda x, y: x + y, 1, y=number) for number in range(3)] == [1, 2, 3]
    assert times.measured() == (5.0, 1.0, 3.0)
    lines = samplers._lines(times, SimpleNamespace(seconds=20.0, peak="The peak."), ModelPatcher(), "bf16")
    assert lines[1:] == [
        "3 evaluations of the model: median 3 s each; the first took 5 s.", "The peak.",
        "The model computed in bf16 instead of float32, so the bits differ from stock.",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("first", "later", "words"),
    [(5.0, 1.0, "The first step costs 4 s more"), (2.0, 1.0, "The first step costs no more"),
     (2.1, 1.0, "The first step costs 1.1 s more"), (3.0, None, "The first step costs no more")],
)  # fmt: skip
def test_the_sampler_monitor_tells_what_the_first_step_costs(
    first: float, later: float | None, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = (first,) if later is None else (first, later, later)
    monkeypatch.setattr(
        monitors, "timed", lambda model: (model.clone(), SimpleNamespace(measured=lambda: seconds))
    )
    (_, tips, settings), _ = run(
        "ROCMSamplerPerformanceMonitor", model=ModelPatcher(), test_steps=3, positive=[]
    )
    assert f"median {seconds[-1]:.3g} s, spread 0%" in tips
    assert settings.startswith(words)
    assert settings.endswith("8 GB are free after the run.")
