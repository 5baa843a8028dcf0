"""The table of what the benchmark measures. It needs no torch, so a program can list it at once."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from diffusers_helper.planning.profiles import Kind
from diffusers_helper.planning.variables import FIND_MODE_VARIABLE
from diffusers_helper.units import GB

Level = Literal["quick", "standard", "full"]
LEVELS: tuple[Level, ...] = get_args(Level)
QUICK_SECONDS = 170
PART_SECONDS: dict[Level, int] = {"quick": 60, "standard": 600, "full": 600}
# FramePack's transformer with one block of each kind, the sample for the disk, and all 60 blocks.
_ONE_OF_EACH = 1_800_000_000
_WHOLE = 25_800_000_000
_CARDS: tuple[Kind, ...] = ("rocm", "cuda")


@dataclass(frozen=True, slots=True)
class BenchPart:
    """One part of the benchmark, which runs in a process of its own.

    Attributes:
        function: The module in `diffusers_helper/bench/` and the function there, which takes a `Context`
            and yields a `Case` (`context.py`) for each measurement.
        level: The first level that includes it.
        disk_bytes, ram_bytes, device_bytes: What must be free, and the memory of the card, if there is one.
    """

    title: str
    function: str
    level: Level = "quick"
    kinds: tuple[Kind, ...] = ("rocm", "cuda", "cpu")
    disk_bytes: int = 0
    ram_bytes: int = 2 * GB
    device_bytes: int = 0
    environ: Mapping[str, str] = field(default_factory=dict[str, str])


PARTS = {
    "memory": BenchPart("Main memory and disk", "kernels:host", disk_bytes=GB),
    "bus": BenchPart("Copies between main memory and card", "kernels:bus", kinds=_CARDS),
    "step": BenchPart(
        "A step of FramePack's transformer, resident and streamed", "steps:steps",
        disk_bytes=_ONE_OF_EACH + GB, ram_bytes=6 * GB,
    ),
    "job": BenchPart("A whole section, from picture and prompt to video", "sections:job"),
    "products": BenchPart("Matrix products of FramePack's layers", "kernels:products"),
    "attention": BenchPart("Attention kernels at FramePack's size", "kernels:attention"),
    "convolutions": BenchPart("Ways to compute the VAE's convolutions", "kernels:convolutions"),
    "vae": BenchPart("A small picture and video by each plan of the VAE", "sections:small_plans"),
    "convolutions-normal": BenchPart(
        "The same after MIOpen's search (find mode NORMAL)", "kernels:convolutions", "standard", ("rocm",),
        environ={FIND_MODE_VARIABLE: "NORMAL"},
    ),
    "section": BenchPart(
        "Encoding and decoding of a section by each plan of the VAE", "sections:plans", "standard"
    ),
    "framepack": BenchPart(
        "A whole section of FramePack at its full size", "sections:framepack", "standard", _CARDS,
        disk_bytes=5 * GB, ram_bytes=12 * GB, device_bytes=6 * GB,
    ),
    "step-disk": BenchPart(
        "A step with all weights read from the disk", "steps:from_disk", "full",
        disk_bytes=_WHOLE + GB, ram_bytes=6 * GB,
    ),
}  # fmt: skip


def parts_of(level: Level) -> list[str]:
    return [name for name, part in PARTS.items() if LEVELS.index(part.level) <= LEVELS.index(level)]
