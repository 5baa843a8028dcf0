"""The passes of a VAE, whole or in tiles, and the counter of the pieces that they consist of.

A finished piece leaves the device at once. Tiles overlap, and their frames are blended in a mosaic. All tiles
of a video have one shape, so the driver searches for kernels only once.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Self

import numpy as np
import torch
from torch import Tensor

from diffusers_helper.cancel import CancelToken
from diffusers_helper.errors import LongtakeError
from diffusers_helper.memory.accounting import to_host
from diffusers_helper.memory.device import Repeat
from diffusers_helper.planning.vae_estimates import Tiles, even_tiles
from diffusers_helper.vae.families import VaeFamily


@dataclass(frozen=True, slots=True)
class Axis:
    """The tiles along one side of the picture: the first starts at 0, and the last ends at `length`."""

    length: int
    tile_size: int
    starts: tuple[int, ...]

    @classmethod
    def cut(cls, length: int, tile_size: int, overlap: int) -> Self:
        """Cut into `even_tiles`, evenly distributed."""
        count, size = even_tiles(length, tile_size, overlap)
        gaps = max(1, count - 1)
        return cls(length, size, tuple(round(i * (length - size) / gaps) for i in range(count)))

    def weights(self, scale: int) -> list[Tensor]:
        """Compute each tile's blending weights in fp32, linear where two overlap, which add up to 1."""
        size = self.tile_size * scale
        ramps = [torch.ones(size) for _ in self.starts]
        for index, (start, next_start) in enumerate(pairwise(self.starts)):
            num_shared = (start + self.tile_size - next_start) * scale
            ramps[index] = _ramp_up(ramps[index].flip(0), num_shared).flip(0)
            ramps[index + 1] = _ramp_up(ramps[index + 1], num_shared)
        total = torch.zeros(self.length * scale)
        slices = [slice(start * scale, start * scale + size) for start in self.starts]
        for part, ramp in zip(slices, ramps, strict=True):
            total[part] += ramp
        return [ramp / total[part] for part, ramp in zip(slices, ramps, strict=True)]


def _ramp_up(ramp: Tensor, num_shared: int) -> Tensor:
    rise = (torch.arange(num_shared) + 0.5) / max(num_shared, 1)
    return torch.cat([ramp[:num_shared] * rise, ramp[num_shared:]])


@dataclass(frozen=True, slots=True)
class Grid:
    rows: Axis
    columns: Axis

    @classmethod
    def cut(cls, sides: Sequence[int], tiles: Tiles, spatial_compression: int) -> Self:
        tile_size = tiles.side // spatial_compression or max(sides)
        overlap = tiles.overlap // spatial_compression
        return cls(*(Axis.cut(side, tile_size, overlap) for side in sides))

    @property
    def tiles(self) -> list[tuple[int, int]]:
        columns = range(len(self.columns.starts))
        return [(row, column) for row in range(len(self.rows.starts)) for column in columns]

    def tile_of(self, tensor: Tensor, tile: tuple[int, int], scale: int = 1) -> Tensor:
        """View one tile of a tensor (..., height, width) with `scale` values per latent."""
        row, column = tile
        top, left = self.rows.starts[row] * scale, self.columns.starts[column] * scale
        height, width = self.rows.tile_size * scale, self.columns.tile_size * scale
        return tensor[..., top : top + height, left : left + width]


class Mosaic:
    def __init__(self, grid: Grid, scale: int, num_frames: int) -> None:
        self._grid, self._scale, self._num_frames = grid, scale, num_frames
        self._is_single_tile = len(grid.tiles) == 1
        self._pieces: list[Tensor] = []
        self._sum: Tensor | None = None
        self._dtype = torch.float32
        if not self._is_single_tile:
            self._row_weights = [to_host(weights) for weights in grid.rows.weights(scale)]
            self._column_weights = [to_host(weights) for weights in grid.columns.weights(scale)]

    def add(self, tile: tuple[int, int], start_frame: int, frames: Tensor) -> None:
        if self._is_single_tile:
            self._pieces.append(frames)
            return
        if self._sum is None:
            height, width = (axis.length * self._scale for axis in (self._grid.rows, self._grid.columns))
            shape = (*frames.shape[:2], self._num_frames, height, width)
            # numpy allocates the sum, since memory accounting would count a new tensor as on the device.
            self._sum = torch.from_numpy(np.zeros(shape, dtype=np.float32))
            self._dtype = frames.dtype
        row, column = tile
        weights = self._row_weights[row][:, None] * self._column_weights[column]
        frames_sum = self._sum[:, :, start_frame : start_frame + frames.shape[2]]
        tile_sum = self._grid.tile_of(frames_sum, tile, self._scale)
        tile_sum += frames.float() * weights

    def finish(self) -> Tensor:
        """Assemble the frames in the tiles' dtype. A single tile is returned without the fp32 sum."""
        if self._sum is not None:
            return self._sum.to(self._dtype)
        return self._pieces[0] if len(self._pieces) == 1 else torch.cat(self._pieces, dim=2)


