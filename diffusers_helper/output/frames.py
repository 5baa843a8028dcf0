"""The blending of decoded frames, and the thumbnails of sections for the page's timeline."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from diffusers_helper.families.packing import Mode, Section
from diffusers_helper.files import make_folder, write_atomic

MAX_SIDE = 384  # in pixels, which is sharp on a card of the history


def write_thumbnail(folder: Path, section: Section, frames: Tensor, mode: Mode) -> Path:
    """Write a thumbnail from the middle of the frames that a section adds to the video, and return its path.

    Args:
        folder: The folder for thumbnails.
        section: The section.
        frames: All frames that were decoded for the section, (T, H, W, 3) in -1 to 1.
        mode: The order of sections.
    """
    own = section.decoded_frames - section.overlap_frames
    middle = own // 2 + (section.overlap_frames if mode == "forward" else 0)
    picture = Image.fromarray(to_uint8(frames[middle]))
    picture.thumbnail((MAX_SIDE, MAX_SIDE), Image.Resampling.LANCZOS)
    content = io.BytesIO()
    picture.save(content, "WEBP", quality=80)
    make_folder(folder)
    path = folder / f"{section.number:04}.webp"
    write_atomic(path, content.getvalue())
    return path


def to_uint8(frames: Tensor) -> np.ndarray:
    """Convert frames in -1 to 1 to pixels of 0 to 255, clipped and rounded."""
    return (frames / 2 + 0.5).clamp(0, 1).mul(255).round().to(torch.uint8).numpy()


class FrameBlender:
    """The blender of decoded sections, which separates final frames from those that will still change.

    Neighbouring sections both decode the frames where they meet. Over these frames the picture changes
    linearly from that of the earlier section to that of the later one, as in FramePack. Between two calls,
    only the frames next to the following section are kept.
    """

    def __init__(self, mode: Mode) -> None:
        self._mode = mode
        self._pending: Tensor | None = None

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
        return to_uint8(final), to_uint8(kept)
