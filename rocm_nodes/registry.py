"""The table of the nodes: the ids in workflows, the displayed titles, the classes, and what they need.

A node that cannot work here stays in its place, with the reason in its title, its description and its error.
"""

import logging
import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from diffusers_helper.errors import InputError, first_line
from diffusers_helper.machine.packages import FRAMEPACK, install_command, package_problem, unfit, version_of
from rocm_nodes.debugging import is_capture_enabled, with_captures
from rocm_nodes.page import Node

_log = logging.getLogger(__package__)
# The title and the module of each node, whose class has its id as its name
NODES = {
    "ROCMOptimizedCheckpointLoader": ("ROCm Checkpoint Loader", "loaders"),
    "ROCMOptimizedUNetLoader": ("ROCm UNet Loader", "loaders"),
    # Some workflows use this name for the same node.
    "ROCmDiffusionLoader": ("ROCm Diffusion Loader", "loaders"),
    "ROCMOptimizedKSampler": ("ROCm KSampler", "samplers"),
    "ROCMOptimizedKSamplerAdvanced": ("ROCm KSampler (Advanced)", "samplers"),
    "ROCMLoRALoader": ("ROCm LoRA Loader", "loaders"),
    "ROCMSamplerCustomAdvanced": ("ROCm SamplerCustomAdvanced", "samplers"),
    "ROCMOptimizedVAEEncode": ("ROCm VAE Encode", "vae_nodes"),
    "ROCMOptimizedVAEEncodeTiled": ("ROCm VAE Encode (Tiled)", "vae_nodes"),
    "ROCMOptimizedVAEDecode": ("ROCm VAE Decode", "vae_nodes"),
    "ROCMOptimizedVAEDecodeTiled": ("ROCm VAE Decode (Tiled)", "vae_nodes"),
    "ROCMVAEPerformanceMonitor": ("ROCm VAE Performance Monitor", "monitors"),
    "ROCMSamplerPerformanceMonitor": ("ROCm Sampler Performance Monitor", "monitors"),
    "ROCMFluxBenchmark": ("ROCm Flux Benchmark", "benchmark"),
    "ROCMMemoryOptimizer": ("ROCm Memory Optimizer", "monitors"),
    "ROCMFramePackVideo": ("ROCm FramePack Video", "framepack.node"),
    "ROCMFramePackLoader": ("ROCm FramePack Model", "framepack.parts"),
    "ROCMFramePackConditions": ("ROCm FramePack Conditions", "framepack.parts"),
    "ROCMFramePackSampler": ("ROCm FramePack Sampler", "framepack.parts"),
    "ROCMFramePackDecode": ("ROCm FramePack Decode", "framepack.parts"),
    "ROCMFinishVideo": ("ROCm Finish Video", "framepack.finish"),
}


class _Absent(Node):
    FUNCTION, RETURN_TYPES, CATEGORY, OUTPUT_NODE, DESCRIPTION = "run", (), "ROCm Ninodes", True, ""


def node_tables() -> tuple[dict[str, Any], dict[str, str]]:
    classes, titles = dict[str, Any](), dict[str, str]()
    versions = {name: version_of(name) for name in FRAMEPACK}
    for name, (title, module) in NODES.items():
        node_class = _Absent
        needed = FRAMEPACK if module.startswith("framepack.") else {}
        remedy = "Install the packages of ComfyUI again."
        if problem := package_problem(versions, needed):
            title = f"{title} (needs {', '.join(unfit(versions, needed))})"
            remedy = f"Install what is missing: {install_command(versions, needed)}"
        try:
            node_class = getattr(import_module(f".{module}", __package__), name)
        except ImportError as error:
            problem = problem or f"it cannot be imported ({first_line(error)})"
        if problem:
            node_class = _refusing(name, node_class, problem, remedy)
        elif is_capture_enabled():
            node_class = with_captures(name, node_class)
        classes[name], titles[name] = node_class, title
    return classes, titles


def _refusing(name: str, node_class: Any, problem: str, remedy: str) -> type:
    """Make a node with the same inputs and outputs, so that workflows load, which fails with the reason."""
    reason = f"This node cannot run with ComfyUI's Python: {problem}."

    def refuse(self: Any, **inputs: Any) -> Any:
        raise InputError(reason, remedy)

    description = f"{reason} {remedy} {node_class.DESCRIPTION}"
    attributes = {node_class.FUNCTION: refuse, "DESCRIPTION": description}
    return type(name, (node_class,), attributes)


def watch(our_classes: Mapping[str, Any]) -> None:
    """Warn of ids that another pack has, too: now, and again when ComfyUI has loaded all packs."""
    _warn("replaces", our_classes)
    server = getattr(getattr(sys.modules.get("server"), "PromptServer", None), "instance", None)
    program = getattr(server, "app", None)
    if program is None:
        return

    async def warn(_: Any) -> None:
        _warn("is replaced by", our_classes)

    program.on_startup.append(warn)


def _warn(verb: str, our_classes: Mapping[str, Any]) -> None:
    loaded = getattr(sys.modules.get("nodes"), "NODE_CLASS_MAPPINGS", {})
    their_classes = {
        name: loaded[name] for name, node in our_classes.items() if loaded.get(name, node) is not node
    }
    if their_classes:
        modules = {getattr(node, "RELATIVE_PYTHON_MODULE", "another pack") for node in their_classes.values()}
        packs = ", ".join(sorted(module.removeprefix("custom_nodes.") for module in modules))
        names = ", ".join(their_classes)
        _log.warning("Longtake %s %s in these nodes, which both packs have: %s.", verb, packs, names)
