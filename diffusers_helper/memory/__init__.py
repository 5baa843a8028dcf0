"""The execution of the memory plans of `planning.budget` on the device.

The names that FramePack and the memory document (docs/amd-memory.md) use can be imported from here. They are
looked up on first use, so importing this package does not import torch.
"""

from importlib import import_module
from typing import Any

_MODULES = {
    "..planning.budget": ("MAX_VRAM_USAGE_GB",),
    ".status": (
        "check_vram_limit", "get_cuda_allocated_memory_gb", "get_cuda_free_memory_gb", "log_memory_status",
    ),
    ".flush": ("flush_rocm_allocator",),
    ".residency": (
        "cpu", "gpu", "load_model_as_complete", "move_model_to_device_with_memory_preservation",
        "offload_model_from_device_for_memory_preservation", "unload_complete_models",
    ),
}  # fmt: skip
MODULE_OF_NAME = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in MODULE_OF_NAME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(MODULE_OF_NAME[name], __name__), name)
