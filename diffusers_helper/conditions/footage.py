"""The video that a new one continues: its frames at the new one's rate, its length and its last frame.

Frames are taken by time, so a video of any or of a changing rate keeps its speed. Functions raise
PictureError for a video that cannot be used.
"""

from collections import deque
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image

from diffusers_helper.conditions.film import MAX_SECONDS, Film, opened
from diffusers_helper.conditions.picture_file import plain_png
from diffusers_helper.conditions.video_frame import to_picture
from diffusers_helper.errors import PictureError
from diffusers_helper.families.packing import FPS
from diffusers_helper.machine.limits import limited_memory
from diffusers_helper.untrusted.confined import confined

if TYPE_CHECKING:
    from av.video.frame import VideoFrame

# Decoding begins so many seconds before the wanted frames, until there are enough of them: key frames may be
# far apart, a video may be short, and its index or its times may be wrong.
_MARGINS = (1, 15, MAX_SECONDS)


@dataclass(frozen=True, slots=True)
class Footage:
    seconds: float
    last_frame: bytes


@confined
def read_footage(path: Path) -> Footage:
    with limited_memory():
        pictures, seconds = _end_of(path, 1, FPS)
        return Footage(seconds, plain_png(pictures[-1]))


def last_frames(path: Path, count: int, fps: int = FPS) -> list[Image.Image]:
    return _end_of(path, count, fps)[0]


def _end_of(path: Path, count: int, fps: int) -> tuple[list[Image.Image], float]:
    for margin in _MARGINS:
        with opened(path) as film:
            film.seek_to_end((count + 1) / fps + margin)
            frames = deque((frame for _, frame in at_rate(film, fps)), maxlen=count)
            if len(frames) == count or (margin == _MARGINS[-1] and frames):
                return [to_picture(frame, film) for frame in frames], float(film.end)
    raise _empty(path)


def first_frames(path: Path, count: int, fps: int = FPS) -> list[Image.Image]:
    with closing(all_frames(path, fps)) as frames:
        return [*islice(frames, count)]


def all_frames(
    path: Path, fps: int | Fraction = FPS, max_seconds: float = MAX_SECONDS
) -> Generator[Image.Image]:
    with opened(path, max_seconds) as film:
        frame = None
        for _, frame in at_rate(film, fps):
            yield to_picture(frame, film)
        if frame is None:
            raise _empty(path)


def _empty(path: Path) -> PictureError:
    problem = f"The video {path.name} has no frame that can be decoded."
    return PictureError(problem, "Convert it to MP4 with H.264.")


def largest_encodable(count: int) -> int:
    """Find the largest number up to `count` that is 4 n + 1, as a causal VAE encodes."""
    return count - (count - 1) % 4


def at_rate(film: Film, fps: int | Fraction) -> "Iterator[tuple[int, VideoFrame]]":
    """Yield the frame in the middle of each period of 1 / fps seconds, with its index, from here on."""
    current: VideoFrame | None = None
    index = -1
    for time, frame in film.frames():
        if current is None:
            index = max(0, -((Fraction(1, 2) - time * fps) // 1))
        while current is not None and Fraction(2 * index + 1, 2 * fps) < time:
            yield index, current
            index += 1
        current = frame
    has_yielded = False
    while current is not None and (not has_yielded or Fraction(2 * index + 1, 2 * fps) < film.end):
        yield index, current
        index += 1
        has_yielded = True
