"""Tests of the table of nodes, and of the inputs that old workflows hold."""

from __future__ import annotations

from typing import Any

import pytest

from rocm_nodes import NODE_CLASS_MAPPINGS, NODE_DISPLAY_NAME_MAPPINGS

PUBLIC = (
    "ROCMOptimizedCheckpointLoader", "ROCMOptimizedUNetLoader", "ROCMOptimizedKSampler",
    "ROCMOptimizedKSamplerAdvanced", "ROCMOptimizedVAEDecode", "ROCMOptimizedVAEDecodeTiled",
    "ROCMVAEPerformanceMonitor", "ROCMSamplerPerformanceMonitor", "ROCMFluxBenchmark", "ROCMMemoryOptimizer",
)  # fmt: skip


def inputs_of(name: str) -> dict[str, dict[str, Any]]:
    return NODE_CLASS_MAPPINGS[name].INPUT_TYPES()


def test_every_public_id_is_there() -> None:
    assert set(PUBLIC) | {"ROCmDiffusionLoader", "ROCMFramePackVideo"} == set(NODE_CLASS_MAPPINGS)
    assert set(NODE_DISPLAY_NAME_MAPPINGS) == set(NODE_CLASS_MAPPINGS)
    for kind in NODE_CLASS_MAPPINGS.values():
        assert kind.CATEGORY.startswith("ROCm Ninodes/")


@pytest.mark.parametrize(
    ("name", "widgets"),
    [
        ("ROCMOptimizedCheckpointLoader", ["ckpt_name", "compatibility_mode"]),
        ("ROCMOptimizedUNetLoader", ["unet_name", "weight_dtype"]),
        ("ROCmDiffusionLoader", ["unet_name", "weight_dtype"]),
        ("ROCMOptimizedKSampler", [
            "seed", "steps", "cfg", "sampler_name", "scheduler", "denoise", "optimize_for_video",
            "precision_mode", "compatibility_mode",
        ]),
        ("ROCMOptimizedKSamplerAdvanced", [
            "add_noise", "noise_seed", "steps", "cfg", "sampler_name", "scheduler", "start_at_step",
            "end_at_step", "return_with_leftover_noise", "optimize_for_video", "precision_mode",
            "compatibility_mode",
        ]),
        ("ROCMOptimizedVAEDecode", [
            "tile_size", "overlap", "use_rocm_optimizations", "precision_mode", "batch_optimization",
            "video_chunk_size", "memory_optimization_enabled", "compatibility_mode",
        ]),
        ("ROCMOptimizedVAEDecodeTiled", [
            "tile_size", "overlap", "temporal_size", "temporal_overlap", "rocm_optimizations",
        ]),
        ("ROCMVAEPerformanceMonitor", ["test_resolution"]),
        ("ROCMSamplerPerformanceMonitor", ["test_steps"]),
        ("ROCMFluxBenchmark", [
            "test_resolutions", "test_steps", "test_cfg_values", "test_hipblas", "generate_report",
        ]),
        ("ROCMMemoryOptimizer", ["optimization_level", "enable_gc", "clear_cache", "cleanup_frequency"]),
    ],
)  # fmt: skip
def test_values_of_old_workflows_find_their_places(name: str, widgets: list[str]) -> None:
    """Check the order of the inputs that have no socket, by which a workflow keeps their values."""
    types = inputs_of(name)
    every = types["required"] | types.get("optional", {})
    found = [
        one
        for one, (kind, *_) in every.items()
        if not isinstance(kind, str) or kind in ("INT", "FLOAT", "BOOLEAN", "STRING")
    ]
    assert found[: len(widgets)] == widgets


def test_numbers_have_the_ranges_that_workflows_know() -> None:
    decode = inputs_of("ROCMOptimizedVAEDecode")
    tile, overlap = decode["required"]["tile_size"][1], decode["required"]["overlap"][1]
    assert [tile[key] for key in ("default", "min", "max", "step")] == [768, 256, 2048, 64]
    assert [overlap[key] for key in ("default", "min", "max", "step")] == [96, 32, 512, 16]
    assert decode["optional"]["memory_threshold"][1]["default"] == 0.8
    assert decode["optional"]["cleanup_frequency"][1]["default"] == 1
    assert decode["optional"]["chunk_size"][0] == ["auto", "1", "2", "4", "8"]
    assert decode["optional"]["rocm_preferred"][1]["default"] == "fp32"
    tiled = inputs_of("ROCMOptimizedVAEDecodeTiled")["required"]
    assert [tiled["temporal_size"][1][key] for key in ("default", "min", "max", "step")] == [64, 8, 4096, 4]
    assert [tiled["temporal_overlap"][1][key] for key in ("default", "min")] == [8, 4]
    seed = inputs_of("ROCMOptimizedKSampler")["required"]["seed"][1]
    assert seed["max"] == 2**64 - 1
    assert seed["control_after_generate"]
