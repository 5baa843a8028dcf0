"""The flush that returns unused memory to the driver between the stages of a job.

The memory document also trims the device's default pool, which holds only what `hipMallocAsync` has
allocated, so it is likely to have nothing to return. This was not tested on a Radeon.
"""

import ctypes
import gc
import logging
import os
import re
from pathlib import Path
from typing import Any, Literal

import torch

from diffusers_helper.memory.device import Device
from diffusers_helper.memory.status import report
from diffusers_helper.units import GB

_log = logging.getLogger(__name__)

# The points of a job at which the memory document (docs/amd-memory.md) flushes, in their order.
FlushStage = Literal[
    "worker-start", "post-unload/text-enc", "post-text-encoding", "post-vae-encoding", "post-clip-vision",
    "post-unload/transformer", "post-transformer-unload", "post-vae-decode", "exception-cleanup",
]  # fmt: skip

# The errors of HIP and CUDA for a driver and for a card that are not there.
_NO_DEVICE = 35, 100
# hipMemPoolAttrReservedMemCurrent and its counterpart in CUDA.
_RESERVED_BYTES = 5
# Each runtime's library, the prefix of its functions for memory pools, and its name
_RUNTIMES = (("libamdhip64", "hip", "ROCm"), ("libcudart", "cuda", "CUDA"))


def flush_rocm_allocator(
    stage: str, min_resident_gb: float = 0.0, *, device: Device | None = None
) -> tuple[int, int, int]:
    """Collect garbage, empty torch's cache and trim a GPU's default memory pool to so many GB.

    It returns the bytes that each has freed, 0 for a pool that cannot be asked. Without a GPU, only garbage
    is collected. Errors of the driver are logged.
    """
    uses_gpu = torch.cuda.is_initialized() if device is None else device.has_gpu
    allocated_before, reserved_before = _in_use(device, uses_gpu)
    # A full collection visits all objects of the imported libraries, which takes half a second. That is
    # little compared with the minutes of a stage on a GPU. Without a GPU, a stage may be shorter than that.
    gc.collect(2 if uses_gpu or stage == "exception-cleanup" else 1)
    garbage_bytes = allocated_before - _in_use(device, uses_gpu)[0]
    if uses_gpu:
        torch.cuda.empty_cache()
    cached_bytes = reserved_before - _in_use(device, uses_gpu)[1] if uses_gpu else 0
    pool_bytes = 0
    runtime = _runtime()
    # A call for the pool would initialise a GPU that is not in use.
    if runtime is not None and (uses_gpu or not torch.cuda.is_available()):
        index = torch.cuda.current_device() if uses_gpu else 0
        if device is not None and device.torch_device.index is not None:
            index = device.torch_device.index
        pool_bytes = _trim_pool(*runtime, stage, index, max(0, int(min_resident_gb * GB)))
    return max(0, garbage_bytes), max(0, cached_bytes), pool_bytes


def _in_use(device: Device | None, uses_gpu: bool) -> tuple[int, int]:
    if device is not None:
        return device.allocated_bytes(), device.reserved_bytes()
    return (torch.cuda.memory_allocated(), torch.cuda.memory_reserved()) if uses_gpu else (0, 0)


def _trim_pool(library: Any, prefix: str, title: str, stage: str, index: int, keep_bytes: int) -> int:
    pool = ctypes.c_void_p()
    function = f"{prefix}DeviceGetDefaultMemPool"
    if status := getattr(library, function)(ctypes.byref(pool), ctypes.c_int(index)):
        if status not in _NO_DEVICE:
            _log.warning("[%s] %s failed with status %d", stage, function, status)
        return 0

    def reserved() -> int:
        value = ctypes.c_uint64()
        get_attribute = getattr(library, f"{prefix}MemPoolGetAttribute", None)
        if get_attribute is None or get_attribute(pool, ctypes.c_int(_RESERVED_BYTES), ctypes.byref(value)):
            return 0
        return value.value

    reserved_before = reserved()
    if status := getattr(library, f"{prefix}MemPoolTrimTo")(pool, ctypes.c_size_t(keep_bytes)):
        _log.warning("[%s] %s mempool trim failed (%d)", stage, title, status)
        return 0
    report(_log, "[%s] %s mempool trimmed", stage, title)
    return max(0, reserved_before - reserved())


def _runtime() -> tuple[ctypes.CDLL, str, str] | None:
    """Find the loaded runtime with memory pools, the prefix of its functions, and the platform's name."""
    maps = Path("/proc/self/maps")
    lines = maps.read_text(encoding="utf-8", errors="replace") if maps.is_file() else ""
    for name, prefix, title in _RUNTIMES:
        for path in dict.fromkeys(re.findall(rf"(?m)(/.*/{name}[^/\n]*\.so[.\d]*)$", lines)):
            try:
                # RTLD_NOLOAD, because a second runtime would not know the memory of the one that torch uses.
                library = ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
            except OSError as error:
                _log.debug("%s cannot trim memory pools: %s", path, error)
                continue
            if hasattr(library, f"{prefix}MemPoolTrimTo"):  # older ones have no pools
                return library, prefix, title
    return None
