"""The passes of a VAE, whole or in tiles, and the counter of the pieces that they consist of.

The VAE may be any of `vae.families`, on any device. Its own settings for tiles are not used. A finished piece
leaves the device at once. The tiles are equal and overlap, and their frames are blended in a mosaic. All
tiles of a video have one shape, so the driver searches for kernels only once. If the last tile would reach
beyond the edge, all tiles overlap more instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from diffusers_helper.cancel import CancelToken
from diffusers_helper.errors import LongtakeError
from diffusers_helper.memory.accounting import to_host
from diffusers_helper.planning.vae import Tiles
from diffusers_helper.vae.families import VaeFamily


@dataclass(frozen=True, slots=True)
class Axis:
    """The tiles along one side of the picture: the first starts at 0, and the last ends at `length`."""

    length: int
    tile: int
    starts: tuple[int, ...]

    @classmethod
    def cut(cls, length: int, tile: int, overlap: int) -> Axis:
        """Return the fewest tiles that overlap by at least `overlap` < `tile`, evenly distributed."""
        if length <= tile:
            return cls(length, length, (0,))
        gaps = -(-(length - tile) // (tile - overlap))
        return cls(length, tile, tuple(round(i * (length - tile) / gaps) for i in range(gaps + 1)))

    def weights(self, scale: int) -> list[Tensor]:
        """Return the blending weights of each tile, in fp32, at `scale` places per unit of length.

        They change linearly where two tiles overlap, and add up to 1 everywhere.
        """
        size = self.tile * scale
        raw: list[Tensor] = []
        for i, start in enumerate(self.starts):
            ramp = torch.ones(size)
            if i > 0:
                ramp = _rise(ramp, (self.starts[i - 1] + self.tile - start) * scale)
            if i + 1 < len(self.starts):
                ramp = _rise(ramp.flip(0), (start + self.tile - self.starts[i + 1]) * scale).flip(0)
            raw.append(ramp)
        total = torch.zeros(self.length * scale)
        for start, ramp in zip(self.starts, raw, strict=True):
            total[start * scale : start * scale + size] += ramp
        return [
            ramp / total[start * scale : start * scale + size]
            for start, ramp in zip(self.starts, raw, strict=True)
        ]


def _rise(ramp: Tensor, shared: int) -> Tensor:
    """Return the weights, multiplied by a rise from nearly 0 to nearly 1 over the first `shared` places."""
    rise = (torch.arange(shared) + 0.5) / max(shared, 1)
    return torch.cat([ramp[:shared] * rise, ramp[shared:]])


@dataclass(frozen=True, slots=True)
class Grid:
    """The tiles of a picture, measured in latents."""

    rows: Axis
    columns: Axis

    @classmethod
    def cut(cls, sides: Sequence[int], tiles: Tiles, shrink: int) -> Grid:
        """Return the tiles of latents of this height and width, at `shrink` pixels per latent."""
        tile, overlap = tiles.side // shrink or max(sides), tiles.overlap // shrink
        return cls(*(Axis.cut(side, tile, overlap) for side in sides))

    @property
    def places(self) -> list[tuple[int, int]]:
        columns = range(len(self.columns.starts))
        return [(row, column) for row in range(len(self.rows.starts)) for column in columns]

    def cut_out(self, source: Tensor, place: tuple[int, int], scale: int = 1) -> Tensor:
        """Return a view of one tile of a tensor (..., height, width) with `scale` values per latent."""
        row, column = place
        top, left = self.rows.starts[row] * scale, self.columns.starts[column] * scale
        return source[..., top : top + self.rows.tile * scale, left : left + self.columns.tile * scale]


class Mosaic:
    """The frames in main memory into which finished tiles are blended."""

    def __init__(self, grid: Grid, scale: int, num_frames: int) -> None:
        self._grid, self._scale, self._num_frames = grid, scale, num_frames
        self._is_whole = len(grid.places) == 1
        self._parts: list[Tensor] = []
        self._sum: Tensor | None = None
        self._dtype = torch.float32
        if not self._is_whole:
            rows, columns = grid.rows.weights(scale), grid.columns.weights(scale)
            self._rows, self._columns = [to_host(w) for w in rows], [to_host(w) for w in columns]

    def add(self, place: tuple[int, int], begin: int, frames: Tensor) -> None:
        """Add frames (B, C, F, height, width) of a tile, on the host, from frame number `begin` on."""
        if self._is_whole:
            self._parts.append(frames)
            return
        if self._sum is None:
            height, width = (axis.length * self._scale for axis in (self._grid.rows, self._grid.columns))
            shape = (*frames.shape[:2], self._num_frames, height, width)
            # numpy allocates the sum, since an account would count a new tensor of torch as on the device.
            self._sum = torch.from_numpy(np.zeros(shape, dtype=np.float32))
            self._dtype = frames.dtype
        row, column = place
        weight = self._rows[row][:, None] * self._columns[column]
        target = self._grid.cut_out(self._sum[:, :, begin : begin + frames.shape[2]], place, self._scale)
        target += frames.float() * weight

    def finish(self) -> Tensor:
        """Return the assembled frames in the tiles' dtype. A single tile is returned without the fp32 sum."""
        if self._sum is not None:
            return self._sum.to(self._dtype)
        return self._parts[0] if len(self._parts) == 1 else torch.cat(self._parts, dim=2)


def join_windows(windows: list[Tensor], stride: int, overlap: int) -> Tensor:
    """Join temporal windows (B, C, F, H, W), blending each into the next over `overlap` frames.

    diffusers' `AutoencoderKLHunyuanVideo` joins them in the same way. All windows but the first leave out
    their first frame, since the first latent frame of a window decodes to one frame instead of four.
    """
    before, *rest = windows
    parts = [before[:, :, : stride + 1]]
    for window in rest:
        window = window[:, :, 1:].clone()
        extent = min(before.shape[2], window.shape[2], overlap)
        for k in range(extent):
            share = k / extent
            window[:, :, k] = before[:, :, k - extent] * (1 - share) + window[:, :, k] * share
        parts.append(window[:, :, :stride])
        before = window
    return torch.cat(parts, dim=2)


DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
PRECISIONS = {dtype: name for name, dtype in DTYPES.items()}
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
        """Count a finished piece, and return it on the host, or raise NotFinite or GenerationCancelled."""
        piece = to_host(piece)
        if not bool(piece.sum(dtype=torch.float32).isfinite()):  # one pass, where each value takes four
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

    In a stream, the frames of `chunk` latent frames leave the device together.

    Returns:
        The frames (B, 3, F, H, W) in the VAE's type, on the host.
    """
    num_frames = family.stride * (latents.shape[2] - 1) + 1
    grid = Grid.cut(latents.shape[-2:], tiles, family.shrink)
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
    grid = Grid.cut([side // family.shrink for side in frames.shape[-2:]], tiles, family.shrink)
    mosaic = Mosaic(grid, 1, (frames.shape[2] - 1) // family.stride + 1)
    for place in grid.places:
        part = grid.cut_out(frames, place, family.shrink)
        mosaic.add(place, 0, pieces.take(family.encode(part)))
    return mosaic.finish()
