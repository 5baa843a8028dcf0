"""Log lines on the use of the device's memory, worded as in the memory document (docs/amd-memory.md).

The functions do not set a limit; plans and `Device.limit` do. A device of None means torch's current GPU.
"""

import logging

import torch

from diffusers_helper.memory.device import CudaDevice, Device
from diffusers_helper.planning.budget import MAX_VRAM_USAGE_GB
from diffusers_helper.units import GB, gb_text

_log = logging.getLogger(__name__)

_WARN_SHARE = 0.9
# The memory document asks for 4 to 6 GB before the VAE decodes. Under a small cap, half of the cap suffices.
_FREE_FOR_VAE = 4 * GB


def report(log: logging.Logger, text: str, *values: object) -> None:
    """Log a line as information.

    In a program without any logging handler, Python shows warnings only. The line then goes to standard error
    as they do, unless the program has asked for less.
    """
    log.info(text, *values)
    handler = logging.lastResort
    if handler is not None and not log.hasHandlers() and log.getEffectiveLevel() <= logging.WARNING:
        handler.handle(log.makeRecord(log.name, logging.INFO, "", 0, text, values, None))


def get_cuda_allocated_memory_gb(device: Device | torch.device | None = None) -> float:
    """Measure the live tensors on a device in GB (1024^3 bytes); 0 without a device."""
    resolved = _resolve(device)
    return resolved.allocated_bytes() / GB if resolved else 0.0


def get_cuda_free_memory_gb(device: Device | torch.device | None = None) -> float:
    """Tell how many GB (1024^3 bytes) can still be allocated on a device; 0 without a device."""
    resolved = _resolve(device)
    return resolved.free_bytes() / GB if resolved else 0.0


def check_vram_limit(device: Device | torch.device | None = None, limit_gb: float | None = None) -> bool:
    """Check that less than 90 % of the limit is allocated, and log a warning if not.

    Without a limit it is the device's cap, or `MAX_VRAM_USAGE_GB` if the device has no cap.
    """
    resolved = _resolve(device)
    if resolved is None:
        return True
    limit = _limit_gb(resolved) if limit_gb is None else limit_gb
    allocated = resolved.allocated_bytes() / GB
    if allocated < _WARN_SHARE * limit:
        return True
    _log.warning("[VRAM Limit] Warning: Current allocation %.2f GB near limit %.2f GB", allocated, limit)
    return False


def clear_cache_near_limit(device: Device | torch.device | None, model_name: str) -> bool:
    """Empty the allocator's cache before a model is loaded, if `check_vram_limit` warns.

    While models are loaded, the allocator's cache is not emptied.
    """
    resolved = _resolve(device)
    if resolved is None or check_vram_limit(resolved):
        return False
    _log.warning("[VRAM Limit] Forcing cache clear before loading %s", model_name)
    resolved.empty_cache()
    return True


def low_memory_warning(device: Device, vae_bytes: int) -> str:
    """Warn, with a remedy, if too little GPU memory is free for the VAE to decode; "" if enough is.

    All other networks have left the device. `vae_bytes` is what the VAE needs with its weights.
    """
    cap = device.total_bytes if device.cap_bytes is None else device.cap_bytes
    free_bytes = device.free_bytes()
    required = max(vae_bytes, min(_FREE_FOR_VAE, cap // 2))
    if not device.has_gpu or free_bytes >= required:
        return ""
    return (
        f"Only {gb_text(free_bytes)} GB of the card's memory are free before the VAE decodes; at least "
        f"{gb_text(required)} GB should be. If decoding fails, close other programs that use the card, "
        "restart Longtake, or choose smaller VAE tiles."
    )


def log_memory_status(device: Device | torch.device | None = None, prefix: str = "") -> None:
    """Log the memory in use on a device, its limit, and the share between them."""
    resolved = _resolve(device)
    if resolved is None:
        report(_log, "%sThere is no GPU whose memory could be shown.", prefix)
        return
    allocated = resolved.allocated_bytes() / GB
    limit = _limit_gb(resolved)
    share = 100 * allocated / limit if limit else 100.0
    sizes = resolved.free_bytes() / GB, allocated, limit, resolved.reserved_bytes() / GB
    free_text, allocated_text, limit_text, reserved_text = (f"{round(size, 2):g}" for size in sizes)
    report(
        _log, "%sFree: %s GB | Allocated: %s GB (%.1f%% of %sGB limit) | Reserved: %s GB",
        prefix, free_text, allocated_text, share, limit_text, reserved_text,
    )  # fmt: skip


def _resolve(device: Device | torch.device | None) -> Device | None:
    if isinstance(device, Device):
        return device
    is_gpu = device is None or device.type == "cuda"
    return CudaDevice(device) if is_gpu and torch.cuda.is_available() else None


def _limit_gb(device: Device) -> float:
    return MAX_VRAM_USAGE_GB if device.cap_bytes is None else device.cap_bytes / GB
