"""The flush that returns unused memory to the driver between the stages of a job.

PyTorch's caching allocator takes memory with `hipMalloc`, so `empty_cache` does most of the work. Trimming
the device's default pool returns memory that MIOpen, rocBLAS or the asynchronous allocator have left there.
This was not tested on a Radeon.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import re
from dataclasses import dataclass
from pathlib import Path

import torch

from diffusers_helper.memory.device import Device
from diffusers_helper.memory.status import report
from diffusers_helper.units import GB

_log = logging.getLogger(__name__)

# The points of a job at which the memory document (docs/amd-memory.md) flushes, in their order.
WORKER_START = "worker-start"
POST_UNLOAD_TEXT_ENC = "post-unload/text-enc"
POST_TEXT_ENCODING = "post-text-encoding"
POST_VAE_ENCODING = "post-vae-encoding"
POST_CLIP_VISION = "post-clip-vision"
POST_UNLOAD_TRANSFORMER = "post-unload/transformer"
POST_TRANSFORMER_UNLOAD = "post-transformer-unload"
POST_VAE_DECODE = "post-vae-decode"
EXCEPTION_CLEANUP = "exception-cleanup"
FLUSH_STAGES = (
    WORKER_START, POST_UNLOAD_TEXT_ENC, POST_TEXT_ENCODING, POST_VAE_ENCODING, POST_CLIP_VISION,
    POST_UNLOAD_TRANSFORMER, POST_TRANSFORMER_UNLOAD, POST_VAE_DECODE, EXCEPTION_CLEANUP,
)  # fmt: skip

# hipErrorNoDevice and cudaErrorNoDevice, which a library returns if there is no card.
_NO_DEVICE = 100
# hipMemPoolAttrReservedMemCurrent and its counterpart in CUDA.
_RESERVED_BYTES = 5


@dataclass(frozen=True, slots=True)
class FlushReport:
    """The numbers of bytes that one flush has freed.

    Attributes:
        pool_bytes: The bytes that the default pool returned; 0 if that is unknown.
        trimmed: Whether the pool was trimmed without an error.
    """

    stage: str
    gc_bytes: int = 0
    cache_bytes: int = 0
    pool_bytes: int = 0
    trimmed: bool = False


def flush_rocm_allocator(
    stage: str, min_resident_gb: float = 0.0, *, device: Device | None = None
) -> FlushReport:
    """Collect garbage, empty torch's cache and trim the GPU's default memory pool.

    Without a GPU, only garbage is collected. Errors of the driver are logged.

    Args:
        stage: One of `FLUSH_STAGES`, for the log.
        min_resident_gb: The GB of 1024^3 bytes that the pool may keep.
        device: The device to flush; None for torch's current GPU.
    """
    uses_gpu = torch.cuda.is_initialized() if device is None else device.has_gpu
    allocated, reserved = _in_use(device, uses_gpu)
    # A full collection visits all objects of the imported libraries, which takes half a second. That is
    # little compared with the minutes of a stage on a GPU. Without a GPU, a stage may be shorter than that.
    gc.collect(2 if uses_gpu or stage == EXCEPTION_CLEANUP else 1)
    gc_bytes = allocated - _in_use(device, uses_gpu)[0]
    if uses_gpu:
        torch.cuda.empty_cache()
    cache_bytes = reserved - _in_use(device, uses_gpu)[1] if uses_gpu else 0
    pool_bytes, trimmed = 0, False
    library = _PoolLibrary.of_this_process()
    # A call for the pool would initialise a GPU that is not in use.
    if library is not None and (uses_gpu or not torch.cuda.is_available()):
        index = torch.cuda.current_device() if uses_gpu else 0
        if device is not None and device.torch_device.index is not None:
            index = device.torch_device.index
        pool_bytes, trimmed = library.trim(stage, index, max(0, int(min_resident_gb * GB)))
    return FlushReport(stage, max(0, gc_bytes), max(0, cache_bytes), pool_bytes, trimmed)


def _in_use(device: Device | None, uses_gpu: bool) -> tuple[int, int]:
    """Return the allocated and the reserved bytes."""
    if device is not None:
        return device.allocated_bytes(), device.reserved_bytes()
    return (torch.cuda.memory_allocated(), torch.cuda.memory_reserved()) if uses_gpu else (0, 0)


class _PoolLibrary:
    """The functions for memory pools in the HIP runtime, or in the CUDA runtime under CUDA's names."""

    _KINDS = (("libamdhip64", "hip", "ROCm"), ("libcudart", "cuda", "CUDA"))

    def __init__(self, path: str, prefix: str, title: str) -> None:
        """Look up the functions.

        Raises:
            OSError: If the library is not loaded.
            AttributeError: If it is too old for pools.
        """
        # RTLD_NOLOAD, because a second runtime would not know the memory of the one that torch uses.
        library = ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
        self._title, self._prefix = title, prefix
        self._get_pool = getattr(library, f"{prefix}DeviceGetDefaultMemPool")
        self._get_pool.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_int]
        self._trim = getattr(library, f"{prefix}MemPoolTrimTo")
        self._trim.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        self._get = getattr(library, f"{prefix}MemPoolGetAttribute", None)
        if self._get is not None:
            self._get.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p]

    @classmethod
    def of_this_process(cls) -> _PoolLibrary | None:
        """Return the runtime that this process has loaded, of any version, or None if it has loaded none."""
        maps = Path("/proc/self/maps")
        lines = maps.read_text(encoding="utf-8", errors="replace") if maps.is_file() else ""
        for name, prefix, title in cls._KINDS:
            for path in dict.fromkeys(re.findall(rf"(?m)(/.*/{name}[^/\n]*\.so[.\d]*)$", lines)):
                try:
                    return cls(path, prefix, title)
                except (OSError, AttributeError) as error:
                    _log.debug("%s cannot trim memory pools: %s", path, error)
        return None

    def trim(self, stage: str, index: int, keep_bytes: int) -> tuple[int, bool]:
        """Trim a device's default pool, and return the number of bytes freed and whether it succeeded."""
        pool = ctypes.c_void_p()
        status = self._get_pool(ctypes.byref(pool), index)
        if status == _NO_DEVICE:
            return 0, False
        if status:
            name = f"{self._prefix}DeviceGetDefaultMemPool"
            _log.warning("[%s] %s failed with status %d", stage, name, status)
            return 0, False
        before = self._reserved(pool)
        status = self._trim(pool, keep_bytes)
        if status:
            _log.warning("[%s] %s mempool trim failed (%d)", stage, self._title, status)
            return 0, False
        report(_log, "[%s] %s mempool trimmed", stage, self._title)
        return max(0, before - self._reserved(pool)), True

    def _reserved(self, pool: ctypes.c_void_p) -> int:
        """Return the bytes that the pool holds, or 0 if the runtime cannot tell."""
        value = ctypes.c_uint64()
        if self._get is None or self._get(pool, _RESERVED_BYTES, ctypes.byref(value)):
            return 0
        return value.value
