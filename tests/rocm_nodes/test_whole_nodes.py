"""Tests of all that nodes declare, of all that they ask of the engine, and of the advice on their figures."""

import itertools
import math
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from PIL import Image
from syrupy.assertion import SnapshotAssertion

from diffusers_helper.memory.measuring import Measured
from diffusers_helper.planning.vae import VaeSettings
from diffusers_helper.request import SETTINGS
from rocm_nodes import NODE_CLASS_MAPPINGS, NODE_DISPLAY_NAME_MAPPINGS, benchmark, monitors
from rocm_nodes.benchmark import Row
from rocm_nodes.decoding import for_quantised
from rocm_nodes.framepack.node import request_of
from rocm_nodes.monitors import DecodeTrial
from rocm_nodes.page import Run
from tests.support.answers import text_of, without
from tests.support.comfy_double import VAE, Comfy, ModelPatcher, PictureVae, WanVAE
from tests.support.node_runs import noise, picture, run

GB = 1024**3
# What a node declares of itself, beside its inputs; the help pages have the descriptions.
FACTS = (
    "FUNCTION",
    "CATEGORY",
    "RETURN_TYPES",
    "RETURN_NAMES",
    "OUTPUT_NODE",
    "DEPRECATED",
    "SEARCH_ALIASES",
)


def declared(types: Mapping[str, Any]) -> Iterator[str]:
    for group, inputs in types.items():
        for name, (kind, options) in inputs.items():
            view = {option: value for option, value in options.items() if option != "tooltip"}
            yield f"{group}.{name}: {text_of(kind)} {text_of(view)}"


