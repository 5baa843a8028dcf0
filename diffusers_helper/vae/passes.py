"""Video through a VAE that belongs to somebody else, within the memory that is free, frame for frame.

The VAE may be any of `vae.families`, on any device. It is never converted or set in another way: for another
precision a copy is made, and tiles are cut here. What is finished leaves the device at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from diffusers_helper.cancel import CancelToken
from diffusers_helper.errors import LongtakeError
from diffusers_helper.memory.accounting import to_host
from diffusers_helper.vae.families import Family
from diffusers_helper.vae.plan import Tiles
from diffusers_helper.vae.tiles import Grid, Mosaic

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
Progress = Callable[[int, int], None]
"""Told how many pieces of how many are done; from 1 again where it had to be begun anew."""


class NotFinite(LongtakeError):
    """A piece has values that are not finite, as fp16 gives where it overflows."""

    def __init__(self) -> None:
        super().__init__(
            "The VAE gives values that are not finite numbers.",
            "In fp32 that means latents or weights that are damaged: get the model's files anew.",
        )


class Pieces:
    """Counts the pieces of one task, and is where a cancel is noticed between two of them."""

    def __init__(
        self,
        progress: Progress = lambda done, total: None,
        cancel: CancelToken | None = None,
        cleanup: Callable[[], None] = lambda: None,
        cleanup_frequency: int = 0,
    ) -> None:
        self._progress, self._cancel, self._cleanup = progress, cancel or CancelToken(), cleanup
        self._frequency, self._done, self.total = cleanup_frequency, 0, 0

    def take(self, piece: Tensor) -> Tensor:
        """A finished piece, on the host.

        Raises:
            NotFinite: if it has overflowed.
            GenerationCancelled: if the task was cancelled.
        """
        piece = to_host(piece)
        if not bool(piece.isfinite().all()):
            raise NotFinite
        self._done += 1
        self._progress(self._done, self.total)
        self._cancel.check()
        if self._frequency and self._done % self._frequency == 0:
            self._cleanup()
        return piece


def decode_pass(family: Family, latents: Tensor, tiles: Tiles, pieces: Pieces, *, chunk: int = 1) -> Tensor:
    """Frames (B, 3, 4 T - 3, H, W) of latents (B, C, T, h, w) in one pass over time, or one for each tile.

    Args:
        chunk: latent frames of a stream that leave the device together.

    Returns: in the VAE's type, on the host.
    """
    num_frames, grid = 4 * latents.shape[2] - 3, grid_of(latents.shape[-2:], tiles, family.shrink)
    mosaic = Mosaic(grid, family.shrink, num_frames)
    for place in grid.places:
        begin, waiting = 0, list[Tensor]()
        for frames in family.decode(grid.cut_out(latents, place)):
            waiting.append(frames)
            waiting_frames = sum(part.shape[2] for part in waiting)
            if len(waiting) == chunk or begin + waiting_frames == num_frames:
                piece = pieces.take(waiting[0] if len(waiting) == 1 else torch.cat(waiting, dim=2))
                waiting.clear()
                mosaic.add(place, begin, piece)
                begin += waiting_frames
            del frames  # else it stays on the device while the next tile is decoded
    return mosaic.finish()


def encode_pass(family: Family, frames: Tensor, tiles: Tiles, pieces: Pieces) -> Tensor:
    """Moments (B, 2 C, T, h, w) of frames (B, 3, 4 T - 3, H, W), as `decode_pass`."""
    grid = grid_of([side // family.shrink for side in frames.shape[-2:]], tiles, family.shrink)
    mosaic = Mosaic(grid, 1, (frames.shape[2] + 3) // 4)
    for place in grid.places:
        part = grid.cut_out(frames, place, family.shrink)
        mosaic.add(place, 0, pieces.take(family.encode(part)))
    return mosaic.finish()


def grid_of(sides: Sequence[int], tiles: Tiles, shrink: int) -> Grid:
    """How latents of this height and width are cut."""
    return Grid.cut(sides[0], sides[1], tiles.side // shrink, tiles.overlap // shrink)


def window_starts(num_latents: int, chunk: int) -> range:
    """First latent frames of windows that move on by `chunk`. One that would add no frame is left out.

    Each has `chunk + 2` latent frames, or what is left: the first leads in, the last is shared with the next.
    """
    if num_latents <= chunk + 1:
        return range(1)
    return range(0, num_latents - 1, chunk)
