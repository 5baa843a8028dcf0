"""The table of the nodes: the ids in workflows, the displayed titles, the classes, and what they need.

A node that lacks packages stays in its place, with the reason in its title, its description and its error.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from diffusers_helper.errors import InputError
from diffusers_helper.machine.packages import FRAMEPACK, install_command, missing_words, unfit, version_of
from rocm_nodes.debugging import captured, is_asked_for

_log = logging.getLogger("rocm_nodes")
# The title and the module of each node, whose class has its id as its name
NODES = {
    "ROCMOptimizedCheckpointLoader": ("ROCm Checkpoint Loader", "rocm_nodes.loaders"),
    "ROCMOptimizedUNetLoader": ("ROCm UNet Loader", "rocm_nodes.loaders"),
    # Some workflows use this name for the same node.
    "ROCmDiffusionLoader": ("ROCm Diffusion Loader", "rocm_nodes.loaders"),
    "ROCMOptimizedKSampler": ("ROCm KSampler", "rocm_nodes.samplers"),
    "ROCMOptimizedKSamplerAdvanced": ("ROCm KSampler (Advanced)", "rocm_nodes.samplers"),
    "ROCMLoRALoader": ("ROCm LoRA Loader", "rocm_nodes.loaders"),
    "ROCMSamplerCustomAdvanced": ("ROCm SamplerCustomAdvanced", "rocm_nodes.samplers"),
    "ROCMOptimizedVAEEncode": ("ROCm VAE Encode", "rocm_nodes.vae_nodes"),
    "ROCMOptimizedVAEEncodeTiled": ("ROCm VAE Encode (Tiled)", "rocm_nodes.vae_nodes"),
    "ROCMOptimizedVAEDecode": ("ROCm VAE Decode", "rocm_nodes.vae_nodes"),
    "ROCMOptimizedVAEDecodeTiled": ("ROCm VAE Decode (Tiled)", "rocm_nodes.vae_nodes"),
    "ROCMVAEPerformanceMonitor": ("ROCm VAE Performance Monitor", "rocm_nodes.monitors"),
    "ROCMSamplerPerformanceMonitor": ("ROCm Sampler Performance Monitor", "rocm_nodes.monitors"),
    "ROCMFluxBenchmark": ("ROCm Flux Benchmark", "rocm_nodes.benchmark"),
    "ROCMMemoryOptimizer": ("ROCm Memory Optimizer", "rocm_nodes.monitors"),
    "ROCMFramePackVideo": ("ROCm FramePack Video", "rocm_nodes.framepack.node"),
    "ROCMFramePackLoader": ("ROCm FramePack Model", "rocm_nodes.framepack.parts"),
    "ROCMFramePackConditions": ("ROCm FramePack Conditions", "rocm_nodes.framepack.parts"),
    "ROCMFramePackSampler": ("ROCm FramePack Sampler", "rocm_nodes.framepack.parts"),
    "ROCMFramePackDecode": ("ROCm FramePack Decode", "rocm_nodes.framepack.parts"),
}


def node_tables() -> tuple[dict[str, Any], dict[str, str]]:
    """Return the classes and the titles by id. If captures are switched on, the classes write them."""
    classes, titles = dict[str, Any](), dict[str, str]()
    versions = {name: version_of(name) for name in FRAMEPACK}
    for name, (title, module) in NODES.items():
        kind, needs = getattr(import_module(module), name), {}
        if module.split(".")[-2] == "framepack":
            needs = FRAMEPACK
        if words := missing_words(versions, needs):
            title = f"{title} (needs {', '.join(unfit(versions, needs))})"
            kind = _refusing(kind, words, f"Install what is missing: {install_command(versions, needs)}")
        elif is_asked_for():
            kind = captured(name, kind)
        classes[name], titles[name] = kind, title
    return classes, titles


def _refusing(kind: Any, words: str, remedy: str) -> type:
    """Return a node with the same inputs and outputs, so that workflows load, which fails with the reason."""
    reason = f"This node cannot run with ComfyUI's Python: {words}."

    def refuse(self: Any, **inputs: Any) -> Any:
        raise InputError(reason, remedy)

    description = f"{reason} {remedy} {kind.DESCRIPTION}"
    facts = {kind.FUNCTION: refuse, "DESCRIPTION": description, "__doc__": kind.__doc__}
    return type(kind.__name__, (kind,), facts)


def watch(ours: Mapping[str, Any]) -> None:
    """Warn, when ComfyUI has loaded all packs, of ids of ours that stand for another pack's nodes.

    ComfyUI keeps the last node of an id. Workflows hold these ids, so both packs need them, and neither can
    know whether it is loaded last. Without ComfyUI's server nothing is done.
    """
    server = getattr(getattr(sys.modules.get("server"), "PromptServer", None), "instance", None)
    program = getattr(server, "app", None)
    if program is None:
        return

    async def warn(_: Any) -> None:
        loaded = getattr(sys.modules.get("nodes"), "NODE_CLASS_MAPPINGS", {})
        theirs = {name: loaded[name] for name, kind in ours.items() if loaded.get(name, kind) is not kind}
        if theirs:
            modules = {getattr(kind, "RELATIVE_PYTHON_MODULE", "another pack") for kind in theirs.values()}
            _log.warning(
                "Longtake is replaced by %s in these nodes, which both packs have: %s.",
                ", ".join(sorted(one.removeprefix("custom_nodes.") for one in modules)), ", ".join(theirs),
            )  # fmt: skip

    program.on_startup.append(warn)
