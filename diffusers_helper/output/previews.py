"""The previews of a section while it is being sampled, which are made without the VAE."""

from __future__ import annotations

import io
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from diffusers_helper.files import make_folder, write_atomic

SECONDS_BETWEEN = 0.5
_KEPT_FILES = 2
_SCALE = 4
_RIDGE = 1e-2


class LatentColours:
    """A linear map from latents to RGB, fitted to the start picture, whose latent is known.

    It is a ridge regression of the picture's colours, averaged over the 8x8 pixels of each latent, on the
    latents. Therefore it suits any VAE and needs no constants.
    """

    def __init__(self, picture: Image.Image, start_latent: Tensor) -> None:
        """Fit the map.

        Args:
            picture: The start picture in RGB, 8 times as large as the latent.
            start_latent: The picture's latent (1, 16, 1, h, w).
        """
        height, width = start_latent.shape[-2:]
        small = picture.resize((width, height), Image.Resampling.BOX)
        colours = torch.from_numpy(np.array(small)).double().reshape(-1, 3) / 255
        latents = start_latent[0, :, 0].double().flatten(1).T
        self._colour_mean, self._latent_mean = colours.mean(0), latents.mean(0)
        x, y = latents - self._latent_mean, colours - self._colour_mean
        penalty = _RIDGE * max(len(x), 1) * torch.eye(x.shape[1], dtype=x.dtype)
        self._weights = torch.linalg.solve(x.T @ x + penalty, x.T @ y)

    def frames(self, latents: Tensor) -> list[Image.Image]:
        """Return one small picture for each frame of latents (1, 16, T, h, w)."""
        pixels = latents[0].double().cpu().permute(1, 2, 3, 0) - self._latent_mean
        colours = (pixels @ self._weights + self._colour_mean).clamp(0, 1) * 255
        size = latents.shape[-1] * _SCALE, latents.shape[-2] * _SCALE
        return [
            Image.fromarray(frame).resize(size, Image.Resampling.BICUBIC)
            for frame in colours.round().to(torch.uint8).numpy()
        ]


class Preview:
    """A writer of animated WebP files, which writes at most two per second and keeps the last two.

    Args:
        folder: The folder for the files.
        picture: The start picture in the size of the video.
        seconds: The time that a latent frame takes in the video.
    """

    def __init__(self, folder: Path, picture: Image.Image, seconds: float) -> None:
        self._folder, self._picture, self._milliseconds = folder, picture, round(seconds * 1000)
        self._colours: LatentColours | None = None
        self._last = -SECONDS_BETWEEN

    def fit(self, start_latent: Tensor) -> None:
        """Learn the colours from the start picture's latent (1, C, 1, h, w); until then nothing is shown."""
        self._colours = LatentColours(self._picture, start_latent)

    def show(self, x0: Tensor, section: int, step: int) -> Path | None:
        """Write the prediction (1, 16, T, h, w) as an animation, unless the last one was just written.

        Returns:
            The path of the file, or None if none was written.
        """
        now = time.monotonic()
        if self._colours is None or now - self._last < SECONDS_BETWEEN:
            return None
        self._last = now
        first, *rest = self._colours.frames(x0)
        content = io.BytesIO()
        first.save(
            content, "WEBP", save_all=True, append_images=rest, duration=self._milliseconds, loop=0,
            quality=70, method=0,
        )  # fmt: skip
        make_folder(self._folder)
        path = self._folder / f"{section:04}-{step:03}.webp"
        write_atomic(path, content.getvalue())
        for old in sorted(self._folder.glob("*.webp"))[:-_KEPT_FILES]:
            old.unlink(missing_ok=True)
        return path
