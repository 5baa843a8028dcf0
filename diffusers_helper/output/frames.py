"""One small picture per section, for the timeline of a page."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from diffusers_helper.files import write_atomic
from diffusers_helper.packing import Mode, Section

MAX_SIDE = 192  # pixels


def write_thumbnail(folder: Path, section: Section, frames: Tensor, mode: Mode) -> Path:
    """Writes the picture from the middle of what a section adds to the video.

    Args:
        folder: where the pictures go; made if it is missing.
        frames: (T, H, W, 3), all that the section's decode gave, -1 to 1.

    Returns: the file, named after the section's number.
    """
    own = section.decoded_frames - section.overlap_frames
    middle = own // 2 + (section.overlap_frames if mode == "forward" else 0)
    picture = Image.fromarray(to_uint8(frames[middle]))
    picture.thumbnail((MAX_SIDE, MAX_SIDE), Image.Resampling.LANCZOS)
    content = io.BytesIO()
    picture.save(content, "WEBP", quality=80)
    folder.mkdir(exist_ok=True)
    path = folder / f"{section.number:04}.webp"
    write_atomic(path, content.getvalue())
    return path


def to_uint8(frames: Tensor) -> np.ndarray:
    """Pixels of frames in -1 to 1: out of range is cut, the rest rounded to 0 to 255."""
    return (frames / 2 + 0.5).clamp(0, 1).mul(255).round().to(torch.uint8).numpy()


class FrameBlender:
    """Joins what the sections decode, and tells frames that are final from those that will still change.

    Neighbouring sections both decode the frames where they meet; over those the picture changes linearly from
    the earlier section's to the later one's, as in FramePack. Only frames that face the next section are
    kept.
    """

    def __init__(self, mode: Mode) -> None:
        self._mode = mode
        self._pending: Tensor | None = None

    def add(self, frames: Tensor, section: Section) -> tuple[np.ndarray, np.ndarray]:
        """Takes the frames that a section decoded, (T, H, W, 3) in -1 to 1.

        Where the frames of the section before are not known, nothing is blended; `pending` is right even so.

        Returns: (final, pending) as `GrowingVideo.add_section` takes them.

        Raises:
            ValueError: if there are not as many frames as the plan says.
        """
        if len(frames) != section.decoded_frames:
            raise ValueError(f"{len(frames)} frames were decoded; expected {section.decoded_frames}.")
        overlap, pending = section.overlap_frames, section.pending_frames
        if self._pending is not None and overlap:
            # From 1 to 0: how much of the frame that is earlier in time.
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
