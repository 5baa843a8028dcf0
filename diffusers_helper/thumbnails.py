"""One small picture per section, for the timeline of a page."""

from __future__ import annotations

import io
from pathlib import Path

from PIL import Image
from torch import Tensor

from diffusers_helper.job_folder import write_atomic
from diffusers_helper.packing import Mode, Section
from diffusers_helper.vae import to_uint8

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
