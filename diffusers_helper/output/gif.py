"""A video as a GIF with a palette of its own, so small that a chat takes it."""

import math
from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import chain
from pathlib import Path
from typing import Any

import av
from av.container import OutputContainer
from av.packet import Packet
from av.video.frame import VideoFrame
from PIL import Image

from diffusers_helper.finish.filters import filtered

MAX_BYTES, MAX_SIDE = 10_000_000, 480  # the most that most chats take
_MIN_SIDE = 100
_UNIT = Fraction(1, 100)  # of the times in a GIF, in seconds
# Viewers show frames of less than two units more slowly than they should be.
_DELAY, _LONG_DELAY, _LONG_SECONDS = 5, 10, 10

Pictures = Callable[[], Iterator[Image.Image]]
"""Reads the pictures of a video, which become smaller, from the beginning."""


def rate_of(seconds: Fraction, rate: Fraction) -> Fraction:
    """Choose the frames in a second, each of which is shown for whole units; a long video has fewer."""
    return 1 / (_UNIT * max(_LONG_DELAY if seconds > _LONG_SECONDS else _DELAY, round(100 / rate)))


def write_gif(pictures: Pictures, target: Path, count: int, rate: Fraction) -> Iterator[tuple[int, int]]:
    """Write about `count` pictures, smaller if that has too many bytes, and yield how many are done."""
    side = MAX_SIDE
    while True:
        with av.open(target, "w", format="gif", options={"fflags": "+bitexact"}) as output:
            size = done = 0
            for done, packet in enumerate(encoded(output, pictures, rate, side), 1):
                output.mux(packet)
                size += packet.size
                yield done, max(done, count)
                if size > MAX_BYTES and side > _MIN_SIDE:
                    break
            else:
                return
            stream = output.streams.video[0]
        side = int(max(stream.width, stream.height) * max(0.4, 0.8 * math.sqrt(done / count)))


def encoded(
    output: OutputContainer, pictures: Pictures, rate: Fraction, side: int = MAX_SIDE
) -> Iterator[Packet]:
    def frames() -> Iterator[VideoFrame]:
        for index, picture in enumerate(pictures()):
            picture.thumbnail((side, side), Image.Resampling.LANCZOS)
            frame = VideoFrame.from_image(picture)
            frame.pts, frame.time_base = index * int(100 / rate), _UNIT
            yield frame

    *_, palette = filtered(frames(), "palettegen")  # of the colours that suit all frames
    coloured = filtered(frames(), "paletteuse", "diff_mode=rectangle", palette)
    first = next(coloured)
    stream: Any = output.add_stream("gif", rate=rate)
    stream.pix_fmt, stream.codec_context.time_base = "pal8", _UNIT
    stream.width, stream.height = first.width, first.height
    return chain.from_iterable(map(stream.encode, chain([first], coloured, [None])))
