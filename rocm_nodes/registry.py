"""The table of the nodes: the ids in workflows, the displayed titles, and the classes."""

from __future__ import annotations

from typing import Any

from rocm_nodes.benchmark import ROCMFluxBenchmark
from rocm_nodes.debugging import captured, debug_folder
from rocm_nodes.decode_nodes import ROCMOptimizedVAEDecode, ROCMOptimizedVAEDecodeTiled
from rocm_nodes.framepack import ROCMFramePackVideo
from rocm_nodes.loaders import ROCMOptimizedCheckpointLoader, ROCMOptimizedUNetLoader
from rocm_nodes.memory_node import ROCMMemoryOptimizer
from rocm_nodes.monitors import ROCMSamplerPerformanceMonitor, ROCMVAEPerformanceMonitor
from rocm_nodes.samplers import ROCMOptimizedKSampler, ROCMOptimizedKSamplerAdvanced

_NODES: dict[str, tuple[str, type]] = {
    "ROCMOptimizedCheckpointLoader": ("ROCm Checkpoint Loader", ROCMOptimizedCheckpointLoader),
    "ROCMOptimizedUNetLoader": ("ROCm UNet Loader", ROCMOptimizedUNetLoader),
    # Later workflows use this name for the same node.
    "ROCmDiffusionLoader": ("ROCm Diffusion Loader", ROCMOptimizedUNetLoader),
    "ROCMOptimizedKSampler": ("ROCm KSampler", ROCMOptimizedKSampler),
    "ROCMOptimizedKSamplerAdvanced": ("ROCm KSampler (Advanced)", ROCMOptimizedKSamplerAdvanced),
    "ROCMOptimizedVAEDecode": ("ROCm VAE Decode", ROCMOptimizedVAEDecode),
    "ROCMOptimizedVAEDecodeTiled": ("ROCm VAE Decode (Tiled)", ROCMOptimizedVAEDecodeTiled),
    "ROCMVAEPerformanceMonitor": ("ROCm VAE Performance Monitor", ROCMVAEPerformanceMonitor),
    "ROCMSamplerPerformanceMonitor": ("ROCm Sampler Performance Monitor", ROCMSamplerPerformanceMonitor),
    "ROCMFluxBenchmark": ("ROCm Flux Benchmark", ROCMFluxBenchmark),
    "ROCMMemoryOptimizer": ("ROCm Memory Optimizer", ROCMMemoryOptimizer),
    "ROCMFramePackVideo": ("ROCm FramePack Video", ROCMFramePackVideo),
}


def node_classes() -> dict[str, Any]:
    """Return the classes by id. If captures are switched on, they are subclasses that write captures."""
    folder = debug_folder()
    return {name: captured(name, kind) if folder else kind for name, (_, kind) in _NODES.items()}


def node_names() -> dict[str, str]:
    """Return the titles by id."""
    return {name: title for name, (title, _) in _NODES.items()}
