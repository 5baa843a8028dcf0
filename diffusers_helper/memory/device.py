"""The device that a job computes on, which is a GPU, or main memory (`accounting.Device`)."""

from collections.abc import Iterable
from typing import Any, Self

import torch
from torch import Tensor, nn

from diffusers_helper.errors import InputError
from diffusers_helper.machine.sysfs import amd_gpus
from diffusers_helper.memory.accounting import Device, Repeat


class CudaDevice(Device):
    """A GPU of AMD or NVIDIA; torch calls both "cuda".

    If the process belongs to another program (`is_guest`), that program's memory limit stays. Plans then keep
    to the cap, but nothing enforces it.
    """

    has_gpu = True

    def __init__(self, torch_device: torch.device | None = None, *, is_guest: bool = False) -> None:
        device = torch_device or torch.device("cuda")
        index = torch.cuda.current_device() if device.index is None else device.index
        self.torch_device = torch.device("cuda", index)
        self._is_guest = is_guest
        self._previous_devices = list[int]()

    @property
    def _properties(self) -> Any:
        return torch.cuda.get_device_properties(self.torch_device)

    @property
    def total_bytes(self) -> int:
        return self._properties.total_memory

    def allocated_bytes(self) -> int:
        return torch.cuda.memory_allocated(self.torch_device)

    def reserved_bytes(self) -> int:
        return torch.cuda.memory_reserved(self.torch_device)

    def peak_bytes(self) -> int:
        return torch.cuda.max_memory_allocated(self.torch_device)

    def peak_reserved_bytes(self) -> int:
        return torch.cuda.max_memory_reserved(self.torch_device)

    def reset_peak(self) -> None:
        torch.cuda.reset_peak_memory_stats(self.torch_device)

    def free_bytes(self) -> int:
        """Add up the driver's free and the allocator's unused memory, as far as the cap allows."""
        allocated = self.allocated_bytes()
        free = self._unused_bytes() + self.reserved_bytes() - allocated
        return free if self.cap_bytes is None else max(0, min(free, self.cap_bytes - allocated))

    def _unused_bytes(self) -> int:
        """Count the memory of the card that no program has taken.

        HIP does not see what the desktop takes, but the kernel does: https://github.com/ROCm/amdgpu/issues/223.
        """
        unused = torch.cuda.mem_get_info(self.torch_device)[0]
        properties = self._properties
        pci_ids = [getattr(properties, f"pci_{part}_id", -1) for part in ("domain", "bus", "device")]
        address = "{:04x}:{:02x}:{:02x}.0".format(*pci_ids)
        gpu = next((gpu for gpu in amd_gpus() if gpu.address == address), None)
        if gpu is None or gpu.is_apu or properties.is_integrated:
            return unused
        return min(unused, gpu.vram_total - gpu.vram_used)

    def limit(self, cap_bytes: int | None) -> None:
        self.cap_bytes = cap_bytes
        if self._is_guest:
            return
        fraction = 1.0 if cap_bytes is None else min(1.0, cap_bytes / self.total_bytes)
        torch.cuda.set_per_process_memory_fraction(fraction, self.torch_device)

    def empty_cache(self) -> None:
        torch.cuda.empty_cache()

    def adopt(self, tensors: nn.Module | Iterable[Tensor]) -> None:
        pass  # torch knows which tensors are on the GPU

    release = adopt

    def repeater(self) -> Repeat:
        return lambda key, compute: compute()

    def __enter__(self) -> Self:
        self._previous_devices.append(torch.cuda.current_device())
        torch.cuda.set_device(self.torch_device)  # some kernels start on the current card
        return self

    def __exit__(self, *error: object) -> None:
        torch.cuda.set_device(self._previous_devices.pop())


def second_device(first: torch.device) -> torch.device:
    """Choose the card that helps the first one, or raise InputError; for the processor, that is itself."""
    if first.type != "cuda":
        return first
    index = (first.index or 0) + 1
    if index >= torch.cuda.device_count():
        raise InputError(
            "A second card is to help the first, but this process sees one card only.",
            "Name both, such as --devices 0+1, or leave out LONGTAKE_HELPER_CAP_GB.",
        )
    return torch.device("cuda", index)


def open_device(torch_device: torch.device | None = None, *, is_guest: bool = False) -> Device:
    device = torch_device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return CudaDevice(device, is_guest=is_guest) if device.type == "cuda" else Device()
