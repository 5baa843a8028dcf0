"""A video as a GIF with a palette of its own, so small that a chat takes it."""

import math
from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import chain
from pathlib import Path
from typing import Any

import av
from av.video.frame import VideoFrame
from PIL import Image

from diffusers_helper.finish.filters import filtered

MAX_BYTES, MAX_SIDE = 10_000_000, 480  # the most that most chats take
_MIN_SIDE = 100
_UNIT = Fraction(1, 100)  # of the times in a GIF, in seconds
# Viewers show frames of less than two units more slowly than they should be.
_DELAY, _LONG_DELAY, _LONG_SECONDS = 5, 10, 10


def rate_of(seconds: Fraction, rate: Fraction) -> Fraction:
    """Choose the frames in a second, each of which is shown for whole units; a long video has fewer."""
    return 1 / (_UNIT * max(_LONG_DELAY if seconds > _LONG_SECONDS else _DELAY, round(100 / rate)))


def write_gif(
    pictures: Callable[[], Iterator[Image.Image]], target: Path, count: int, rate: Fraction,
    side: int = MAX_SIDE,
) -> Iterator[tuple[int, int]]:  # fmt: skip
    """Write pictures, which are read twice, and again smaller if that has too many bytes.

    Yields:
        The pictures that are done, and how many there are.
    """

    def frames() -> Iterator[VideoFrame]:
        for index, picture in enumerate(pictures()):
            picture.thumbnail((side, side), Image.Resampling.LANCZOS)
            frame = VideoFrame.from_image(picture)
            frame.pts, frame.time_base = index * int(100 / rate), _UNIT
            yield frame

    def is_too_large() -> bool:
        return side > _MIN_SIDE and target.stat().st_size > MAX_BYTES

    *_, palette = filtered(frames(), "palettegen")  # of the colours that suit all frames
    coloured = filtered(frames(), "paletteuse", "diff_mode=rectangle", palette)
    first = next(coloured)
    with av.open(target, "w", format="gif", options={"fflags": "+bitexact"}) as output:
        stream: Any = output.add_stream("gif", rate=rate)
        stream.pix_fmt, stream.codec_context.time_base = "pal8", _UNIT
        stream.width, stream.height = first.width, first.height
        done = 0
        for done, frame in enumerate(chain([first], coloured), 1):
            output.mux(stream.encode(frame))
            yield done, max(done, count)
            if is_too_large():
                break
        output.mux(stream.encode(None))
    if is_too_large():
        smaller = int(max(first.width, first.height) * max(0.4, 0.8 * math.sqrt(done / count)))
        yield from write_gif(pictures, target, count, rate, smaller)
