"""The videos that are finished: what is known of each beforehand, and their frames by index.

Frames are taken by time at a constant rate, so a video of a changing rate keeps its speed. Those of a segment
never depend on what was read before.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from diffusers_helper.conditions.film import Film, opened
from diffusers_helper.conditions.footage import at_rate
from diffusers_helper.conditions.picture_file import fit_picture
from diffusers_helper.conditions.video_frame import to_picture
from diffusers_helper.errors import PictureError
from diffusers_helper.finish.finishing import Finishing
from diffusers_helper.finish.step import Read, Shape
from diffusers_helper.machine.limits import limited_memory
from diffusers_helper.request import GenerationRequest
from diffusers_helper.setting import lines_of
from diffusers_helper.untrusted.confined import confined

if TYPE_CHECKING:
    from av.video.frame import VideoFrame

_USUAL_RATES = 24, 25, 30, 50, 60, 120  # of which a video of a changing rate gets the nearest
_JITTER = 0.2  # the share of a frame's time by which a constant rate may be written inexactly
_LEAD_SECONDS = 1  # key frames are looked for so much earlier, since an index may be of decoding times


@confined
def read_source(path: Path) -> Shape:
    with limited_memory():
        with opened(path) as film:
            times = film.times()
            stated_rate = film.stream.average_rate
            has_sound = any(stream.codec_context for stream in film.container.streams.audio)
            name = film.name
        with opened(path) as film:
            _, frame = next(film.frames(), (None, None))
            if frame is None or len(times) < 2:
                problem = f"{name} has no frame that can be decoded."
                raise PictureError(problem, "Convert it to MP4 with H.264.")
            size = to_picture(frame, film).size
    return Shape(*size, *rate_and_frames(times, stated_rate), has_sound)


def rate_and_frames(times: list[Fraction], stated_rate: Fraction | None) -> tuple[Fraction, int]:
    """Find the rate of a video, which is its own if it is constant, and the number of its frames at it.

    `times` are those of its frames, and of the end.
    """
    *begins, end = (time - times[0] for time in times)
    mean = (begins[-1] / (len(begins) - 1) if begins[1:] else end) or Fraction(1)
    # Times are often in milliseconds.
    for rate in (stated_rate or Fraction(0), Fraction(round(1 / mean)), (1 / mean).limit_denominator(1001)):
        deviations = (abs(begin * rate - index) for index, begin in enumerate(begins))
        if 1 <= rate <= _USUAL_RATES[-1] and max(deviations) <= _JITTER:
            return rate, len(begins)
    period = median([new - old for old, new in pairwise(begins)] or [end]) or 1
    rate = Fraction(min(_USUAL_RATES, key=lambda usual: abs(usual - 1 / period)))
    return rate, max(1, round(end * rate))


def with_sources(request: GenerationRequest, folders: Sequence[Path]) -> GenerationRequest:
    """Add the facts about its videos, and its network in folders, to a finishing, or raise InputError."""
    assert request.finishing
    steps = tuple(step.prepared(folders) for step in request.finishing.others)
    files = request.video, *lines_of(request.join)
    sources = tuple(read_source(Path(file).expanduser()) for file in files)
    return replace(request, finish=str(replace(request.finishing, others=steps).with_sources(sources)))


def source_reader(paths: list[Path], finishing: Finishing) -> Read:
    """Return a reader of frames of the files in the size of the first one, at its rate."""
    shape = finishing.sources[0]

    def pixels_of(frame: "VideoFrame", film: Film) -> np.ndarray:
        picture = to_picture(frame, film)
        if picture.size != (shape.width, shape.height):
            picture = fit_picture(picture, shape.height, shape.width, 0.5, 0.5, 1)
        return np.asarray(picture)

    def read(source: int, indices: Iterable[int]) -> dict[int, np.ndarray]:
        ordered = sorted({*indices})
        for seeks in (True, False):  # the file's index may be wrong
            with opened(paths[source]) as film:
                has_moved = seeks and film.seek(ordered[0] / shape.rate - _LEAD_SECONDS)
                frames = at_rate(film, shape.rate)
                begin, frame = next(frames, (0, None))
                if frame is None or (has_moved and begin > ordered[0]):
                    continue
                index, pixels = begin if has_moved else 0, dict[int, np.ndarray]()
                for wanted in ordered:
                    while index < wanted:
                        index += 1
                        _, frame = next(frames, (0, frame))  # if the video ends early, its last frame stays
                    pixels[wanted] = pixels_of(frame, film)
                return pixels
        return {}

    return read
