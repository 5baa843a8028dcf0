"""The clean latents made so far, and the parts of them that a section and its decoding need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import torch
from torch import Tensor

from diffusers_helper.families.packing import (
    HISTORY,
    HISTORY_1X,
    HISTORY_2X,
    HISTORY_4X,
    WINDOW,
    Mode,
    Section,
)
from diffusers_helper.sampling.guidance import CleanLatents

_NONE: Mapping[int, Tensor] = MappingProxyType({})


class LatentHistory:
    """The clean latents in temporal order, in fp32 on the CPU.

    Attributes:
        start: The start picture's latent, (1, 16, 1, h, w), or the last one of the video that is continued,
            or noise.
        latents: All latents made so far, (1, 16, T, h, w). The picture's latent is the first of them, or else
            those of the video that is continued are. In inverted mode they are added with the section that
            begins the video.
    """

    def __init__(
        self,
        mode: Mode,
        start: Tensor,
        end: Tensor | None = None,
        before: Tensor | None = None,
        *,
        distance: int = 0,
        starts: Mapping[int, Tensor] = _NONE,
    ) -> None:
        """Begin with the pictures.

        Args:
            mode: The order of sections.
            start: The start picture's latent, or noise.
            end: The latent of the picture that an inverted video leads to, which is no part of the video.
            before: The latents at which the video begins: by default the start picture's, or the last ones of
                the video that is continued, or none.
            distance: The latent frames between the video and the end picture.
            starts: The latents of other pictures that sections see at their start, by the sections' numbers.
        """
        self._mode, self._end, self._distance, self._starts = mode, end, distance, starts
        self._before = start if before is None else before
        self.start = self._before[:, :, -1:] if self._before.shape[2] else start
        self.latents = self._before if mode == "forward" else start[:, :, :0]

    def add(self, window: Tensor, section: Section) -> None:
        """Add the latents (1, 16, W, h, w) of a section."""
        if self._mode == "forward":
            self.latents = torch.cat([self.latents, window], dim=2)
            if not self._before.shape[2]:
                self.start = self.latents[:, :, :1]  # what came first takes the place of the noise
        else:
            parts = [self.latents, window] if section.is_closing else [window, self.latents]
            self.latents = torch.cat([self._before, *parts] if section.has_start else parts, dim=2)

    def context(self, section: Section) -> CleanLatents:
        """Return the latents that a section sees: the picture's and the nearest ones, padded with zeros."""
        start = self.latents[:, :, -1:] if section.is_closing else self.start
        indices, start = section.indices, self._starts.get(section.number, start)
        if self._mode == "forward":
            return CleanLatents.after(indices, start, self.latents)
        nothing = start.new_zeros(*start.shape[:2], HISTORY, *start.shape[3:])
        near = torch.cat([self.latents[:, :, :HISTORY], nothing], dim=2)[:, :, :HISTORY]
        history_1x, history_2x, history_4x = near.split([HISTORY_1X, HISTORY_2X, HISTORY_4X], dim=2)
        if self._end is not None and section.number == 1:
            (place,) = indices.history_1x
            indices, history_1x = replace(indices, history_1x=(place + self._distance,)), self._end
        return CleanLatents(indices, start, history_1x, history_2x, history_4x)

    def to_decode(self, section: Section) -> Tensor:
        """Return the latents to decode after a section was added.

        A video that is continued leads in to its continuation, as each section does to the next.
        """
        count, first = section.decode_latents, 0
        if section.video_position == 0:
            first = max(0, self._before.shape[2] - 1)
            lead = min(first, WINDOW)
            first, count = first - lead, count + lead
        grows_in_front = self._mode == "inverted" and not section.is_closing
        return self.latents[:, :, first : first + count] if grows_in_front else self.latents[:, :, -count:]
