"""The plans for encoding or decoding pictures or a video with a VAE in the available memory.

A VAE that is causal and keeps what it needs of the past (Wan) works as a stream, one latent frame at a time,
with the bits of one pass. Any other one (HunyuanVideo) works in one pass, or in windows that overlap in time,
as in diffusers and FramePack. Both work in tiles that overlap in space if memory demands it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from diffusers_helper.families.packing import DEFAULT_CHUNK
from diffusers_helper.planning.estimates import TILES
from diffusers_helper.planning.vae_estimates import Tiles, VaeNeeds

Task = Literal["decode", "encode"]
Time = Literal["whole", "stream", "windows"]
Precision = Literal["auto", "fp32", "fp16", "bf16"]
CHUNKS = (1, 2, 4, 8)


@dataclass(frozen=True, slots=True)
class VaeSettings:
    """The user's settings for the VAE; None and "auto" leave the choice to the plan.

    Attributes:
        chunk: One of `CHUNKS`. For a stream, the number of latent frames whose frames leave the device
            together, which does not change the result. Otherwise the number of latent frames by which
            windows advance; None means no windows if possible, and the VAE's own number of 3 otherwise.
        tile_px: The side of the tiles in pixels, a multiple of 32; 0 for none.
        largest_px: The side of the largest tiles to try if `tile_px` is None; None allows the whole picture.
        fallback_px: The side of the largest tiles to try if the whole picture does not fit; None for any.
        overlap: The least share of a tile, 0 to 0.5, that it has in common with its neighbour.
        precision: The type of the computation; "auto" is the type of the weights. Normalisation always
            computes in fp32, and if the result is not finite, everything is computed again in fp32.
    """

    chunk: int | None = None
    tile_px: int | None = None
    largest_px: int | None = None
    fallback_px: int | None = None
    overlap: float = 0.25
    precision: Precision = "auto"
    memory_threshold: float = 0.8
    cleanup_frequency: int = 0
    batch: bool = False


@dataclass(frozen=True, slots=True)
class Video:
    latents: int
    height: int
    width: int


@dataclass(frozen=True, slots=True)
class VaePlan:
    """A plan to encode or decode a video.

    Attributes:
        chunk: See `VaeSettings`; 0 for all latent frames.
        working_bytes: For inputs, activations and outputs.
        batch: The number of items of a batch that are decoded together.
    """

    task: Task
    time: Time
    chunk: int
    tiles: Tiles
    working_bytes: int
    reason: str
    batch: int = 1

    @property
    def is_exact(self) -> bool:
        """True if it gives what one pass over everything would give in the same number format."""
        return not self.tiles.side and self.time != "windows"


def vae_plans(needs: VaeNeeds, video: Video, task: Task, settings: VaeSettings) -> tuple[VaePlan, ...]:
    times: tuple[Time, ...] = ("stream",) if needs.has_stream else ("whole", "windows")
    if not needs.has_stream and video.latents <= (settings.chunk or DEFAULT_CHUNK) + 1:
        times = ("whole",)
    elif not needs.has_stream and settings.chunk:
        times = ("windows",)
    tiles = _tiles(video, settings)
    return tuple(_plan(needs, video, task, time, tile, settings) for time in times for tile in tiles)


def plan_vae(plans: Sequence[VaePlan], free_bytes: int, settings: VaeSettings) -> tuple[VaePlan, ...]:
    """Choose the first plan that fits, or the smallest, followed by the smaller ones to try after it."""
    usable = int(free_bytes * settings.memory_threshold)
    fitting = [plan for plan in plans if plan.working_bytes <= usable]
    fitting = fitting or [min(plans, key=lambda plan: plan.working_bytes)]
    first = fitting[0]
    if settings.batch and first.time == "stream" and not first.tiles.side:
        fitting[0] = replace(first, batch=max(1, usable // max(1, first.working_bytes)))
    return tuple(plan for plan in fitting if plan.working_bytes <= first.working_bytes)


def _tiles(video: Video, settings: VaeSettings) -> tuple[int, ...]:
    """List the sides of tiles to try; 0 means no tiles, and replaces sides that cover the picture."""
    side = max(video.height, video.width)
    if settings.tile_px is not None:
        return (settings.tile_px if settings.tile_px < side else 0,)
    if settings.largest_px is not None and settings.largest_px < side:
        return (settings.largest_px, *(tile for tile in TILES if tile < settings.largest_px))
    largest = settings.fallback_px or side
    first = (largest,) if largest < side and largest not in TILES else ()
    return (0, *first, *(tile for tile in TILES if tile < side and tile <= largest))


def _plan(needs: VaeNeeds, video: Video, task: Task, time: Time, tile: int, settings: VaeSettings) -> VaePlan:
    estimate = needs.decode_bytes if task == "decode" else needs.encode_bytes
    tiles = Tiles.of(tile, settings.overlap)
    chunk = 0 if time == "whole" else settings.chunk or (1 if time == "stream" else DEFAULT_CHUNK)
    # A window has two latent frames more than the chunk: a lead-in, and one shared with the next window.
    num_latents = video.latents if time == "whole" else min(video.latents, chunk + 2 * (time == "windows"))
    working_bytes = estimate(num_latents, *tiles.fitted(video.height, video.width), video.latents)
    description = {
        "whole": "All frames in one pass",
        "stream": "One latent frame after the other" if video.latents > 1 else "Each picture by itself",
        "windows": "In windows of time",
    }[time]
    description += f", in tiles of {tile} pixels" if tile else ""
    is_rounded = settings.precision in ("fp16", "bf16")
    description += f", rounded as {settings.precision}" if is_rounded else ""
    plan = VaePlan(task, time, chunk, tiles, working_bytes, description)
    if not plan.is_exact:
        description += ": approximate"
    elif not is_rounded:
        description += ": exact"
    return replace(plan, reason=f"{description}.")
