"""The table of the benchmark's parts. It needs no torch, so a program can list and skip them at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from diffusers_helper.planning.profiles import Kind
from diffusers_helper.planning.variables import FIND_MODE_VARIABLE
from diffusers_helper.units import GB

Level = Literal["quick", "standard", "full"]
LEVELS: tuple[Level, ...] = get_args(Level)
QUICK_SECONDS, QUICK_BYTES = 170, 2 * GB
"""The limits of all parts of the level "quick" together: time, and bytes written."""
PART_SECONDS: dict[Level, int] = {"quick": 60, "standard": 600, "full": 600}
"""The time limit of each part of a level."""
# FramePack's transformer with one block of each kind, the sample for the disk, and all 60 blocks.
_ONE_OF_EACH, _WHOLE = 1_800_000_000, 25_800_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchPart:
    """One part of the benchmark, which runs in a process of its own.

    Attributes:
        function: The module in `diffusers_helper/bench/` and the function there, which takes a `Context`
            and yields a `Case` (`context.py`) for each measurement.
        level: The first level that includes it.
        kinds: The platforms on which it makes sense.
        disk_bytes, ram_bytes, device_bytes: What must be free, and the memory of the card, if there is one.
    """

    name: str
    title: str
    function: str
    level: Level = "quick"
    kinds: tuple[Kind, ...] = ("rocm", "cuda", "cpu")
    disk_bytes: int = 0
    ram_bytes: int = 2 * GB
    device_bytes: int = 0
    environ: Mapping[str, str] = field(default_factory=dict[str, str])


_CARDS: tuple[Kind, ...] = ("rocm", "cuda")

PARTS: dict[str, BenchPart] = {
    part.name: part
    for part in (
        BenchPart(
            name="memory", title="Main memory and disk", function="kernels:host",
            disk_bytes=GB,
        ),
        BenchPart(
            name="bus", title="Copies between main memory and card", function="kernels:bus",
            kinds=_CARDS,
        ),
        BenchPart(
            name="step", title="A step of FramePack's transformer, resident and streamed",
            function="steps:steps",
            disk_bytes=_ONE_OF_EACH + GB, ram_bytes=6 * GB,
        ),
        BenchPart(
            name="job", title="A whole section, from picture and prompt to video", function="sections:job",
        ),
        BenchPart(
            name="products", title="Matrix products of FramePack's layers", function="kernels:products",
        ),
        BenchPart(
            name="attention", title="Attention kernels at FramePack's size", function="kernels:attention",
        ),
        BenchPart(
            name="convolutions", title="Ways to compute the VAE's convolutions",
            function="kernels:convolutions",
        ),
        BenchPart(
            name="vae", title="Decoding by diffusers and by the VAE engine", function="vae_cases:decodes",
        ),
        BenchPart(
            name="convolutions-normal", title="The same after MIOpen's search (find mode NORMAL)",
            function="kernels:convolutions", level="standard", kinds=("rocm",),
            environ={FIND_MODE_VARIABLE: "NORMAL"},
        ),
        BenchPart(
            name="section", title="Encoding and decoding of a section by each plan of the VAE",
            function="sections:plans", level="standard",
        ),
        BenchPart(
            name="framepack", title="A whole section of FramePack at its full size",
            function="sections:framepack", level="standard",
            kinds=_CARDS, disk_bytes=5 * GB, ram_bytes=12 * GB, device_bytes=6 * GB,
        ),
        BenchPart(
            name="step-disk", title="A step with all weights read from the disk", function="steps:from_disk",
            level="full", disk_bytes=_WHOLE + GB, ram_bytes=6 * GB,
        ),
    )
}  # fmt: skip


def parts_of(level: Level) -> list[BenchPart]:
    """Return the parts that a level includes, in the order in which they run."""
    return [part for part in PARTS.values() if LEVELS.index(part.level) <= LEVELS.index(level)]
