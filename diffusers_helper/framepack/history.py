"""FramePack's history of clean latents."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import torch
from torch import Tensor

from diffusers_helper.families.packing import (
    HISTORY,
    HISTORY_1X,
    HISTORY_2X,
    HISTORY_4X,
    LATENT_WINDOW_SIZE,
    Mode,
    Section,
)
from diffusers_helper.job.work import LatentsSoFar
from diffusers_helper.sampling.guidance import CleanLatents

_NO_LATENTS: Mapping[int, Tensor] = MappingProxyType({})


class LatentHistory(LatentsSoFar):
    """`start` is the latent of the start picture or of a continued video's end, or noise; on the CPU."""

    def __init__(
        self,
        mode: Mode,
        start: Tensor,
        end: Tensor | None = None,
        prefix: Tensor | None = None,
        suffix: Tensor | None = None,
        *,
        end_distance: int = 0,
        section_starts: Mapping[int, Tensor] = _NO_LATENTS,
        references: Sequence[tuple[int, Tensor]] = (),
    ) -> None:
        """Begin with the pictures' latents, and what is in front of or behind the video.

        `end_distance` are the latent frames between the video and the end picture; `section_starts` are by
        section number, and `references` have temporal positions.
        """
        self._mode = mode
        self._end = end
        self._end_distance = end_distance
        self._section_starts = section_starts
        self._references = references
        self._prefix = start if prefix is None else prefix
        self.start = self._prefix[:, :, -1:] if self._prefix.shape[2] else start
        suffix = start[:, :, :0] if suffix is None else suffix
        self._num_suffix_latents = min(suffix.shape[2], LATENT_WINDOW_SIZE)
        super().__init__(self._prefix if mode == "forward" else suffix)

    def add(self, latents: Tensor, section: Section) -> None:
        if self._mode == "forward":
            self.latents = torch.cat([self.latents, latents], dim=2)
            if not self._prefix.shape[2]:
                self.start = self.latents[:, :, :1]  # the first latent replaces the noise
        else:
            parts = [self.latents, latents] if section.is_closing else [latents, self.latents]
            self.latents = torch.cat([self._prefix, *parts] if section.has_start else parts, dim=2)

    def context(self, section: Section) -> CleanLatents:
        start = self.latents[:, :, -1:] if section.is_closing else self.start
        start = self._section_starts.get(section.number, start)
        indices = section.indices
        if self._mode == "forward":
            return CleanLatents.after(indices, start, self.latents)
        zeros = start.new_zeros(*start.shape[:2], HISTORY, *start.shape[3:])
        nearest = torch.cat([self.latents[:, :, :HISTORY], zeros], dim=2)[:, :, :HISTORY]
        history_1x, history_2x, history_4x = nearest.split([HISTORY_1X, HISTORY_2X, HISTORY_4X], dim=2)
        if self._end is not None and section.number == 1:
            (index,) = indices.history_1x
            indices, history_1x = replace(indices, history_1x=(index + self._end_distance,)), self._end
        if self._references:
            indices_1x, latents = zip(*self._references, strict=True)
            indices, history_1x = replace(indices, history_1x=indices_1x), torch.cat(latents, dim=2)
        return CleanLatents(indices, start, history_1x, history_2x, history_4x)

    def to_decode(self, section: Section) -> Tensor:
        count = section.decode_latents + (self._num_suffix_latents if section.number == 1 else 0)
        start = 0
        if section.video_index == 0:
            start = max(0, self._prefix.shape[2] - 1)
            num_lead_latents = min(start, LATENT_WINDOW_SIZE)
            start -= num_lead_latents
            count += num_lead_latents
        grows_in_front = self._mode == "inverted" and not section.is_closing
        return self.latents[:, :, start : start + count] if grows_in_front else self.latents[:, :, -count:]