@pytest.mark.parametrize("category", sorted({kind.CATEGORY for kind in NODE_CLASS_MAPPINGS.values()}))
def test_what_nodes_declare(category: str, snapshot: SnapshotAssertion) -> None:
    texts, known = list[str](), set[str]()
    for name, kind in NODE_CLASS_MAPPINGS.items():
        if category != kind.CATEGORY:
            continue
        facts = NODE_DISPLAY_NAME_MAPPINGS[name], *(getattr(kind, fact, None) for fact in FACTS)
        texts.append(f"{name}: {text_of(facts)}")
        lines = [*declared(kind.INPUT_TYPES())]
        texts += [f"  {line}" for line in lines if line not in known]
        texts.append(f"  in this order: {', '.join(line.partition(':')[0] for line in lines)}")
        known |= {*lines}
    assert "\n".join(texts) == snapshot


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Collect the settings that reach the engine, and whether failing convolutions have other ways."""
    collected = list[str]()

    def work(vae: Any, content: Any, settings: VaeSettings, *, has_ladder: bool) -> Any:
        collected.append(f"{'ladder' if has_ladder else 'plain'} {text_of(settings)}")
        return content, ()

    for name in ("decode", "encode"):
        monkeypatch.setattr(f"rocm_nodes.vae_nodes.{name}", work)
    return collected


IDLE = {
    "compatibility_mode": True, "cpu_offload": False, "mixed_precision": True, "enable_hip_memory": False,
    "attention_optimization": False, "kernel_tuning": False, "memory_fraction": 0.5, "synchronization": False,
    "fallback": "fp32",
}  # fmt: skip
WAN = {"network": WanVAE}


def test_what_the_vaes_nodes_ask_of_the_engine(
    asked: list[str], monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    lines = list[str]()
    for inputs in (
        {}, WAN, WAN | {"video_chunk_size": 7}, WAN | {"video_chunk_size": 1},
        WAN | {"video_chunk_size": 1, "chunk_size": "8"}, {"chunk_size": "2"},
        {"tile_size": 800, "overlap": 100}, {"tile_size": 799, "overlap": 0},
        {"tile_size": 64, "overlap": 32}, {"tile_size": 256, "overlap": 256},
        {"precision_mode": "bf16"}, {"memory_threshold": 0.3},
        {"memory_threshold": 0.3, "memory_optimization_enabled": False}, {"cleanup_frequency": 5},
        {"batch_optimization": False}, {"use_rocm_optimizations": False}, IDLE,
    ):  # fmt: skip
        network = inputs.get("network", PictureVae)
        latents = noise(1, 16, 4, 4) if network is PictureVae else noise(1, 16, 2, 4, 4)
        values = {"samples": {"samples": latents}, "vae": VAE(network()), "tile_size": 768, "overlap": 96}
        changes = {name: value for name, value in inputs.items() if name != "network"}
        run("ROCMOptimizedVAEDecode", **values | changes)
        lines.append(f"decode {network.__name__} {changes}: {asked.pop()}")
    for network, frames, size in (
        (WanVAE, 99, 8), (PictureVae, 10, 9), (PictureVae, 10, 10), (PictureVae, 99, 10), (PictureVae, 4, 1),
        (PictureVae, 3, 1), (PictureVae, 7, 24), (PictureVae, 11, 40),
    ):  # fmt: skip
        run(
            "ROCMOptimizedVAEDecodeTiled", samples={"samples": noise(1, 16, frames, 2, 2)},
            vae=VAE(network()), tile_size=256, overlap=64, temporal_size=size, temporal_overlap=8,
            rocm_optimizations=False,
        )  # fmt: skip
        lines.append(f"decode in tiles {network.__name__} {frames} {size}: {asked.pop()}")
    values = {"pixels": picture(), "vae": VAE(PictureVae()), "tile_size": 512, "overlap": 64}
    run("ROCMOptimizedVAEEncodeTiled", **values)
    lines.append(f"encode in tiles: {asked.pop()}")
    for own, mode, preferred, is_on, on_amd in (
        ("float16", "auto", "fp32", True, True), ("float16", "auto", "fp32", False, True),
        ("float16", "auto", "fp32", True, False), ("float16", "auto", "fp16", True, True),
        ("float16", "auto", "auto", True, True), ("bfloat16", "auto", "fp32", True, True),
        ("float16", "fp16", "fp32", True, True), ("float16", "auto", "bf16", True, True),
    ):  # fmt: skip
        monkeypatch.setattr("rocm_nodes.vae_nodes.is_rocm", lambda on_amd=on_amd: on_amd)
        values["vae"].vae_dtype = getattr(torch, own)
        choice = {"precision_mode": mode, "use_rocm_optimizations": is_on, "rocm_preferred": preferred}
        _, text = run("ROCMOptimizedVAEEncode", **values, **choice)
        lines.append(f"encode {own} {choice} {on_amd}: {asked.pop()} {text}")
    for kind in ("float8_e4m3fn", "int8", "float8_e5m2, int8"):
        settings = VaeSettings(chunk=8, precision="fp16", batch=True, fallback_px=768)
        quantised = [settings, VaeSettings(memory_threshold=0.1, largest_px=256)]
        lines += [f"{kind}: {text_of(for_quantised(whole, kind))}" for whole in quantised]
    assert "\n".join(lines) == snapshot


def changed_values(names: Mapping[str, Any]) -> dict[str, Any]:
    """Give each input of a node a value that is not its default."""
    texts = {
        "prompt": "a <b> & 'c'\n[1s: d]", "negative": "blur",
        "pictures": "1.2s: b.png\n2.4s@1: c.png", "loop": "off", "extend": "after",
        "video": "v.mp4", "lora": "style.safetensors:2", "vae_tile": " 128", "preserved_gb": "2.5",
        "vram_cap_gb": "auto", "resolution": " ", "mode": "forward", "model": "framepack-f1",
        "one_frame": 0,
    }  # fmt: skip
    values = dict[str, Any]()
    for name, (kind, options) in names.items():
        if name in texts:
            values[name] = texts[name]
        elif isinstance(kind, list):
            values[name] = next(choice for choice in kind if choice != options.get("default"))
        elif kind in ("INT", "FLOAT"):
            default, step = options["default"], options.get("step", 1)
            values[name] = default + step if default + step <= options["max"] else default - step
        elif kind == "STRING":
            values[name] = "auto"
    return values


def test_the_request_of_the_video_nodes(comfy: Comfy, tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    (comfy.root / "loras").mkdir(exist_ok=True)
    (comfy.root / "loras" / "style.safetensors").write_bytes(b"")
    requests = list[str]()
    for names in (("Video",), ("Loader", "Conditions", "Sampler", "Decode")):
        inputs = dict[str, Any]()
        for name in names:
            for group in NODE_CLASS_MAPPINGS[f"ROCMFramePack{name}"].INPUT_TYPES().values():
                inputs |= {setting: facts for setting, facts in group.items() if setting in SETTINGS}
        pictures = dict.fromkeys(("image", "end_image"), Image.new("RGB", (4, 4)))
        request = request_of(changed_values(inputs), pictures, tmp_path / "job")
        requests.append(without(text_of(request), job=tmp_path / "job", comfy=comfy.root))
    assert requests[1] == requests[0] == snapshot


def trial(precision: str, tile_px: int, seconds: float, deviation: float, spread: float = 0.0) -> DecodeTrial:
    times = (seconds, seconds, seconds * (1 + spread))
    return DecodeTrial(precision, tile_px, Measured(times, 0), deviation)


def row(blas: str = "", step: float | None = 1.0, cfg: float = 1.0, **values: Any) -> Row:
    facts = {"spread": 0.0, "sample_seconds": 4.0, "decode_seconds": 1.0, **values}
    return Row(64, 32, cfg, blas, step, **facts)


def test_what_follows_from_figures(monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion) -> None:
    failed, whole = DecodeTrial("fp16", 0, None, math.nan, "no memory"), trial("fp32", 0, 3, 0)
    lines = [str(failed), str(DecodeTrial("bf16", 128, Measured((1.0, 2.0, 1.5), 3 * GB), 0.00391))]
    for trials in (
        [whole, trial("bf16", 512, 2, 1 / 255)], [whole, trial("bf16", 0, 2, 1.01 / 255)], [whole, failed],
        [trial("fp32", 0, 3, 0, 0.2)], [trial("fp32", 0, 3, 0, 0.3)], [failed, trial("bf16", 0, 1, 0.5)],
    ):  # fmt: skip
        lines.append(monitors._recommended(trials))
    pair = [row("hipblaslt", 1.5), row("hipblas", 2.0), row("hipblas", 9.0, cfg=8.0)]
    peaks = [
        row(step=2.0, peak_bytes=2 * GB),
        row(step=0.5, cfg=3.5, peak_bytes=3 * GB),
        row(step=None, error="x"),
    ]
    for rows in (
        [row()], pair, [row("hipblaslt", 3.0), row("hipblas", 2.0)], [row(decode_seconds=4.0)],
        [row(decode_seconds=4.1)], peaks, peaks[2:], [row(step=100.0), row(step=0.1)],
    ):  # fmt: skip
        for wants, on_amd in itertools.product((True, False), repeat=2):
            monkeypatch.setattr(benchmark, "is_rocm", lambda on_amd=on_amd: on_amd)
            if wants or on_amd:
                lines.append(f"{wants} {on_amd}: {benchmark._advice(rows, wants)}")
        lines += [*map(benchmark._line, rows), benchmark._chart(rows), benchmark._memory(rows)]
    assert "\n".join(lines) == snapshot


def test_the_benchmarks_texts(snapshot: SnapshotAssertion) -> None:
    check, lines = NODE_CLASS_MAPPINGS["ROCMFluxBenchmark"].VALIDATE_INPUTS, list[str]()
    for sizes, scales in (
        ("64x64", "1"), ("64x65", "1"), ("48x64", "1"), ("64x4112", "1"), ("4096x64, 64X128,", "0, 100"),
        ("", "1"),
        ("64", "1"), ("64x\u00b2", "1"), ("64x" + "9" * 5000, "1"), ("64x64", "x"), ("64x64", "101"),
        ("64x64", "-1"), (None, "x"), ("x", None),
    ):  # fmt: skip
        lines.append(str(check(test_resolutions=sizes, test_cfg_values=scales)))
    decode = NODE_CLASS_MAPPINGS["ROCMOptimizedVAEDecode"].VALIDATE_INPUTS
    for inputs in ({}, {"video_chunk_size": 0}, {"video_chunk_size": 33}, {"chunk_size": 2}):
        lines.append(str(decode(**inputs)))
    lines.append(str(decode(video_chunk_size=32, chunk_size="8")))
    assert "\n".join([*lines, text_of(benchmark.cases_of("64x96, 96X64", "1.0,3.5"))]) == snapshot


def test_what_the_optimizer_does_and_says(
    comfy: Comfy, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    management, held, lines = monitors.management(), [0], list[str]()
    monkeypatch.setattr(management, "get_torch_device", lambda: SimpleNamespace(type="cuda"))
    monkeypatch.setattr(monitors, "device_lines", lambda: ("machine", "memory"))
    monkeypatch.setattr("rocm_nodes.monitors.gc.collect", lambda: 7)

    def free(dev: Any = None, torch_free_too: bool = False) -> Any:
        return (comfy.free, held[0]) if torch_free_too else comfy.free

    def empty(force: bool = False) -> None:
        comfy.calls.append("soft_empty_cache")
        held[0] = 0

    monkeypatch.setattr(management, "get_free_memory", free)
    monkeypatch.setattr(management, "soft_empty_cache", empty)
    levels, unused = ("conservative", "balanced", "aggressive"), (0, 255, 256)
    for level, megabytes, clears in itertools.product(levels, unused, (True, False)):
        held[0] = megabytes * 2**20
        comfy.calls.clear()
        inputs = {"optimization_level": level, "enable_gc": megabytes == 255, "clear_cache": clears}
        (status, log, more, passed), _ = run("ROCMMemoryOptimizer", **inputs, anything=clears)
        lines.append(f"{level} {megabytes} {clears}: {comfy.calls} {passed} {status} {log!r} {more}")
    assert "\n".join(lines) == snapshot


def test_the_sampler_monitor_tells_what_the_first_step_costs(
    comfy: Comfy, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    lines = list[str]()
    for seconds in ((5.0, 1.0, 1.0), (2.0, 1.0, 1.0), (2.1, 1.0, 1.5), (3.0,)):
        times = SimpleNamespace(measured=lambda seconds=seconds: seconds)
        peak = (len(seconds) > 1) * seconds[-1] * GB
        monkeypatch.setattr(monitors, "timing", lambda peak=peak: nullcontext(Run(1.0, int(peak))))
        monkeypatch.setattr(monitors, "timed", lambda model, times=times: (model.clone(), times))
        results, _ = run(
            "ROCMSamplerPerformanceMonitor", model=ModelPatcher(), test_steps=3, positive=[],
            latent_image={"samples": torch.zeros(1, 16, 8, 4)} if seconds[1:] else None,
        )  # fmt: skip
        lines += [*results[1:], comfy.calls.pop()]
    assert "\n".join(lines) == snapshot
