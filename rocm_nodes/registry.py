"""The table of the nodes: the ids in workflows, the displayed titles, the classes, and what they need.

A node that cannot work here stays in its place, with the reason in its title, its description and its error,
and all others work.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, ClassVar

from diffusers_helper.errors import InputError, first_line
from diffusers_helper.machine.packages import FRAMEPACK, install_command, missing_words, unfit, version_of
from rocm_nodes.debugging import captured, is_asked_for

_log = logging.getLogger("rocm_nodes")


@dataclass(frozen=True, slots=True)
class _Node:
    """A node, whose class has its id as its name.

    Attributes:
        needs: The packages that it needs and ComfyUI may not have, with their versions.
    """

    title: str
    module: str
    needs: Mapping[str, str] = field(default_factory=dict[str, str])


NODES: dict[str, _Node] = {
    "ROCMOptimizedCheckpointLoader": _Node("ROCm Checkpoint Loader", "rocm_nodes.loaders"),
    "ROCMOptimizedUNetLoader": _Node("ROCm UNet Loader", "rocm_nodes.loaders"),
    # Some workflows use this name for the same node.
    "ROCmDiffusionLoader": _Node("ROCm Diffusion Loader", "rocm_nodes.loaders"),
    "ROCMOptimizedKSampler": _Node("ROCm KSampler", "rocm_nodes.samplers"),
    "ROCMOptimizedKSamplerAdvanced": _Node("ROCm KSampler (Advanced)", "rocm_nodes.samplers"),
    "ROCMLoRALoader": _Node("ROCm LoRA Loader", "rocm_nodes.loaders"),
    "ROCMSamplerCustomAdvanced": _Node("ROCm SamplerCustomAdvanced", "rocm_nodes.samplers"),
    "ROCMOptimizedVAEEncode": _Node("ROCm VAE Encode", "rocm_nodes.vae_nodes"),
    "ROCMOptimizedVAEEncodeTiled": _Node("ROCm VAE Encode (Tiled)", "rocm_nodes.vae_nodes"),
    "ROCMOptimizedVAEDecode": _Node("ROCm VAE Decode", "rocm_nodes.vae_nodes"),
    "ROCMOptimizedVAEDecodeTiled": _Node("ROCm VAE Decode (Tiled)", "rocm_nodes.vae_nodes"),
    "ROCMVAEPerformanceMonitor": _Node("ROCm VAE Performance Monitor", "rocm_nodes.monitors"),
    "ROCMSamplerPerformanceMonitor": _Node("ROCm Sampler Performance Monitor", "rocm_nodes.monitors"),
    "ROCMFluxBenchmark": _Node("ROCm Flux Benchmark", "rocm_nodes.benchmark"),
    "ROCMMemoryOptimizer": _Node("ROCm Memory Optimizer", "rocm_nodes.monitors"),
    "ROCMFramePackVideo": _Node("ROCm FramePack Video", "rocm_nodes.framepack.node", FRAMEPACK),
    "ROCMFramePackLoader": _Node("ROCm FramePack Model", "rocm_nodes.framepack.parts", FRAMEPACK),
    "ROCMFramePackConditions": _Node("ROCm FramePack Conditions", "rocm_nodes.framepack.parts", FRAMEPACK),
    "ROCMFramePackSampler": _Node("ROCm FramePack Sampler", "rocm_nodes.framepack.parts", FRAMEPACK),
    "ROCMFramePackDecode": _Node("ROCm FramePack Decode", "rocm_nodes.framepack.parts", FRAMEPACK),
}


class _Absent:
    """A node whose module cannot be imported."""

    RETURN_TYPES: ClassVar[tuple[str, ...]] = ()
    FUNCTION, CATEGORY, OUTPUT_NODE, DESCRIPTION = "run", "ROCm Ninodes", True, ""

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {"required": {}}


def node_tables() -> tuple[dict[str, Any], dict[str, str]]:
    """Return the classes and the titles by id. If captures are switched on, the classes write them."""
    classes, titles = dict[str, Any](), dict[str, str]()
    versions = {name: version_of(name) for node in NODES.values() for name in node.needs}
    for name, node in NODES.items():
        kind, titles[name] = _Absent, node.title
        reason, remedy = "", "Install the packages of ComfyUI again."
        try:
            kind = getattr(import_module(node.module), name)
        except ImportError as error:
            reason = f"This node cannot be imported ({first_line(error)})."
        if words := missing_words(versions, node.needs):
            titles[name] += f" (needs {', '.join(unfit(versions, node.needs))})"
            reason = f"This node cannot run with ComfyUI's Python: {words}."
            remedy = f"Install what is missing: {install_command(versions, node.needs)}"
        if reason:
            classes[name] = _refusing(kind, name, reason, remedy)
        else:
            classes[name] = captured(name, kind) if is_asked_for() else kind
    return classes, titles


def _refusing(kind: type, name: str, reason: str, remedy: str) -> type:
    """Return a node with the same inputs and outputs, so that workflows load, which fails with the reason."""
    plain: Any = kind

    def refuse(self: Any, **inputs: Any) -> Any:
        raise InputError(reason, remedy)

    description = f"{reason} {remedy} {plain.DESCRIPTION}".strip()
    return type(name, (kind,), {plain.FUNCTION: refuse, "DESCRIPTION": description, "__doc__": kind.__doc__})


def watch(ours: Mapping[str, Any]) -> None:
    """Warn of ids that another pack has, now, and again when ComfyUI has loaded all packs.

    ComfyUI keeps the last node of an id. Workflows hold these ids, so both packs need them, and neither can
    know whether it is loaded last.

    Without ComfyUI's server nothing is done.
    """
    _warn("replaces", _others(ours))
    server = getattr(getattr(sys.modules.get("server"), "PromptServer", None), "instance", None)
    program = getattr(server, "app", None)
    if program is not None:

        async def warn(_: Any) -> None:
            _warn("is replaced by", _others(ours))

        program.on_startup.append(warn)


def _others(ours: Mapping[str, Any]) -> dict[str, str]:
    """Return the ids of ours that now stand for another pack's nodes, with the name of that pack."""
    theirs = getattr(sys.modules.get("nodes"), "NODE_CLASS_MAPPINGS", {})
    return {
        name: str(getattr(theirs[name], "RELATIVE_PYTHON_MODULE", "another pack")).partition(".")[2]
        for name, kind in ours.items()
        if name in theirs and theirs[name] is not kind
    }


def _warn(verb: str, found: Mapping[str, str]) -> None:
    for pack in dict.fromkeys(found.values()):
        names = ", ".join(name for name, owner in found.items() if owner == pack)
        _log.warning("Longtake %s %s in these nodes, which both packs have: %s.", verb, pack, names)
