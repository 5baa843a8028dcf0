"""A small decoder beside a model's weights, which makes small frames fast enough for previews."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Self, cast

import torch
from torch import Tensor, nn

from diffusers_helper.loading.tensors import read_tensors

TINY_FILE = "preview.safetensors"
CELL = 4
"""The pixels along each side of what the decoder makes of one latent."""
_CHANNELS, _WIDTH, _FRAMES = 16, 48, 4
_log = logging.getLogger(__name__)


class TinyDecoder(nn.Module):
    """A decoder of 115,000 parameters: four frames of 4x4 pixels for each latent."""

    def __init__(self) -> None:
        super().__init__()
        colours = 3 * _FRAMES * CELL * CELL
        self.body = nn.Sequential(
            nn.Conv3d(_CHANNELS, _WIDTH, 3, padding=1), nn.ReLU(),
            nn.Conv3d(_WIDTH, _WIDTH, 3, padding=1), nn.ReLU(),
            nn.Conv3d(_WIDTH, _WIDTH, (1, 3, 3), padding=(0, 1, 1)), nn.ReLU(),
            nn.Conv3d(_WIDTH, colours, 1),
        )  # fmt: skip
        self.straight = nn.Conv3d(_CHANNELS, colours, 1)

    def forward(self, latents: Tensor) -> Tensor:
        """Return the frames (B, 3, 4T, 4h, 4w) of scaled latents (B, 16, T, h, w), about -1 to 1."""
        cells = self.body(latents) + self.straight(latents)
        count, _, frames, height, width = cells.shape
        cells = cells.unflatten(1, (3, _FRAMES, CELL, CELL)).permute(0, 1, 5, 2, 6, 3, 7, 4)
        return cells.reshape(count, 3, frames * _FRAMES, height * CELL, width * CELL)

    @classmethod
    def beside(cls, folder: Path | None) -> Self | None:
        """Return the decoder in a model's folder; None if it has none that can be used."""
        file = folder and folder / TINY_FILE
        if file is None or not file.is_file():
            return None
        decoder = cls()
        try:
            decoder.load_state_dict({name: one.float() for name, one in read_tensors([file]).items()})
        except (OSError, ValueError, RuntimeError) as error:
            _log.warning("The previews have colours alone, as %s cannot be used: %s", file, error)
            return None
        return cast(Self, decoder.eval())

    @torch.inference_mode()
    def frames(self, latents: Tensor) -> Tensor:
        """Return the frames (4T, 4h, 4w, 3) of latents (1, 16, T, h, w) in whole numbers up to 255."""
        # On a machine without a GPU, tensors made from others on the device would count as being on it, too.
        host = torch.from_numpy(latents.float().cpu().numpy())
        frames = self(host)[0].permute(1, 2, 3, 0)
        return ((frames + 1) * 127.5).clamp(0, 255).round().to(torch.uint8)
