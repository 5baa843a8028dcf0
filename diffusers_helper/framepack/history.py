"""The clean latents made so far, what a section and its decoding need of them, and the joining of sections.

FramePack's decoded sections overlap.
"""

from __future__ import annotations

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
    WINDOW,
    Mode,
    Section,
)
from diffusers_helper.job.original import Original
from diffusers_helper.output.previews import to_uint8
from diffusers_helper.sampling.guidance import CleanLatents

_NONE: Mapping[int, Tensor] = MappingProxyType({})


class LatentHistory:
    """The clean latents in temporal order, in fp32 on the CPU.

    Attributes:
        start: The start picture's latent, (1, 16, 1, h, w), or the last one of the video that is continued,
            or noise.
        latents: All latents made so far, (1, 16, T, h, w), with those at which the video begins in front. In
            inverted mode these are added with the section that begins the video.
    """

    def __init__(
        self,
        mode: Mode,
        start: Tensor,
        end: Tensor | None = None,
        before: Tensor | None = None,
        after: Tensor | None = None,
        *,
        distance: int = 0,
        starts: Mapping[int, Tensor] = _NONE,
        references: Sequence[tuple[int, Tensor]] = (),
    ) -> None:
        """Begin with the pictures.

        Args:
            start: The start picture's latent, or noise.
            end: The latent of the picture that an inverted video leads to, which is no part of it.
            before: The latents at which the video begins: by default the start picture's.
            after: The first latents of the video to which an inverted one leads; none by default.
            distance: The latent frames between the video and the end picture.
            starts: The latents of other pictures that sections see at their start, by the sections' numbers.
            references: The latents of pictures that a single picture refers to, with their places in time.
        """
        self._mode, self._end, self._distance, self._starts = mode, end, distance, starts
        self._references = references
        self._before = start if before is None else before
        self.start = self._before[:, :, -1:] if self._before.shape[2] else start
        after = start[:, :, :0] if after is None else after
        self._behind = min(after.shape[2], WINDOW)
        self.latents = self._before if mode == "forward" else after

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
        if self._references:
            places, latents = zip(*self._references, strict=True)
            indices, history_1x = replace(indices, history_1x=places), torch.cat(latents, dim=2)
        return CleanLatents(indices, start, history_1x, history_2x, history_4x)

    def to_decode(self, section: Section) -> Tensor:
        """Return the latents to decode after a section was added.

        A video that is continued leads in to its continuation, as each section does to the next. One that a
        new part leads to is decoded behind the first section, as the section made before is behind others.
        """
        count, first = section.decode_latents + (self._behind if section.number == 1 else 0), 0
        if section.video_position == 0:
            first = max(0, self._before.shape[2] - 1)
            lead = min(first, WINDOW)
            first, count = first - lead, count + lead
        grows_in_front = self._mode == "inverted" and not section.is_closing
        return self.latents[:, :, first : first + count] if grows_in_front else self.latents[:, :, -count:]


class FrameBlender:
    """The blender of decoded sections, which separates final frames from those that will still change.

    Neighbouring sections both decode the frames where they meet. Over these frames the picture changes
    linearly from that of the earlier section to that of the later one, as in FramePack.
    """

    def __init__(self, mode: Mode, original: Original | None = None) -> None:
        """Begin without a section. The frames are joined to an original, without being blended with it."""
        self._mode, self._original = mode, original
        self._pending: Tensor | None = None
        self._start: Tensor | None = None

    def add(self, frames: Tensor, section: Section) -> tuple[np.ndarray, np.ndarray]:
        """Blend a section's decoded frames, (T, H, W, 3) in -1 to 1, with those of the previous section.

        If the previous section was not added, nothing is blended. The pending frames are correct all the
        same.

        Returns:
            The final and the pending frames, as `GrowingVideo.add_section` takes them.
        """
        if section.is_closing:
            return to_uint8(self._led_to_start(frames[section.overlap_frames :])), to_uint8(frames[:0])
        if section.has_start:
            self._start = frames[:1].clone()
        continued = self._original if self._original and self._original.meets(section) else None
        if continued:
            frames = _joined_to(continued, frames)
        overlap, pending = section.overlap_frames, section.pending_frames
        if self._pending is not None and overlap:
            # The weight of the frame that is earlier in time, from 1 to 0
            earlier = torch.linspace(1, 0, overlap).view(-1, 1, 1, 1)
            if self._mode == "inverted":
                rest, met = frames[:-overlap], frames[-overlap:]
                frames = torch.cat([rest, earlier * met + (1 - earlier) * self._pending])
            else:
                met, rest = frames[:overlap], frames[overlap:]
                frames = torch.cat([earlier * self._pending + (1 - earlier) * met, rest])
        if self._mode == "inverted":
            kept, final = frames[:pending], frames[pending:]
        else:
            final, kept = frames[: len(frames) - pending], frames[len(frames) - pending :]
        self._pending = kept.clone() if pending else None
        if continued:  # without the frame that stands for one of the original
            final = final[:-1] if continued.is_last else final[1:]
        return to_uint8(final), to_uint8(kept)

    def _led_to_start(self, frames: Tensor) -> Tensor:
        """Return the frames between the end of a loop and its start, which follows the last of them.

        What the last one lacks of the video's first frame is added to all, in a share that grows with time.
        So the loop has no jump there, and frames that lead to the start by themselves are hardly changed.
        """
        assert self._start is not None, "the section with the start comes before"
        shares = torch.arange(1, len(frames) + 1).view(-1, 1, 1, 1) / (len(frames) + 1)
        return frames + shares * (self._start - frames[-1:])


def _joined_to(original: Original, frames: Tensor) -> Tensor:
    """Return decoded frames of which the one at the joint with a video is the video's.

    What that one lacks is added to all, in a share that falls linearly to none.
    """
    place = -1 if original.is_last else 0
    wanted = torch.from_numpy(np.array(original.edge)).float() / 127.5 - 1
    shares = torch.linspace(1, 0, len(frames)).view(-1, 1, 1, 1)
    shares = shares.flip(0) if original.is_last else shares
    return frames + shares * (wanted - frames[place].clone())
