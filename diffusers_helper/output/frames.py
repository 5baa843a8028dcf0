"""Decoded frames as pixels, and the thumbnails of sections for the page's timeline."""

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


def write_thumbnail(path: Path, section: Section, frames: Tensor, mode: Mode) -> None:
    """Write a thumbnail from the middle of the frames that a section adds to the video.

    Args:
        path: The file, in a folder for thumbnails that is made if it is missing.
        frames: All frames that were decoded for the section, (T, H, W, 3) in -1 to 1.
        mode: The order of sections.
    """
    own = section.decoded_frames - section.overlap_frames
    is_behind = mode == "forward" or section.is_closing
    middle = own // 2 + (section.overlap_frames if is_behind else 0)
    picture = Image.fromarray(to_uint8(frames[middle]))
    picture.thumbnail((MAX_SIDE, MAX_SIDE), Image.Resampling.LANCZOS)
    content = io.BytesIO()
    picture.save(content, "WEBP", quality=80)
    make_folder(path.parent)
    write_atomic(path, content.getvalue())


def to_uint8(frames: Tensor) -> np.ndarray:
    """Convert frames in -1 to 1 to pixels of 0 to 255, clipped and rounded."""
    return (frames / 2 + 0.5).clamp(0, 1).mul(255).round().to(torch.uint8).numpy()
