"""The passes of a VAE, whole or in tiles, and the counter of the pieces that they consist of.

The VAE may be any of `vae.families`, on any device. Its own settings for tiles are not used; the tiles are
cut here. A finished piece leaves the device at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from diffusers_helper.cancel import CancelToken
from diffusers_helper.errors import LongtakeError
from diffusers_helper.memory.accounting import to_host
from diffusers_helper.planning.vae import Tiles
from diffusers_helper.vae.families import VaeFamily
from diffusers_helper.vae.tiles import Grid, Mosaic

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
Progress = Callable[[int, int], None]
"""A function that is called with the numbers of finished and of all pieces. If the work is repeated, the
first number begins again at 1."""


class NotFinite(LongtakeError):
    """The error for values that are not finite, which an overflow of fp16 can cause."""

    code = "not_finite"

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__(
            "The VAE gives values that are not finite numbers.",
            "In fp32 this means that latents or weights are damaged: download the model's files again.",
        )
        self.dtype = dtype


class Pieces:
    """The counter of the pieces of one task, which also checks for a cancel after each of them."""

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
        """Count a finished piece, and return it on the host.

        Raises:
            NotFinite: If the piece has values that are not finite.
            GenerationCancelled: If the task was cancelled.
        """
        piece = to_host(piece)
        if not bool(piece.isfinite().all()):
            raise NotFinite(piece.dtype)
        self._done += 1
        self._progress(self._done, self.total)
        self._cancel.check()
        if self._frequency and self._done % self._frequency == 0:
            self._cleanup()
        return piece


def decode_pass(
    family: VaeFamily, latents: Tensor, tiles: Tiles, pieces: Pieces, *, chunk: int = 1
) -> Tensor:
    """Decode latents (B, C, T, h, w) in one pass over time, or in one such pass per tile.

    Args:
        latents: Latents on any device, of any type.
        chunk: In a stream, the number of latent frames whose frames leave the device together.

    Returns:
        The frames (B, 3, F, H, W) in the VAE's type, on the host.
    """
    num_frames = family.stride * (latents.shape[2] - 1) + 1
    grid = _grid(latents.shape[-2:], tiles, family.shrink)
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
            del frames  # otherwise they stay on the device while the next tile is decoded
    return mosaic.finish()


def encode_pass(family: VaeFamily, frames: Tensor, tiles: Tiles, pieces: Pieces) -> Tensor:
    """Encode frames (B, 3, F, H, W) to moments (B, 2 C, T, h, w) in one pass, or in one per tile."""
    grid = _grid([side // family.shrink for side in frames.shape[-2:]], tiles, family.shrink)
    mosaic = Mosaic(grid, 1, (frames.shape[2] - 1) // family.stride + 1)
    for place in grid.places:
        part = grid.cut_out(frames, place, family.shrink)
        mosaic.add(place, 0, pieces.take(family.encode(part)))
    return mosaic.finish()


def count_tiles(sides: Sequence[int], tiles: Tiles, shrink: int) -> int:
    """Return the number of tiles into which latents of this height and width are cut."""
    return len(_grid(sides, tiles, shrink).places)


def _grid(sides: Sequence[int], tiles: Tiles, shrink: int) -> Grid:
    return Grid.cut(sides[0], sides[1], tiles.side // shrink, tiles.overlap // shrink)
