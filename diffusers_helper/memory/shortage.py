"""Out of memory: recognised in all its texts, classified by the numbers in them, and turned into advice.

The texts of PyTorch for CUDA and HIP are the same but for a word, and say what was tried, free, in use and
lying idle in the allocator. HSA's say nothing. What advice comes first depends on these numbers: memory that
is missing, memory in pieces, and memory that the driver withholds are three different troubles.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from diffusers_helper.errors import LongtakeError
from diffusers_helper.planning.budget import GB, gb_text

Kind = Literal["shortage", "fragmentation", "driver"]

_CLASS_NAMES = frozenset({"OutOfMemoryError"})
# Lower case. The texts of main memory are not among them: a smaller plan for the device cannot help there.
_TEXTS = (
    "hip out of memory",
    "cuda out of memory",
    "hip error: out of memory",
    "cuda error: out of memory",
    "hiperroroutofmemory",
    "cudaerrormemoryallocation",
    "blockallocator::alloc failed",
    "hsa_status_error_out_of_resources",
    "memory critical error by agent",
    "cublas_status_alloc_failed",
    "hipblas_status_alloc_failed",
    "rocblas_status_memory_error",
    "miopenstatusallocfailed",
)
_UNITS = {"bytes": 1, "kib": 1024, "mib": 1024**2, "gib": GB, "kb": 1024, "mb": 1024**2, "gb": GB}
_SIZE = r"([\d.]+) ?([KMG]i?B|bytes)"
# A part of the card this large in other hands is worth a step of its own.
_MUCH = 0.1


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the device's memory has run out, by what torch, HIP, CUDA, HSA or the libraries on them say."""
    if any(kind.__name__ in _CLASS_NAMES for kind in type(error).__mro__):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(known in text for known in _TEXTS)


@dataclass(frozen=True, slots=True)
class Shortage:
    """What a text says, in bytes; None for what it does not say.

    Attributes:
        text: its first line.
        tried: the allocation that failed.
        capacity, free: of the card, as the driver sees it.
        allocated, idle: of this process: in tensors, and in the allocator but unused.
    """

    text: str
    tried: int | None = None
    capacity: int | None = None
    free: int | None = None
    allocated: int | None = None
    idle: int | None = None

    @property
    def kind(self) -> Kind:
        """Why it failed.

        More asked for than free and idle together is a real shortage. Where the idle memory alone would do,
        it lies in pieces. Where the free memory would do, the driver keeps it back.
        """
        if self.tried is None or self.free is None:
            return "shortage" if "out of memory" in self.text.lower() else "driver"
        idle = self.idle or 0
        if self.tried > self.free + idle:
            return "shortage"
        return "driver" if self.tried <= self.free else "fragmentation"

    @property
    def outside(self) -> int | None:
        """Bytes that neither the driver has free nor this process' tensors and allocator hold."""
        if self.capacity is None or self.free is None or self.allocated is None:
            return None
        return max(0, self.capacity - self.free - self.allocated - (self.idle or 0))


def read_shortage(text: str) -> Shortage:
    """What an error's text says."""

    def size(pattern: str) -> int | None:
        match = re.search(pattern, text, re.IGNORECASE)
        return int(float(match[1]) * _UNITS[match[2].lower()]) if match else None

    return Shortage(
        text=(text.strip().splitlines() or [""])[0][:300],
        tried=size(rf"tried to allocate {_SIZE}"),
        capacity=size(rf"total capacity of {_SIZE}"),
        free=size(rf"of which {_SIZE} is free"),
        allocated=size(rf"{_SIZE} is allocated by PyTorch"),
        idle=size(rf"{_SIZE} is reserved by PyTorch but unallocated"),
    )


_FIRST: dict[Kind, tuple[str, ...]] = {
    "shortage": (
        "Choose a smaller resolution, or set --vae-tile to auto.",
        "Raise --preserved-gb by 1 or 2, so that less of the weights stays on the device.",
    ),
    "fragmentation": (
        "Start Longtake anew: a fresh process has its memory in one piece.",
        "Keep the allocator's setting garbage_collection_threshold:0.8,max_split_size_mb:64.",
        "Raise --preserved-gb by 1 or 2.",
    ),
    "driver": (
        "Look at what limits the driver: the size of GTT (ttm.pages_limit) and of the BIOS carve-out on an "
        "APU, free system memory and swap, the limit of locked memory (ulimit -l); python -m app doctor "
        "shows them.",
        "Close other programs that use the card.",
        "Raise --preserved-gb by 1 or 2.",
    ),
}
_TAIL = (
    "Close other programs that use the card.",
    "Start Longtake anew, so that nothing is left in its memory.",
    "Raise --preserved-gb to 19 or 20 on a card of 24 GB.",
    "Check PYTORCH_HIP_ALLOC_CONF: python -m app doctor tells what it should be.",
    "Look in the log whether each model is unloaded before the next one is loaded.",
    "Choose a smaller resolution or a shorter video.",
    "Use a smaller model, or one with 8-bit weights.",
    "Check that PyTorch and ROCm are up to date.",
)


def advice(shortage: Shortage) -> tuple[str, ...]:
    """What to do, the likeliest first."""
    steps = _FIRST[shortage.kind]
    outside = shortage.outside
    if outside is not None and shortage.capacity and outside > _MUCH * shortage.capacity:
        held = f"Close other programs that use the card: {gb_text(outside)} GB are held outside of Longtake."
        steps = (held, *steps) if shortage.kind == "shortage" else (steps[0], held, *steps[1:])
    known = " ".join(steps)
    return (*steps, *(step for step in _TAIL if step.rstrip(".") not in known))


class OutOfDeviceMemory(LongtakeError):
    """The device's memory ran out, and smaller plans did not help."""

    def __init__(self, shortage: Shortage) -> None:
        steps = [f"{number}. {step}" for number, step in enumerate(advice(shortage), 1)]
        super().__init__(_sentence(shortage), "\n".join(steps))
        self.shortage = shortage
        self.add_note(shortage.text)


def _sentence(shortage: Shortage) -> str:
    if shortage.tried is None or shortage.free is None:
        return f"The device's memory ran out, and smaller plans did not help ({shortage.text})."
    tried, free, idle = (gb_text(count) for count in (shortage.tried, shortage.free, shortage.idle or 0))
    found = {
        "shortage": f"it needed {tried} GB more where {free} GB were free",
        "fragmentation": f"it needed {tried} GB in one piece; {idle} GB lay unused, but in pieces",
        "driver": f"the driver refused {tried} GB although {free} GB were free",
    }[shortage.kind]
    return f"The device's memory ran out, and smaller plans did not help: {found}."
