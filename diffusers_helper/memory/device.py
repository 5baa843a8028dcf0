"""The device that a job computes on, which is a GPU, or main memory with an account of the tensors on it."""

import os
from collections.abc import Callable, Hashable, Iterable
from typing import Any, Self

import torch
from torch import Tensor, nn

from diffusers_helper.errors import InputError
from diffusers_helper.machine.sysfs import amd_gpus
from diffusers_helper.memory.accounting import Account

# run(key, compute) returns the tensor that `compute` makes. Computations with one key have the same shapes.
Repeat = Callable[[Hashable, Callable[[], Tensor]], Tensor]


class Device:
    """Main memory as a device, with an `Account` of the tensors that a GPU would hold. Figures are in bytes.

    All computation on it has to take place within `with device:`, which may be nested. Only tensors that are
    created within it, on the same thread, are counted.
    """

    has_gpu = False
    cap_bytes: int | None = None

    def __init__(self) -> None:
        self.torch_device = torch.device("cpu")
        self.account = Account()
        # The growth of memory in a repeated computation, by its key and the growth and rest of its first run.
        self._growths: dict[Hashable | None, int] = {}

    @property
    def total_bytes(self) -> int:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

    def allocated_bytes(self) -> int:
        return self.account.allocated_bytes

    def reserved_bytes(self) -> int:
        """Count the memory that torch holds, with the unused memory of its allocator."""
        return self.account.allocated_bytes

    def peak_bytes(self) -> int:
        return self.account.peak_bytes

    def peak_reserved_bytes(self) -> int:
        return self.peak_bytes()

    def reset_peak(self) -> None:
        self.account.reset_peak()

    def free_bytes(self) -> int:
        """Count what this process can still allocate under the cap, or of all memory without a cap."""
        cap = self.total_bytes if self.cap_bytes is None else self.cap_bytes
        return max(0, cap - self.allocated_bytes())

    def limit(self, cap_bytes: int | None) -> None:
        """Set the cap, or remove it if None. An allocation beyond it raises `torch.OutOfMemoryError`."""
        self.cap_bytes = self.account.cap_bytes = cap_bytes

    def empty_cache(self) -> None:
        """Give the allocator's unused memory back to the driver; there is none here."""

    def adopt(self, tensors: nn.Module | Iterable[Tensor]) -> None:
        self.account.adopt(tensors)

    def release(self, tensors: nn.Module | Iterable[Tensor]) -> None:
        self.account.release(tensors)

    def repeater(self) -> Repeat:
        """Make a runner of repeated computations, which stops counting tensors once their peak is known.

        Counting costs an eighth of a forward pass of the demo model, so each kind of computation, which has a
        key, is counted twice: the first one may leave tensors behind for the later ones, and the second one
        shows by how much memory grows. The second count is left out if an earlier runner has counted a kind
        whose first computation grew and left behind as much. Whatever would exceed the cap is counted again.
        """
        first_runs: dict[Hashable, Hashable] = {}

        def run(key: Hashable, compute: Callable[[], Tensor]) -> Tensor:
            allocated_before = self.allocated_bytes()
            growth = self._growths.get(first_runs.get(key))
            if growth is None or (self.cap_bytes is not None and allocated_before + growth > self.cap_bytes):
                previous_peak = self.peak_bytes()
                self.reset_peak()
                try:
                    result = compute()
                    measured_growth = self.peak_bytes() - allocated_before
                finally:
                    self.account.raise_peak(previous_peak)
                if key in first_runs:
                    self._growths[first_runs[key]] = measured_growth
                else:
                    first_runs[key] = key, measured_growth, self.allocated_bytes() - allocated_before
                return result
            with self.account.paused():
                result = compute()
            self.account.raise_peak(allocated_before + growth)
            self.adopt([result])
            return result

        return run

    def __enter__(self) -> Self:
        self.account.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.account.__exit__(*error)


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
