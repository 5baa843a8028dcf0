"""The device that a job computes on, which is a GPU, or main memory with an account of the tensors on it."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterable
from typing import Any, Self

import torch
from torch import Tensor, nn

from diffusers_helper.errors import InputError
from diffusers_helper.machine.sysfs import amd_gpus
from diffusers_helper.memory.accounting import Account

# run(key, compute) returns the tensor that `compute` makes. With one key, it computes with the same shapes.
Repeat = Callable[[Hashable, Callable[[], Tensor]], Tensor]


class Device:
    """Main memory as a device, with an `Account` of the tensors that a GPU would hold; a GPU differs below.

    A device has figures about its memory, all in bytes, and a cap. All computation on it has to take place
    within `with device:`, which may be nested. Here, only tensors that are created there, on the same thread,
    are counted.

    Attributes:
        cap_bytes: The most memory that torch may hold on the device; None for no cap.
    """

    has_gpu = False
    cap_bytes: int | None = None

    def __init__(self) -> None:
        self.torch_device = torch.device("cpu")
        self.account = Account()
        # By a repeated computation's key, the growth of its first run, and what that has left: the others'.
        self._growths: dict[Hashable | None, int] = {}

    @property
    def total_bytes(self) -> int:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

    def allocated_bytes(self) -> int:
        return self.account.allocated_bytes

    def reserved_bytes(self) -> int:
        """Return the memory that torch holds, including the unused memory of its allocator."""
        return self.account.allocated_bytes

    def peak_bytes(self) -> int:
        """Return the highest value of `allocated_bytes` since `reset_peak`, which is what plans foretell."""
        return self.account.peak_bytes

    def peak_reserved_bytes(self) -> int:
        """Return the highest value of `reserved_bytes` since `reset_peak`."""
        return self.peak_bytes()

    def reset_peak(self) -> None:
        self.account.reset_peak()

    def free_bytes(self) -> int:
        """Return the memory that this process can still allocate under the cap, or of all without a cap."""
        cap = self.total_bytes if self.cap_bytes is None else self.cap_bytes
        return max(0, cap - self.allocated_bytes())

    def limit(self, cap_bytes: int | None) -> None:
        """Set the cap, or remove it if None. An allocation beyond it raises `torch.OutOfMemoryError`."""
        self.cap_bytes = self.account.cap_bytes = cap_bytes

    def empty_cache(self) -> None:
        """Return the allocator's unused memory to the driver; here is none."""

    def adopt(self, what: nn.Module | Iterable[Tensor]) -> None:
        """Count tensors as on the device, if it cannot recognise them by itself."""
        self.account.adopt(what)

    def release(self, what: nn.Module | Iterable[Tensor]) -> None:
        """Count tensors as on the host, in the same case."""
        self.account.release(what)

    def repeater(self) -> Repeat:
        """Return a runner of computations that are repeated with tensors of the same shapes.

        It does not count the tensors of a computation whose peak is known.

        Counting them all costs an eighth of a forward pass of the demo model. The first computation with a
        key may leave things behind for the others, so it is the second one that tells how far each of them
        goes beyond what is alive before it. It is not counted either if it is known from an earlier runner
        whose first computation has grown as far and left as much. One that would exceed the cap is counted.
        """
        begun: dict[Hashable, Hashable] = {}

        def run(key: Hashable, compute: Callable[[], Tensor]) -> Tensor:
            before, growth = self.allocated_bytes(), self._growths.get(begun.get(key))
            if growth is None or (self.cap_bytes is not None and before + growth > self.cap_bytes):
                with self.account.peak_apart() as peak:
                    made = compute()
                    grown = peak() - before
                if key in begun:
                    self._growths[begun[key]] = grown
                else:
                    begun[key] = key, grown, self.allocated_bytes() - before
                return made
            with self.account.paused():
                made = compute()
            self.account.reach(before + growth)
            self.adopt([made])
            return made

        return run

    def __enter__(self) -> Self:
        self.account.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.account.__exit__(*error)


class CudaDevice(Device):
    """A GPU of AMD or NVIDIA; torch calls both "cuda".

    If the process belongs to another program (`is_guest`), the memory limit that this has set stays. Plans
    keep to the cap then, but nothing enforces it.
    """

    has_gpu = True

    def __init__(self, torch_device: torch.device | None = None, *, is_guest: bool = False) -> None:
        given = torch_device or torch.device("cuda")
        index = torch.cuda.current_device() if given.index is None else given.index
        self.torch_device = torch.device("cuda", index)
        self._is_guest, self._outer = is_guest, list[int]()

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
        """Return the sum of the driver's free and the allocator's unused memory, as far as the cap allows."""
        allocated = self.allocated_bytes()
        free = self._unused_bytes() + self.reserved_bytes() - allocated
        return free if self.cap_bytes is None else max(0, min(free, self.cap_bytes - allocated))

    def _unused_bytes(self) -> int:
        """Return the memory of the card that no program has taken.

        HIP does not see what the desktop takes, but the kernel does: https://github.com/ROCm/amdgpu/issues/223.
        """
        unused, properties = torch.cuda.mem_get_info(self.torch_device)[0], self._properties
        place = [getattr(properties, f"pci_{part}_id", -1) for part in ("domain", "bus", "device")]
        address = "{:04x}:{:02x}:{:02x}.0".format(*place)
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

    def adopt(self, what: nn.Module | Iterable[Tensor]) -> None:
        pass  # torch knows which tensors are on the GPU

    release = adopt

    def repeater(self) -> Repeat:
        return lambda key, compute: compute()

    def __enter__(self) -> Self:
        self._outer.append(torch.cuda.current_device())
        torch.cuda.set_device(self.torch_device)  # some kernels start on the current card
        return self

    def __exit__(self, *error: object) -> None:
        torch.cuda.set_device(self._outer.pop())


def second_device(first: torch.device) -> torch.device:
    """Return the device of the card that helps the first one; for the processor, that is itself.

    Raises:
        InputError: If this process sees no further card.
    """
    if first.type != "cuda":
        return first
    number = (first.index or 0) + 1
    if number >= torch.cuda.device_count():
        raise InputError(
            "A second card is to help the first, but this process sees one card only.",
            "Name both, such as --devices 0+1, or leave out LONGTAKE_HELPER_CAP_GB.",
        )
    return torch.device("cuda", number)


def open_device(torch_device: torch.device | None = None, *, is_guest: bool = False) -> Device:
    """Return the device to compute on, by default the first GPU, or the accounting device without a GPU."""
    wanted = torch_device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return CudaDevice(wanted, is_guest=is_guest) if wanted.type == "cuda" else Device()
