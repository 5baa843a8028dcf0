"""Small videos as cameras, phones, browsers and editors write them, and what a player shows of them."""

import struct
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any, cast

import av
import numpy as np
from av.container import OutputContainer
from av.stream import Disposition
from av.video.stream import VideoStream

RED, GREEN, BLUE, WHITE = (200, 30, 30), (30, 200, 30), (30, 30, 200), (255, 255, 255)
_EXACT = {"preset": "ultrafast", "crf": "4", "x265-params": "log-level=none"}


def flat(colour: tuple[int, ...] = RED, size: tuple[int, int] = (192, 128)) -> np.ndarray:
    """Return a picture of one colour, (height, width, 3 or 4) bytes."""
    return np.broadcast_to(np.array(colour, np.uint8), (size[1], size[0], len(colour)))


def corners(size: tuple[int, int] = (192, 128)) -> np.ndarray:
    """Draw a blue picture whose upper left quarter is white, and whose lower left quarter is red."""
    width, height = size
    picture = flat(BLUE, size).copy()
    picture[: height // 2, : width // 2] = WHITE
    picture[height // 2 :, : width // 2] = RED
    return picture


BT709 = {"color_primaries": 1, "color_trc": 1, "colorspace": 1, "color_range": 1}


def facts_of(path: Path) -> tuple[int, Fraction | None, Fraction, dict[str, int]]:
    """Return the number of frames of a film, their rate, seconds, and the tags of its colours."""
    with av.open(path) as container:
        stream = container.streams.video[0]
        frames = [*container.decode(stream)]
        tags = {name: int(getattr(stream.codec_context, name)) for name in BT709}
        times = [Fraction(frame.pts or 0) * (frame.time_base or 0) for frame in frames]
        length = times[-1] - times[0] + (1 / stream.average_rate if stream.average_rate else 0)
        stated = (stream.duration or 0) * (stream.time_base or 0) or Fraction(
            container.duration or 0, 1_000_000
        )
        assert abs(stated - length) < 1.5 * length / len(frames), "the file states another length"
        return len(frames), stream.average_rate, length, tags


Adds = Callable[[OutputContainer], Callable[[], None]]
"""What adds a stream to a file, and returns what writes it: all streams come before the first packet."""


def write_film(path: Path, pictures: Sequence[np.ndarray] = (flat(),) * 30, **changes: Any) -> Path:
    """Write a film with the arguments of `adds_film`.

    Args:
        changes: Besides, `file_options`, `container_format`, and `first`, which adds a stream in front of
            the film.
    """
    options, first = changes.pop("file_options", None), changes.pop("first", None)
    form = changes.pop("container_format", None)
    streams = [*filter(None, [first]), adds_film(pictures, **changes)]
    return write_streams(path, *streams, options=options, form=form)


def write_streams(
    path: Path, *streams: Adds, options: dict[str, str] | None = None, form: str | None = None
) -> Path:
    with av.open(path, "w", options=options or {}, format=form) as container:
        for write in [add(container) for add in streams]:
            write()
    return path


def adds_film(
    pictures: Sequence[np.ndarray], *, codec: str = "libx264", form: str = "yuv420p", rate: int = 30,
    times: Sequence[int] = (), options: dict[str, str] | None = None, disposition: int | None = None,
    **changes: Any,
) -> Adds:  # fmt: skip
    """Return what adds a film.

    Args:
        times: Those of the pictures, in frames; by default they follow each other.
        changes: Attributes of the codec's context, such as `color_range`, or `colorspace`, by which the
            pictures are converted.
    """

    def add(container: OutputContainer) -> Callable[[], None]:
        stream = cast(VideoStream, container.add_stream(codec, rate=rate, options=options or _EXACT))
        stream.height, stream.width, stream.pix_fmt = *pictures[0].shape[:2], form
        if disposition is not None:
            stream.disposition = Disposition(disposition)
        for name, value in changes.items():
            setattr(stream.codec_context, name, value)
        return partial(write, container, stream)

    def write(container: OutputContainer, stream: VideoStream) -> None:
        for number, picture in enumerate(pictures):
            frame = av.VideoFrame.from_ndarray(
                np.ascontiguousarray(picture), format="rgba" if picture.shape[2] == 4 else "rgb24"
            ).reformat(
                format=form,
                dst_colorspace=changes.get("colorspace"),
                dst_color_range=changes.get("color_range"),
            )
            for name in ("color_range", "colorspace", "color_primaries", "color_trc"):
                setattr(frame, name, changes.get(name, getattr(frame, name)))
            frame.pts, frame.time_base = times[number] if times else number, Fraction(1, rate)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))

    return add


def adds_sound(seconds: float, rate: int = 8000) -> Adds:
    """Return what adds silence."""

    def add(container: OutputContainer) -> Callable[[], None]:
        stream: Any = container.add_stream("aac", rate=rate)
        stream.layout = "mono"

        def write() -> None:
            silence = av.AudioFrame.from_ndarray(
                np.zeros((1, int(seconds * rate)), np.float32), "fltp", "mono"
            )
            silence.sample_rate, silence.pts = rate, 0
            container.mux([*stream.encode(silence), *stream.encode(None)])

        return write

    return add


def adds_cover(container: OutputContainer) -> Callable[[], None]:
    """Add a green picture of 300 by 300 pixels as a cover."""
    stream = cast(VideoStream, container.add_stream("mjpeg", rate=1))
    stream.width, stream.height, stream.pix_fmt = 300, 300, "yuvj420p"
    stream.disposition = Disposition.attached_pic

    def write() -> None:
        frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(flat(GREEN, (300, 300))), format="rgb24")
        container.mux(stream.encode(frame.reformat(format="yuvj420p")))
        container.mux(stream.encode(None))

    return write


def comb(number: int, size: tuple[int, int] = (192, 128)) -> np.ndarray:
    """Draw a square that moves, of which the odd lines are half a frame later."""
    picture = np.full((size[1], size[0], 3), 40, np.uint8)
    for field in range(2):
        left = 16 + 8 * number + 4 * field
        picture[32 + field : 96 : 2, left : left + 48] = 230
    return picture


def with_cover_first(path: Path) -> Path:
    """Write an MP4 whose first stream is a cover: its metadata come before its tracks."""
    content = write_film(path, first=adds_cover).read_bytes()
    track, notes = content.index(b"trak") - 4, content.index(b"udta") - 4
    end = notes + int.from_bytes(content[notes : notes + 4])
    path.write_bytes(content[:track] + content[notes:end] + content[track:notes] + content[end:])
    return path


def with_matrix(path: Path, *signs: int) -> Path:
    """Give an MP4 the display matrix a b / c d, of which each is -1, 0 or 1."""
    content = bytearray(path.read_bytes())
    place = content.index(b"tkhd") + 44
    a, b, c, d = (sign * 2**16 for sign in signs)
    content[place : place + 36] = struct.pack(">9i", a, b, 0, c, d, 0, 0, 0, 2**30)
    path.write_bytes(content)
    return path


def replaced(content: bytes, marker: bytes, offset: int, new: bytes) -> bytes:
    """Replace bytes at a place relative to the end of a marker."""
    place = content.index(marker) + len(marker) + offset
    return content[:place] + new + content[place + len(new) :]
