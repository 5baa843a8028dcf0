"""Errors that say that the device is out of memory, classified by their figures, and the remedies."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from diffusers_helper.errors import LongtakeError
from diffusers_helper.library_errors import memory_sizes, trouble_of
from diffusers_helper.units import gb_text

Kind = Literal["exhausted", "fragmentation", "driver", "unknown"]

# The share of the card's memory in use by others from which on the remedies mention them.
_MUCH = 0.1


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether the device's memory ran out; for main memory, a smaller plan cannot help."""
    return trouble_of(error) == "device_memory"


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """The first line of an error's text, and the figures in it in bytes; None for those that are not there.

    The driver counts what is free. This process holds `allocated` in tensors, and `idle` without using it.
    """

    text: str
    tried: int | None = None
    capacity: int | None = None
    free: int | None = None
    allocated: int | None = None
    idle: int | None = None

    @property
    def kind(self) -> Kind:
        """The cause of the failed allocation.

        Memory is exhausted if more was requested than is free and idle together. If the free memory alone
        would suffice, the driver withholds it. Otherwise the memory is fragmented. HSA's texts have no
        figures.
        """
        if self.tried is None or self.free is None:
            return "exhausted" if "out of memory" in self.text.lower() else "unknown"
        idle = self.idle or 0
        if self.tried > self.free + idle:
            return "exhausted"
        return "driver" if self.tried <= self.free else "fragmentation"

    @property
    def outside(self) -> int | None:
        if self.capacity is None or self.free is None or self.allocated is None:
            return None
        return max(0, self.capacity - self.free - self.allocated - (self.idle or 0))


def read_out_of_memory(text: str) -> OutOfMemory:
    return OutOfMemory((text.strip().splitlines() or [""])[0][:300], **memory_sizes(text))


Remedy = Literal[
    "limits", "resolution", "preserved", "allocator", "unload", "close", "restart", "smaller", "elsewhere",
    "versions",
]  # fmt: skip
"""What a user can try. Each interface has its own sentence for each remedy."""

LONGTAKE: dict[Remedy, str] = {
    "limits": "Check the driver's limits: the size of GTT (ttm.pages_limit) and of the BIOS carve-out, free "
    "system memory and swap, and the limit on locked memory (ulimit -l). `doctor` shows all but the last.",
    "resolution": "Choose a smaller `resolution`, or leave `vae_tile` to the plan. A shorter video does not "
    "help, because sections are made one after the other.",
    "preserved": "Raise `preserved_gb` by 1 or 2 (on a card of 24 GB, to 19 or 20) to keep fewer weights on "
    "the device.",
    "allocator": "Leave the allocator's setting as it is; `doctor` shows the one in force.",
    "unload": "Check in the log that each model is unloaded before the next one is loaded.",
    "close": "Close other programs that use the card.",
    "restart": "Restart Longtake: a new process starts with unfragmented memory.",
    "smaller": "Use a smaller model, or 8-bit weights: set `weight_dtype` to int8.",
    "elsewhere": "Check that no other program, and no second Longtake, holds the same model on the card.",
    "versions": "Check that PyTorch and ROCm are up to date.",
}
"""The sentences of the command line and the page, which replace the names in back quotes by their own."""

# The guides for Radeon cards have two lists, of five and of seven steps. Each guide here ends with one of
# them.
_FIVE: tuple[Remedy, ...] = ("close", "restart", "smaller", "elsewhere", "versions")
_SEVEN: tuple[Remedy, ...] = ("restart", "close", "smaller", "unload", "elsewhere", "resolution", "versions")
_GUIDES: dict[Kind, tuple[Remedy, ...]] = {
    "exhausted": ("resolution", "preserved", *_FIVE),
    "fragmentation": ("restart", "allocator", "preserved", *_SEVEN),
    "driver": ("preserved", "allocator", *_SEVEN),
    "unknown": ("preserved", "allocator", "unload", "resolution", *_FIVE),
}


def sentences_for(
    details: OutOfMemory, *, is_apu: bool = False, sentences: Mapping[Remedy, str] = LONGTAKE
) -> tuple[str, ...]:
    remedies = _GUIDES[details.kind]
    if is_apu and details.kind in ("driver", "unknown"):
        remedies = ("limits", *remedies)
    words = dict(sentences)
    outside = details.outside
    if outside is not None and details.capacity and outside > _MUCH * details.capacity:
        close = sentences["close"].rstrip(".")
        words["close"] = f"{close}: {gb_text(outside)} GB are held outside this program."
        position = 0 if details.kind == "exhausted" else 1
        remedies = (*remedies[:position], "close", *remedies[position:])
    return tuple(words[remedy] for remedy in dict.fromkeys(remedies))


class OutOfDeviceMemory(LongtakeError):
    """The device is out of memory, and no smaller plan is left. Its remedy is a numbered list."""

    code = "out_of_memory"

    def __init__(
        self,
        details: OutOfMemory,
        *,
        smaller_plans: int = 0,
        is_apu: bool = False,
        sentences: Mapping[Remedy, str] = LONGTAKE,
    ) -> None:
        self.details = details
        self.steps = sentences_for(details, is_apu=is_apu, sentences=sentences)
        remedy = "\n".join(f"{number}. {step}" for number, step in enumerate(self.steps, 1))
        plans = {0: "there is no smaller plan to try", 1: "a smaller plan did not help"}
        plan = plans.get(smaller_plans, "smaller plans did not help")
        cause = details.text
        if details.tried is not None and details.free is not None:
            tried, free, idle = map(gb_text, (details.tried, details.free, details.idle or 0))
            cause = {
                "exhausted": f"it needed {tried} GB more, but only {free} GB were free",
                "fragmentation": f"it needed {tried} GB in one piece; {idle} GB were unused but fragmented",
                "driver": f"the driver refused {tried} GB although {free} GB were free",
            }.get(details.kind, cause)
        super().__init__(f"The device's memory ran out, and {plan}: {cause.rstrip('.')}.", remedy)
        self.add_note(details.text)
