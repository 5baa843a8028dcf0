"""The video that a job continues, as far as the job needs it: its end, in the size of the new video."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from PIL import Image

from diffusers_helper.conditions.footage import all_frames, last_frames
from diffusers_helper.conditions.picture import fit_picture
from diffusers_helper.families.family import Family
from diffusers_helper.files import file_sum


@dataclass(frozen=True)
class Original:
    """The video that a job continues.

    Attributes:
        shape: The height and width of the new video in pixels.
        crop: The position of the part to keep; see `picture.fit_picture`.
    """

    path: Path
    shape: tuple[int, int]
    crop: float
    family: Family

    @cached_property
    def tail(self) -> list[Image.Image]:
        """Return as many of the last frames as a section sees, or all of them."""
        found = last_frames(self.path, self.family.tail_frames, self.family.fps)
        return [self._fitted(frame) for frame in found]

    @cached_property
    def checksum(self) -> str:
        return file_sum(self.path)

    def frames(self) -> Iterator[np.ndarray]:
        """Yield all frames, (height, width, 3), in the size and at the rate of the new video."""
        return (np.asarray(self._fitted(frame)) for frame in all_frames(self.path, self.family.fps))

    def _fitted(self, frame: Image.Image) -> Image.Image:
        return fit_picture(frame, *self.shape, self.crop)
