"""The joining of FramePack's decoded sections, which overlap."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from diffusers_helper.families.packing import Mode, Section
from diffusers_helper.job.original import Original
from diffusers_helper.output.frames import to_uint8


class FrameBlender:
    """The blender of decoded sections, which separates final frames from those that will still change.

    Neighbouring sections both decode the frames where they meet. Over these frames the picture changes
    linearly from that of the earlier section to that of the later one, as in FramePack. Between two calls,
    only the frames next to the following section are kept.
    """

    def __init__(self, mode: Mode, original: Original | None = None) -> None:
        """Begin without a section.

        Args:
            mode: The order of sections.
            original: The video that is continued, to which the new frames are joined without being blended.
        """
        self._mode, self._original = mode, original
        self._pending: Tensor | None = None
        self._start: Tensor | None = None

    def add(self, frames: Tensor, section: Section) -> tuple[np.ndarray, np.ndarray]:
        """Blend a section's decoded frames, (T, H, W, 3) in -1 to 1, with those of the previous section.

        If the previous section was not added, nothing is blended. The pending frames are correct all the
        same.

        Returns:
            The final and the pending frames, as `GrowingVideo.add_section` takes them.

        Raises:
            ValueError: If the number of frames is not the planned one.
        """
        if len(frames) != section.decoded_frames:
            raise ValueError(f"{len(frames)} frames were decoded; expected {section.decoded_frames}.")
        if section.is_closing:
            return to_uint8(self._led_to_start(frames[section.overlap_frames :])), to_uint8(frames[:0])
        if section.has_start:
            self._start = frames[:1].clone()
        continued = self._original if section.video_position == 0 else None
        if continued:
            frames = _led_from(continued, frames)
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
        # The first frame stands for the last one of the video that is continued.
        return to_uint8(final[1:] if continued else final), to_uint8(kept)

    def _led_to_start(self, frames: Tensor) -> Tensor:
        """Return the frames between the end of a loop and its start, which follows the last of them.

        What the last one lacks of the video's first frame is added to all, in a share that grows with time.
        So the loop has no jump there, and frames that lead to the start by themselves are hardly changed.
        """
        assert self._start is not None, "the section with the start comes before"
        shares = torch.arange(1, len(frames) + 1).view(-1, 1, 1, 1) / (len(frames) + 1)
        return frames + shares * (self._start - frames[-1:])


def _led_from(original: Original, frames: Tensor) -> Tensor:
    """Return decoded frames that begin with the last frame of a video and go over to themselves.

    What the first frame lacks of it is added to all, in a share that falls linearly to none.
    """
    wanted = torch.from_numpy(np.array(original.tail[-1])).float() / 127.5 - 1
    shares = torch.linspace(1, 0, len(frames)).view(-1, 1, 1, 1)
    return frames + shares * (wanted - frames[:1])
