"""The video that a job continues, as far as the job needs it: its frames at the joint, in the new size."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from PIL import Image

from diffusers_helper.conditions.footage import all_frames, first_frames, last_frames
from diffusers_helper.conditions.picture_file import fit_picture
from diffusers_helper.families.family import Family
from diffusers_helper.families.packing import Section
from diffusers_helper.files import file_sha256


@dataclass(frozen=True)
class Original:
    """The video that a job continues, or to which the new part leads if it `is_last`.

    Its frames get the height and width of the new video, and `crop` is the part to keep, as of its picture.
    """

    path: Path
    shape: tuple[int, int]
    crop: tuple[float, float, float]
    family: Family
    is_last: bool = False

    @cached_property
    def context_frames(self) -> list[Image.Image]:
        """The frames next to the new part, as many as a section takes as context, or all, in their order."""
        read = first_frames if self.is_last else last_frames
        return [self._fitted(frame) for frame in read(self.path, self.family.tail_frames, self.family.fps)]

    @property
    def edge_frame(self) -> Image.Image:
        return self.context_frames[0 if self.is_last else -1]

    @cached_property
    def checksum(self) -> str:
        return file_sha256(self.path)

    def is_next_to(self, section: Section) -> bool:
        return section.number == 1 if self.is_last else section.video_index == 0

    def num_extra_frames(self, section: Section) -> int:
        """An extra latent becomes four frames, of which the last stands for the first frame of the video."""
        return self.family.temporal_compression if self.is_last and self.is_next_to(section) else 0

    def frames(self, on_progress: Callable[[], object] = lambda: None) -> Iterator[np.ndarray]:
        for index, frame in enumerate(all_frames(self.path, self.family.fps)):
            if index % 30 == 0:
                on_progress()
            yield np.asarray(self._fitted(frame))

    def _fitted(self, frame: Image.Image) -> Image.Image:
        return fit_picture(frame, *self.shape, *self.crop)
