"""The weights of a module, which are stored in main memory and copied to the device for use.

A module stays the same object with the same parameters; only their `.data` changes. In main memory, it is the
memory-mapped file, which cannot be written to. On the device, it is a copy in aligned storage. This holds on
a CPU, too, where some kernels give slightly different results for unaligned weights such as those in a file.

Int8 weights have a scale for each row, and are made from wider ones a few rows at a time.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Self

import torch
from torch import Tensor, nn

from diffusers_helper.memory.staging import PIECE_BYTES, Staging

_INT8_MAX = 127
_PIECE_VALUES = 2**20  # a piece in fp32 stays in the processor's cache
_MIN_SCALE = torch.finfo(torch.float32).tiny  # the scale of a row of zeros
# The alignment that the allocators of CPU and GPU guarantee. No kernel needs more.
_ALIGNMENT = {"cpu": 64}
_ALIGNMENT_GPU = 256


def row_scales(weight: Tensor) -> Tensor:
    """Find the scales in fp32, (rows, 1), by which int8 spans the largest value of each row."""
    with torch.inference_mode(False):  # as the buffer of a layer, they outlive the job
        row_maxima = [piece.to(torch.float32).abs().amax(1, keepdim=True) for piece in _pieces(weight)]
        return torch.cat(row_maxima).div_(_INT8_MAX).clamp_(min=_MIN_SCALE)


def to_int8(weight: Tensor, scales: Tensor, target: Tensor) -> None:
    """Write a weight, divided by the scales of its rows and rounded, to an int8 tensor on any device."""
    pieces = zip(_pieces(weight), _pieces(scales, weight), _pieces(target), strict=True)
    for piece, scale, target_piece in pieces:
        target_piece.copy_((piece.to(torch.float32) / scale).round_().to(torch.int8))


def _pieces(tensor: Tensor, like: Tensor | None = None) -> Iterator[Tensor]:
    """Yield groups of rows, of about `_PIECE_VALUES` values in `like` or else in the tensor itself."""
    width = (tensor if like is None else like).shape[1]
    yield from tensor.split(max(1, _PIECE_VALUES // max(1, width)))


@dataclass(frozen=True, slots=True)
class Weight:
    """One parameter or buffer of a module, with its values in main memory and its type on the device.

    With `row_scales`, the values are rounded to int8 on their way to the device.
    """

    tensor: Tensor
    host: Tensor
    dtype: torch.dtype
    row_scales: Tensor | None = None

    @property
    def num_bytes(self) -> int:
        return self.host.numel() * self.dtype.itemsize

    @classmethod
    def of(cls, tensor: Tensor, dtype: torch.dtype | None = None) -> Self:
        with torch._C.DisableTorchFunctionSubclass():  # GGUF's parameters make one of each tensor they touch
            return cls(tensor, tensor.data, dtype or tensor.dtype, getattr(tensor, "row_scales", None))

    def to_device(self, staging: Staging) -> None:
        layout = Layout.of([self], staging.device)
        with torch.inference_mode(False):  # the parameter is no inference tensor, as it outlives the job
            storage = torch.empty(layout.num_bytes, dtype=torch.uint8, device=staging.device)
            for piece in layout.pieces():
                staging.send(piece.write, storage[piece.start : piece.end])
            layout.use(storage)

    def row_groups(self) -> Iterator[Self]:
        """Yield groups of rows, with their scales, that take at most `PIECE_BYTES` if a row takes no more."""
        host = torch.atleast_1d(self.host)
        num_rows = max(1, PIECE_BYTES * len(host) // max(1, self.num_bytes))
        scales = repeat(None) if self.row_scales is None else self.row_scales.split(num_rows)
        for rows, row_scales in zip(host.split(num_rows), scales, strict=False):
            yield replace(self, host=rows, row_scales=row_scales)

    def copy_to(self, target: Tensor) -> None:
        if self.row_scales is None:
            target.copy_(self.host)
        else:
            to_int8(self.host, self.row_scales, target)

    def to_host(self) -> None:
        self.tensor.data = self.host


def weights_of(module: nn.Module, dtype: torch.dtype | None = None) -> list[Weight]:
    """List all parameters and buffers of a module in main memory, each once.

    A tensor with an attribute `storage_dtype` has that type on the device; its layer casts it for use. With
    an attribute `row_scales`, it is rounded to int8 by these scales. `dtype` is that of all other parameters
    in fp8, and of those in the most common of the other types; None for the stored type.
    """
    parameters = list(module.parameters())
    common_dtype = _most_common(parameters)
    cast_ids = {id(tensor) for tensor in parameters if _is_fp8(tensor) or tensor.dtype == common_dtype}
    tensors = {id(tensor): tensor for tensor in (*parameters, *module.buffers())}
    return [
        Weight.of(tensor, getattr(tensor, "storage_dtype", None) or (dtype if key in cast_ids else None))
        for key, tensor in tensors.items()
    ]


def sizes_of(
    module: nn.Module, blocks: Iterable[nn.Module], dtype: torch.dtype | None = None
) -> tuple[int, tuple[int, ...]]:
    sizes = {id(weight.tensor): weight.num_bytes for weight in weights_of(module, dtype)}

    def size(child: nn.Module) -> int:
        scales = [tensor for tensor in child.buffers() if getattr(tensor, "storage_dtype", None) is not None]
        return sum(sizes[id(tensor)] for tensor in (*child.parameters(), *scales))

    return size(module), tuple(size(block) for block in blocks)


def _is_fp8(tensor: Tensor) -> bool:
    return tensor.is_floating_point() and tensor.element_size() == 1


def _most_common(parameters: Iterable[Tensor]) -> torch.dtype | None:
    counts = Counter[torch.dtype]()
    for parameter in parameters:
        if parameter.is_floating_point() and not _is_fp8(parameter):
            counts[parameter.dtype] += parameter.numel()
    return max(counts, key=lambda dtype: counts[dtype], default=None)


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of a layout's storage. The offsets in it are relative to its start."""

    start: int
    end: int
    placements: list[tuple[Weight, int]]

    def write(self, storage: Tensor) -> None:
        for weight, offset in self.placements:
            weight.copy_to(_view(weight, offset, storage))


