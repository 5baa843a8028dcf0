"""The guide after a shortage of memory, with ComfyUI's settings, in the error that its page shows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from diffusers_helper.failures import DriverStep, driver_failure
from diffusers_helper.planning.profiles import detect
from diffusers_helper.planning.shortage import OutOfDeviceMemory, Step, is_out_of_memory, read_shortage
from rocm_nodes.host import management

COMFYUI: dict[Step, str] = {
    "limits": "Check the driver's limits: the size of GTT (ttm.pages_limit) and of the BIOS carve-out, free "
    "system memory and swap, and the limit on locked memory (ulimit -l).",
    "resolution": "Reduce batch size, width or height. In a decode, set tile_size to 512 or less.",
    "preserved": "Start ComfyUI with --reserve-vram 2 to keep fewer weights on the card.",
    "allocator": "Try PYTORCH_ALLOC_CONF=expandable_segments:True in ComfyUI's environment. "
    "Reports differ on whether it helps; take it out again if it does not.",
    "unload": "Unload other models first: use the node ROCm Memory Optimizer with the level aggressive.",
    "close": "Close other programs that use the card.",
    "restart": "Restart ComfyUI: a new process starts with unfragmented memory.",
    "smaller": "Use a smaller model, or one with 8-bit weights.",
    "elsewhere": "Check which other models are loaded in ComfyUI, and that no other program, and no second "
    "ComfyUI, holds the same model on the card.",
    "versions": "Check that PyTorch and ROCm are up to date.",
}


COMFYUI_DRIVER: dict[DriverStep, str] = {
    "again": "Restart ComfyUI and run the workflow again: a new process starts the device anew.",
    "cache": "Remove what MIOpen has learned and compiled: the folders ~/.config/miopen and ~/.cache/miopen.",
    "find_mode": "Start ComfyUI with MIOPEN_FIND_MODE=NORMAL, with which MIOpen tries every kernel.",
    "blas": "On an AMD card, start ComfyUI with TORCH_BLAS_PREFER_HIPBLASLT=0, so that PyTorch "
    "uses its other library for matrix products.",
    "versions": "Check that PyTorch and ROCm are up to date and made for this card.",
    "report": "If nothing helps, report it with the log of a start with MIOPEN_LOG_LEVEL=5.",
}


@contextmanager
def explained() -> Iterator[None]:
    """Turn a shortage of the device's memory into ComfyUI's own exception with the guide in its text.

    A failure of the card's libraries gets its guide, too. The exception is raised after the one it replaces
    was handled, so the failed call's tensors are freed.
    """
    try:
        yield
    except OutOfDeviceMemory as error:
        reported = _with_guide(error)
    except Exception as error:
        if is_out_of_memory(error):
            shortage = read_shortage(str(error))
            reported = _with_guide(OutOfDeviceMemory(shortage, is_apu=detect({}).is_apu, remedies=COMFYUI))
        elif isinstance(error, RuntimeError) and (found := driver_failure(str(error), COMFYUI_DRIVER)):
            reported = found
        else:
            raise
    else:
        return
    raise reported


def _with_guide(error: OutOfDeviceMemory) -> Exception:
    """Return an error that ComfyUI treats as a shortage of its own, after which it unloads its models."""
    kind = type("OutOfMemoryWithGuide", (management().OOM_EXCEPTION,), {})
    return kind(f"{error.message}\n{error.remedy}\nThe driver's words: {error.shortage.text}")
