"""The VAE's decoding in time tiles, each decoded once although two sections ask for it."""

from __future__ import annotations

import torch
from diffusers import AutoencoderKLHunyuanVideo
from torch import Tensor

from diffusers_helper.memory.accounting import to_host


class TileDecoder:
    """Decodes as `AutoencoderKLHunyuanVideo.decode` does, to the same bits, with less work.

    The VAE decodes long latents in tiles that overlap in time. Neighbouring sections share latents; where
    their tiles fall on the same ones, as in the middle of a video a third of them do, the tile is taken from
    the section before. A tile at the end that adds no frame is left out.
    """

    def __init__(self) -> None:
        self._tiles: dict[tuple[int, int, int], Tensor] = {}

    def decode(self, vae: AutoencoderKLHunyuanVideo, latents: Tensor, begin: int) -> Tensor:
        """Frames (1, 3, 4 T - 3, height, width) of latents (1, 16, T, h, w), which are not scaled any more.

        Args:
            begin: place of the first latent frame, counted from a point that is the same in all calls.

        Returns: in the VAE's dtype, on the CPU.
        """
        ratio = vae.temporal_compression_ratio
        long, step = int(vae.tile_sample_min_num_frames), int(vae.tile_sample_stride_num_frames)
        size, stride = long // ratio, step // ratio
        count = latents.shape[2]
        if count <= size or not vae.use_framewise_decoding:
            return to_host(vae.decode(latents, return_dict=False)[0])
        # A tile has one latent frame more than it is long: the first gives one frame, which is dropped.
        starts = range(0, max(1, count - 1), stride)
        side = int(vae.tile_sample_min_height)  # other tiles in space give other pixels
        wanted = {start: (begin + start, min(size + 1, count - start), side) for start in starts}
        tiles: dict[tuple[int, int, int], Tensor] = {}
        vae.use_framewise_decoding = False
        try:
            for start, key in wanted.items():
                kept = self._tiles.get(key)
                if kept is None:
                    part = latents[:, :, start : start + key[1]]
                    kept = to_host(vae.decode(part, return_dict=False)[0])
                tiles[key] = kept
        finally:
            vae.use_framewise_decoding = True
        self._tiles = tiles
        return _joined([tiles[key] for key in wanted.values()], step, long - step)


def _joined(tiles: list[Tensor], stride: int, overlap: int) -> Tensor:
    """One tile after the other; over `overlap` frames each passes into the next."""
    before, *rest = tiles
    parts = [before[:, :, : stride + 1]]
    for tile in rest:
        tile = tile[:, :, 1:].clone()
        extent = min(before.shape[2], tile.shape[2], overlap)
        for k in range(extent):
            share = k / extent
            tile[:, :, k] = before[:, :, k - extent] * (1 - share) + tile[:, :, k] * share
        parts.append(tile[:, :, :stride])
        before = tile
    return torch.cat(parts, dim=2)
