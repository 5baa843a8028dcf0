"""A video's sections decoded in windows of time, each once although two sections ask for it."""

from __future__ import annotations

import torch
from torch import Tensor

from diffusers_helper.vae.families import Family
from diffusers_helper.vae.passes import Pieces, decode_pass, grid_of, window_starts
from diffusers_helper.vae.plan import OWN_CHUNK, Tiles
from diffusers_helper.vae.tiles import join_windows

_Key = tuple[int, int, Tiles, torch.dtype]


def window_sizes(num_latents: int) -> list[int]:
    """Latent frames of each window that so many are decoded in. The last may be shorter, as diffusers' is."""
    starts = window_starts(num_latents, OWN_CHUNK)
    if len(starts) == 1:
        return [num_latents]
    return [min(OWN_CHUNK + 2, num_latents - start) for start in starts]


class SectionDecoder:
    """Decodes as `AutoencoderKLHunyuanVideo.decode` does, to the same bits where nothing is cut into tiles.

    That VAE decodes long latents in windows that overlap in time. Neighbouring sections share latents; where
    their windows fall on the same ones, as in the middle of a video a third of them do, the window is taken
    from the section before.
    """

    def __init__(self) -> None:
        self._windows: dict[_Key, Tensor] = {}

    def decode(self, family: Family, latents: Tensor, begin: int, tiles: Tiles, pieces: Pieces) -> Tensor:
        """Frames (1, 3, 4 T - 3, height, width) of latents (1, 16, T, h, w), which are not scaled any more.

        Args:
            begin: place of the first latent frame, counted from a point that is the same in all calls.

        Returns: in the VAE's type, on the host.
        """
        count = latents.shape[2]
        starts = window_starts(count, OWN_CHUNK)
        # Other tiles, and another type, give other pixels.
        wanted: dict[int, _Key] = {
            start: (begin + start, size, tiles, family.dtype)
            for start, size in zip(starts, window_sizes(count), strict=True)
        }
        lacking = sum(key not in self._windows for key in wanted.values())
        pieces.total = lacking * len(grid_of(latents.shape[-2:], tiles, family.shrink).places)
        windows: dict[_Key, Tensor] = {}
        for start, key in wanted.items():
            window = self._windows.get(key)
            if window is None:
                window = decode_pass(family, latents[:, :, start : start + key[1]], tiles, pieces)
            windows[key] = window
        self._windows = windows
        return join_windows([windows[key] for key in wanted.values()], 4 * OWN_CHUNK, 4)
