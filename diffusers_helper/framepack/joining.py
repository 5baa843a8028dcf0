"""The joining of FramePack's decoded sections, whose frames overlap and are blended there."""

import numpy as np
import torch
from torch import Tensor

from diffusers_helper.families.packing import Mode, Section
from diffusers_helper.job.original import Original
from diffusers_helper.output.previews import to_uint8


class FrameBlender:
    """Neighbours both decode the frames where they overlap, which change linearly from one to the other."""

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
        """Add the last frame's difference to the video's first one, in a share that grows with time."""
        assert self._first_frame is not None, "the section with the start comes before"
        shares = torch.arange(1, len(frames) + 1).view(-1, 1, 1, 1) / (len(frames) + 1)
        return frames + shares * (self._first_frame - frames[-1:])


def _match_edge(original: Original, frames: Tensor) -> Tensor:
    """Let the frame at the original equal the original's. The difference fades linearly over the others."""
    edge_index = -1 if original.is_last else 0
    edge_frame = torch.from_numpy(np.array(original.edge_frame)).float() / 127.5 - 1
    shares = torch.linspace(1, 0, len(frames)).view(-1, 1, 1, 1)
    shares = shares.flip(0) if original.is_last else shares
    return frames + shares * (edge_frame - frames[edge_index].clone())
