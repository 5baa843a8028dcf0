"""A shortage of the device's memory, classified by the numbers in its text and turned into advice.

PyTorch's texts for CUDA and HIP differ by one word; they state the bytes that were tried, free, in use and
idle in the allocator. HSA's texts have no numbers. The first advice depends on these numbers: missing memory,
fragmented memory, and memory that the driver withholds are three different troubles.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from diffusers_helper.errors import LongtakeError
from diffusers_helper.foreign_errors import memory_sizes, names_memory, trouble_of
from diffusers_helper.units import gb_text

Kind = Literal["shortage", "fragmentation", "driver"]

# If others use a part of the card as large as this, the advice mentions it.
_MUCH = 0.1


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether the device's memory ran out, according to torch, HIP, CUDA, HSA or their libraries.

    Main memory does not count, since a smaller plan for the device cannot help there.
    """
    return trouble_of(error) == "device_memory"


@dataclass(frozen=True, slots=True)
class Shortage:
    """The figures in an error's text, in bytes; None for those that it does not state.

    Attributes:
        text: Its first line.
        tried: The size of the allocation that failed.
        capacity, free: The card's memory, and the part that the driver sees as free.
        allocated, idle: The memory that this process holds in tensors, and unused in the allocator.
    """

    text: str
    tried: int | None = None
    capacity: int | None = None
    free: int | None = None
    allocated: int | None = None
    idle: int | None = None

    @property
    def kind(self) -> Kind:
        """Return why the allocation failed.

        A request for more than the free and idle memory together is a real shortage. If the idle memory alone
        would suffice, it is fragmented. If the free memory would suffice, the driver withholds it.
        """
        if self.tried is None or self.free is None:
            return "shortage" if names_memory(self.text) else "driver"
        idle = self.idle or 0
        if self.tried > self.free + idle:
            return "shortage"
        return "driver" if self.tried <= self.free else "fragmentation"

    @property
    def outside(self) -> int | None:
        """Return the bytes that are neither free nor held by this process."""
        if self.capacity is None or self.free is None or self.allocated is None:
            return None
        return max(0, self.capacity - self.free - self.allocated - (self.idle or 0))


def read_shortage(text: str) -> Shortage:
    """Return the figures in an error's text."""
    return Shortage((text.strip().splitlines() or [""])[0][:300], **memory_sizes(text))


_CLOSE = "Close other programs that use the card."
_FIRST: dict[Kind, tuple[str, ...]] = {
    "shortage": (
        "Choose a smaller `resolution`, or leave `vae_tile` to the plan.",
        "Raise `preserved_gb` by 1 or 2, so that less of the weights stays on the device.",
    ),
    "fragmentation": (
        "Restart Longtake: the memory of a new process is not fragmented.",
        "Keep the allocator's setting garbage_collection_threshold:0.8,max_split_size_mb:64.",
        "Raise `preserved_gb` by 1 or 2.",
    ),
    "driver": (
        "Look at what limits the driver: the size of GTT (ttm.pages_limit) and of the BIOS carve-out on an "
        "APU, free system memory and swap, the limit of locked memory (ulimit -l); `doctor` "
        "shows them.",
        _CLOSE,
        "Raise `preserved_gb` by 1 or 2.",
    ),
}
_TAIL = (
    _CLOSE,
    "Restart Longtake, so that nothing is left in its memory.",
    "Raise `preserved_gb` to 19 or 20 on a card of 24 GB.",
    "Check PYTORCH_HIP_ALLOC_CONF: `doctor` tells what it should be.",
    "Look in the log whether each model is unloaded before the next one is loaded.",
    "Choose a smaller `resolution` or a shorter video.",
    "Use a smaller model, or one with 8-bit weights.",
    "Check that PyTorch and ROCm are up to date.",
)


def advice(shortage: Shortage) -> tuple[str, ...]:
    """Return the advice, the most likely remedy first."""
    steps, close = _FIRST[shortage.kind], _CLOSE
    outside = shortage.outside
    if outside is not None and shortage.capacity and outside > _MUCH * shortage.capacity:
        close = f"Close other programs that use the card: {gb_text(outside)} GB are held outside of Longtake."
        place = 0 if shortage.kind == "shortage" else 1
        steps = (*steps[:place], close, *steps[place:])
    return tuple(dict.fromkeys(close if step == _CLOSE else step for step in (*steps, *_TAIL)))


class OutOfDeviceMemory(LongtakeError):
    """A shortage of the device's memory for which no smaller plan is left; `steps` make the `remedy`."""

    code = "out_of_memory"

    def __init__(self, shortage: Shortage) -> None:
        self.shortage, self.steps = shortage, advice(shortage)
        remedy = "\n".join(f"{number}. {step}" for number, step in enumerate(self.steps, 1))
        super().__init__(_sentence(shortage), remedy)
        self.add_note(shortage.text)


def _sentence(shortage: Shortage) -> str:
    if shortage.tried is None or shortage.free is None:
        return f"The device's memory ran out, and smaller plans did not help ({shortage.text})."
    tried, free, idle = (gb_text(count) for count in (shortage.tried, shortage.free, shortage.idle or 0))
    found = {
        "shortage": f"it needed {tried} GB more where {free} GB were free",
        "fragmentation": f"it needed {tried} GB in one piece; {idle} GB were unused, but fragmented",
        "driver": f"the driver refused {tried} GB although {free} GB were free",
    }[shortage.kind]
    return f"The device's memory ran out, and smaller plans did not help: {found}."
