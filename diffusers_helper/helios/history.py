"""The clean latents made so far, what a section sees of them, and the joining of decoded sections."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from diffusers_helper.families.packing import Section
from diffusers_helper.output.frames import to_uint8
from diffusers_helper.sampling.guidance import CleanLatents


class SectionHistory:
    """The clean latents in temporal order, in fp32 on the CPU.

    Attributes:
        latents: The latents of all sections made so far, (1, 16, T, h, w).
    """

    def __init__(self, before: Tensor, start: Tensor | None = None) -> None:
        """Begin with what came before the video.

        Args:
            before: The latents that the first section sees as its history; they may have no frame.
            start: The latent of the picture, or of the first frame of the video that is continued. Without
                one, the first latent that is made takes its place.
        """
        self._before, self._start = before, start
        self.latents = before[:, :, :0]

    def add(self, window: Tensor, section: Section) -> None:
        """Add the latents (1, 16, W, h, w) of a section."""
        self.latents = torch.cat([self.latents, window], dim=2)

    def context(self, section: Section) -> CleanLatents:
        """Return the latents that a section sees: the first one and the nearest ones, padded with zeros."""
        made = torch.cat([self._before, self.latents], dim=2)
        start = self.latents[:, :, :1] if self._start is None else self._start
        if not start.shape[2]:
            start = made.new_zeros(*made.shape[:2], 1, *made.shape[3:])
        return CleanLatents.after(section.indices, start, made)

    def to_decode(self, section: Section) -> Tensor:
        """Return the latents to decode after a section was added, which are its own."""
        return self.latents[:, :, -section.decode_latents :]


class Appender:
    """The joiner of sections that share no frame."""

    def add(self, frames: Tensor, section: Section) -> tuple[np.ndarray, np.ndarray]:
        """Return a section's frames, (T, H, W, 3) in -1 to 1, all of which are final."""
        return to_uint8(frames), to_uint8(frames[:0])
