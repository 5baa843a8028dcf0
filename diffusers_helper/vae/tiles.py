"""Equal tiles that overlap, into which a picture is cut, and the mosaic of their frames.

All tiles of a video have one shape, so that a driver searches for its kernels once. Where the last tile would
reach over the edge, all tiles overlap more instead.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from diffusers_helper.memory.accounting import to_host


@dataclass(frozen=True, slots=True)
class Axis:
    """The tiles along one side.

    Attributes:
        length: The length of the side.
        tile: The length of each tile.
        starts: The starts of the tiles, ascending; the first tile starts at 0, the last ends at `length`.
    """

    length: int
    tile: int
    starts: tuple[int, ...]

    @classmethod
    def cut(cls, length: int, tile: int, overlap: int) -> Axis:
        """Return the fewest tiles that overlap by at least `overlap`, evenly spread.

        Raises:
            ValueError: Unless 0 <= overlap < tile.
        """
        if not 0 <= overlap < tile:
            raise ValueError(f"overlap is {overlap}; expected 0 to {tile - 1}.")
        if length <= tile:
            return cls(length, length, (0,))
        gaps = -(-(length - tile) // (tile - overlap))
        return cls(length, tile, tuple(round(i * (length - tile) / gaps) for i in range(gaps + 1)))

    def weights(self, scale: int) -> list[Tensor]:
        """Return each tile's weight at each of its places, `scale` of them for one of the side; fp32.

        Where two tiles overlap, the weights pass linearly from one to the other. At every place they add up
        to 1.
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
    """Return a ramp that rises from nearly 0 to nearly 1 over its first `shared` places."""
    rise = (torch.arange(shared) + 0.5) / max(shared, 1)
    return torch.cat([ramp[:shared] * rise, ramp[shared:]])


@dataclass(frozen=True, slots=True)
class Grid:
    """The tiles of a picture, in latents."""

    rows: Axis
    columns: Axis

    @classmethod
    def cut(cls, height: int, width: int, tile: int, overlap: int) -> Grid:
        """Return tiles of `tile` x `tile`, smaller only where the picture is; 0 for none."""
        whole = max(height, width)
        return cls(*(Axis.cut(side, tile or whole, overlap if tile else 0) for side in (height, width)))

    @property
    def places(self) -> list[tuple[int, int]]:
        """Return the rows and columns of all tiles, row by row."""
        columns = range(len(self.columns.starts))
        return [(row, column) for row in range(len(self.rows.starts)) for column in columns]

    def cut_out(self, source: Tensor, place: tuple[int, int], scale: int = 1) -> Tensor:
        """Return a view of the tile of (..., height, width), `scale` times as many of both as latents."""
        row, column = place
        top, left = self.rows.starts[row] * scale, self.columns.starts[column] * scale
        return source[..., top : top + self.rows.tile * scale, left : left + self.columns.tile * scale]


class Mosaic:
    """The frames in main memory to which tiles are added as they are finished."""

    def __init__(self, grid: Grid, scale: int, num_frames: int) -> None:
        """Begin without a tile, for frames (..., num_frames, height, width), `scale` places per latent."""
        self._grid, self._scale, self._num_frames = grid, scale, num_frames
        self._is_whole = len(grid.places) == 1
        self._parts: list[Tensor] = []
        self._sum: Tensor | None = None
        self._dtype = torch.float32
        if not self._is_whole:
            rows, columns = grid.rows.weights(scale), grid.columns.weights(scale)
            self._rows, self._columns = [to_host(w) for w in rows], [to_host(w) for w in columns]

    def add(self, place: tuple[int, int], begin: int, frames: Tensor) -> None:
        """Add one tile's frames (B, C, F, height, width), which are on the host, from `begin` on."""
        if self._is_whole:
            self._parts.append(frames)
            return
        if self._sum is None:
            height, width = (axis.length * self._scale for axis in (self._grid.rows, self._grid.columns))
            shape = (*frames.shape[:2], self._num_frames, height, width)
            # numpy adds them, since an account counts what torch makes from nothing as the device's.
            self._sum = torch.from_numpy(np.zeros(shape, dtype=np.float32))
            self._dtype = frames.dtype
        row, column = place
        weight = self._rows[row][:, None] * self._columns[column]
        target = self._grid.cut_out(self._sum[:, :, begin : begin + frames.shape[2]], place, self._scale)
        target += frames.float() * weight

    def finish(self) -> Tensor:
        """Return all tiles together, in their type. A single tile is not rounded."""
        if self._sum is not None:
            return self._sum.to(self._dtype)
        return self._parts[0] if len(self._parts) == 1 else torch.cat(self._parts, dim=2)


def join_windows(windows: list[Tensor], stride: int, overlap: int) -> Tensor:
    """Join windows of time (B, C, F, H, W); over `overlap` frames each passes into the next.

    diffusers' `AutoencoderKLHunyuanVideo` joins them in this way. All but the first leave out their first
    frame, as it stands alone for a latent frame that stands for four elsewhere.
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