@dataclass(frozen=True, slots=True)
class Layout:
    placements: tuple[tuple[Weight, int], ...]
    num_bytes: int

    @classmethod
    def of(cls, weights: Iterable[Weight], device: torch.device) -> Self:
        alignment = _ALIGNMENT.get(device.type, _ALIGNMENT_GPU)
        placements: list[tuple[Weight, int]] = []
        end = 0
        # Tensors whose sizes are not aligned come last, which wastes less memory.
        for weight in sorted(weights, key=lambda weight: weight.num_bytes % alignment != 0):
            offset = -(-end // alignment) * alignment
            placements.append((weight, offset))
            end = offset + weight.num_bytes
        return cls(tuple(placements), end)

    def pieces(self) -> Iterator[Piece]:
        start = end = 0
        placements: list[tuple[Weight, int]] = []
        for weight, offset in self.placements:
            for rows in weight.row_groups():
                if offset + rows.num_bytes > start + PIECE_BYTES:
                    yield Piece(start, end, placements)
                    start = offset
                    placements = []
                placements.append((rows, offset - start))
                offset = end = offset + rows.num_bytes
        yield Piece(start, end, placements)

    def use(self, storage: Tensor) -> None:
        for weight, offset in self.placements:
            weight.tensor.data = _view(weight, offset, storage)

    def to_host(self) -> None:
        for weight, _ in self.placements:
            weight.to_host()


def _view(weight: Weight, offset: int, storage: Tensor) -> Tensor:
    return storage[offset : offset + weight.num_bytes].view(weight.dtype).view(weight.host.shape)