def join_windows(windows: list[Tensor], stride: int, overlap: int) -> Tensor:
    """Join temporal windows (B, C, F, H, W), blending each into the next over `overlap` frames.

    diffusers' `AutoencoderKLHunyuanVideo` joins them in the same way. All windows but the first leave out
    their first frame, since the first latent frame of a window decodes to one frame instead of four.
    """
    previous, *others = windows
    pieces = [previous[:, :, : stride + 1]]
    for window in others:
        window = window[:, :, 1:].clone()
        num_blended = min(previous.shape[2], window.shape[2], overlap)
        for index in range(num_blended):
            share = index / num_blended
            faded = previous[:, :, index - num_blended] * (1 - share)
            window[:, :, index] = faded + window[:, :, index] * share
        pieces.append(window[:, :, :stride])
        previous = window
    return torch.cat(pieces, dim=2)


DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
PRECISIONS = {dtype: name for name, dtype in DTYPES.items()}
Progress = Callable[[int, int], None]
"""A function that is called with the numbers of finished and of all pieces. If the work is repeated, the
first number begins again at 1."""


class NotFinite(LongtakeError):
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
        repeat: Repeat = lambda key, compute: compute(),
    ) -> None:
        self.repeat = repeat
        self._progress = progress
        self._cancel = cancel or CancelToken()
        self._cleanup = cleanup
        self._cleanup_frequency = cleanup_frequency
        self._num_done = 0
        self.total = 0

    def take(self, piece: Tensor) -> Tensor:
        """Count a finished piece, and return it on the host, or raise NotFinite or GenerationCancelled."""
        piece = to_host(piece)
        # A sum takes one pass over the memory, and a test of each value four.
        if not bool(piece.sum(dtype=torch.float32).isfinite()):
            raise NotFinite(piece.dtype)
        self._num_done += 1
        self._progress(self._num_done, self.total)
        self._cancel.check()
        if self._cleanup_frequency and self._num_done % self._cleanup_frequency == 0:
            self._cleanup()
        return piece


def decode_pass(
    family: VaeFamily, latents: Tensor, tiles: Tiles, pieces: Pieces, *, chunk: int = 1
) -> Tensor:
    """Decode latents (B, C, T, h, w) to frames (B, 3, F, H, W) on the host, in one pass or one per tile."""
    num_frames = family.temporal_compression * (latents.shape[2] - 1) + 1
    grid = Grid.cut(latents.shape[-2:], tiles, family.spatial_compression)
    mosaic = Mosaic(grid, family.spatial_compression, num_frames)
    for tile in grid.tiles:
        start_frame = 0
        pending: list[Tensor] = []
        part = grid.tile_of(latents, tile)
        passes = family.decode(part)
        if not family.has_stream:
            passes = map(pieces.repeat, [(part.shape, family.dtype)], [partial(next, passes)])
        for frames in passes:
            pending.append(frames)
            num_pending_frames = sum(chunk_frames.shape[2] for chunk_frames in pending)
            if len(pending) == chunk or start_frame + num_pending_frames == num_frames:
                piece = pieces.take(pending[0] if len(pending) == 1 else torch.cat(pending, dim=2))
                pending.clear()
                mosaic.add(tile, start_frame, piece)
                start_frame += num_pending_frames
            del frames  # otherwise they stay on the device while the next tile is decoded
    return mosaic.finish()


def encode_pass(family: VaeFamily, frames: Tensor, tiles: Tiles, pieces: Pieces) -> Tensor:
    """Encode frames (B, 3, F, H, W) to moments (B, 2 C, T, h, w) in one pass, or in one per tile."""
    latent_sides = [side // family.spatial_compression for side in frames.shape[-2:]]
    grid = Grid.cut(latent_sides, tiles, family.spatial_compression)
    mosaic = Mosaic(grid, 1, (frames.shape[2] - 1) // family.temporal_compression + 1)
    for tile in grid.tiles:
        moments = family.encode(grid.tile_of(frames, tile, family.spatial_compression))
        mosaic.add(tile, 0, pieces.take(moments))
    return mosaic.finish()
