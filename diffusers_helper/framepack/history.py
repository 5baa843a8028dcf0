"""FramePack's history of clean latents, and the blending of its decoded sections, which overlap."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np
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
from diffusers_helper.job.original import Original
from diffusers_helper.output.previews import to_uint8
from diffusers_helper.sampling.guidance import CleanLatents

_NO_LATENTS: Mapping[int, Tensor] = MappingProxyType({})


class LatentHistory:
    """The clean latents in temporal order, in fp32 on the CPU.

    Attributes:
        start: The latent (1, 16, 1, h, w) of the start picture or of the end of a continued video, or noise.
        latents: All latents (1, 16, T, h, w) so far. They begin with the prefix, which in inverted mode is
            added with the section that begins the video.
    """

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
        self.latents = self._prefix if mode == "forward" else suffix

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
        """Select the latents to decode after a section was added, with those of a video at its edge."""
        count = section.decode_latents + (self._num_suffix_latents if section.number == 1 else 0)
        start = 0
        if section.video_index == 0:
            start = max(0, self._prefix.shape[2] - 1)
            num_lead_latents = min(start, LATENT_WINDOW_SIZE)
            start -= num_lead_latents
            count += num_lead_latents
        grows_in_front = self._mode == "inverted" and not section.is_closing
        return self.latents[:, :, start : start + count] if grows_in_front else self.latents[:, :, -count:]


class FrameBlender:
    """The blender of decoded sections, which separates final frames from those that will still change.

    Neighbouring sections both decode the frames where they overlap. There the picture changes linearly from
    the earlier section's to the later one's, as in FramePack.
    """

    def __init__(self, mode: Mode, original: Original | None = None) -> None:
        self._mode, self._original = mode, original
        self._pending: Tensor | None = None
        self._first_frame: Tensor | None = None

    def add(self, frames: Tensor, section: Section) -> tuple[np.ndarray, np.ndarray]:
        """Blend a section's decoded frames, (T, H, W, 3) in -1 to 1, with those of the previous section.

        The result is the final and the pending frames, as `GrowingVideo.add_section` takes them. If the
        previous section was not added, nothing is blended, and the pending frames are correct all the same.
        """
        if section.is_closing:
            return to_uint8(self._close_loop(frames[section.overlap_frames :])), to_uint8(frames[:0])
        if section.has_start:
            self._first_frame = frames[:1].clone()
        original = self._original if self._original and self._original.is_next_to(section) else None
        if original:
            frames = _match_edge(original, frames)
        if self._pending is not None and section.overlap_frames:
            frames = self._blend(frames, self._pending, section.overlap_frames)
        num_pending = section.pending_frames
        if self._mode == "inverted":
            pending, final = frames[:num_pending], frames[num_pending:]
        else:
            final, pending = frames[: len(frames) - num_pending], frames[len(frames) - num_pending :]
        self._pending = pending.clone() if num_pending else None
        if original:  # without the frame that stands for one of the original
            final = final[:-1] if original.is_last else final[1:]
        return to_uint8(final), to_uint8(pending)

    def _blend(self, frames: Tensor, pending: Tensor, overlap: int) -> Tensor:
        earlier_weight = torch.linspace(1, 0, overlap).view(-1, 1, 1, 1)  # of the frame earlier in time
        if self._mode == "inverted":
            blended = earlier_weight * frames[-overlap:] + (1 - earlier_weight) * pending
            return torch.cat([frames[:-overlap], blended])
        blended = earlier_weight * pending + (1 - earlier_weight) * frames[:overlap]
        return torch.cat([blended, frames[overlap:]])

    def _close_loop(self, frames: Tensor) -> Tensor:
        """Adjust the frames between the end of a loop and its start, so that there is no jump.

        The last frame's difference to the video's first one is added to all, in a share that grows with time.
        """
        assert self._first_frame is not None, "the section with the start comes before"
        shares = torch.arange(1, len(frames) + 1).view(-1, 1, 1, 1) / (len(frames) + 1)
        return frames + shares * (self._first_frame - frames[-1:])


def _match_edge(original: Original, frames: Tensor) -> Tensor:
    """Adjust decoded frames so that the one next to the original video equals the video's frame.

    The difference is added to all frames, in a share that falls linearly to 0.
    """
    edge_index = -1 if original.is_last else 0
    edge_frame = torch.from_numpy(np.array(original.edge_frame)).float() / 127.5 - 1
    shares = torch.linspace(1, 0, len(frames)).view(-1, 1, 1, 1)
    shares = shares.flip(0) if original.is_last else shares
    return frames + shares * (edge_frame - frames[edge_index].clone())
