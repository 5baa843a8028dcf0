"""A module's weights in two places: waiting in main memory, and in use on the device.

A module stays the same object with the same parameters; only their `.data` changes. In main memory that is
the memory-mapped file, which is never written to. What enters the device is copied into aligned storage, on a
CPU too: some CPU kernels give other bits for weights that begin at odd addresses, as those in a file do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

# The alignment that the allocators of CPU and GPU give at least, and that no kernel exceeds.
_ALIGNMENT = {"cpu": 64}
_ALIGNMENT_GPU = 256


@dataclass(frozen=True, slots=True)
class Weight:
    """One parameter or buffer of a module, its values in main memory, and its type on the device."""

    tensor: Tensor
    host: Tensor
    dtype: torch.dtype

    @property
    def num_bytes(self) -> int:
        """Return the bytes on the device."""
        return self.host.numel() * self.dtype.itemsize

    def to_device(self, device: torch.device) -> None:
        """Copy the values into storage of their own on the device."""
        with torch.inference_mode(False):  # as the parameter is: it outlives the job
            placed = torch.empty(self.host.shape, dtype=self.dtype, device=device)
            self.tensor.data = placed.copy_(self.host)

    def to_host(self) -> None:
        self.tensor.data = self.host


def weights_of(module: nn.Module, dtype: torch.dtype | None = None) -> list[Weight]:
    """Return all parameters and buffers, each once, in main memory as they are now.

    Args:
        dtype: The type of most parameters on the device; None for the stored type. Those that are stored in
            another type than most keep it on purpose.
    """
    parameters = list(module.parameters())
    stored = _most_common(parameters)
    return [
        Weight(
            tensor, tensor.data, dtype if dtype and is_parameter and tensor.dtype == stored else tensor.dtype
        )
        for is_parameter, tensor in _distinct(parameters, module.buffers())
    ]


def sizes_of(
    module: nn.Module, blocks: Iterable[nn.Module], dtype: torch.dtype | None = None
) -> tuple[int, tuple[int, ...]]:
    """Return the bytes of all parameters on the device, and of those in each block."""
    sizes = {id(weight.tensor): weight.num_bytes for weight in weights_of(module, dtype)}

    def size(part: nn.Module) -> int:
        return sum(sizes[id(parameter)] for parameter in part.parameters())

    return size(module), tuple(size(block) for block in blocks)


def _distinct(parameters: Iterable[Tensor], buffers: Iterable[Tensor]) -> Iterator[tuple[bool, Tensor]]:
    seen: set[int] = set()
    for is_parameter, tensors in ((True, parameters), (False, buffers)):
        for tensor in tensors:
            if id(tensor) not in seen:
                seen.add(id(tensor))
                yield is_parameter, tensor


def _most_common(parameters: Iterable[Tensor]) -> torch.dtype | None:
    counts: dict[torch.dtype, int] = {}
    for parameter in parameters:
        if parameter.is_floating_point():
            counts[parameter.dtype] = counts.get(parameter.dtype, 0) + parameter.numel()
    return max(counts, key=lambda kind: counts[kind], default=None)


@dataclass(frozen=True, slots=True)
class Layout:
    """The weights of one block in one piece of storage, each with its place in bytes."""

    places: tuple[tuple[Weight, int], ...]
    num_bytes: int

    @classmethod
    def of(cls, weights: Iterable[Weight], device: torch.device) -> Layout:
        alignment = _ALIGNMENT.get(device.type, _ALIGNMENT_GPU)
        places: list[tuple[Weight, int]] = []
        end = 0
        # Tensors of odd sizes come last, which loses less to alignment.
        for weight in sorted(weights, key=lambda weight: weight.num_bytes % alignment != 0):
            begin = -(-end // alignment) * alignment
            places.append((weight, begin))
            end = begin + weight.num_bytes
        return cls(tuple(places), end)

    def fill(self, storage: Tensor) -> None:
        """Copy the values in main memory into `storage`, bytes in main memory."""
        for weight, begin in self.places:
            _view(weight, begin, storage).copy_(weight.host)

    def use(self, storage: Tensor) -> None:
        """Let the module's tensors refer to `storage` from now on."""
        for weight, begin in self.places:
            weight.tensor.data = _view(weight, begin, storage)

    def to_host(self) -> None:
        for weight, _ in self.places:
            weight.to_host()


def _view(weight: Weight, begin: int, storage: Tensor) -> Tensor:
    return storage[begin : begin + weight.num_bytes].view(weight.dtype).view(weight.host.shape)
