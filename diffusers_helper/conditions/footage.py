"""The video that a new one continues: its frames at the new one's rate, and what is wrong with a file.

Frames are taken by time, so a video of any or of a changing rate keeps its speed. They are upright RGB with 8
bits and square pixels; high dynamic range (PQ and HLG) is mapped to the standard one. What cannot be decoded
is left out. Functions raise PictureError for a video that cannot be used.
"""

from __future__ import annotations

import stat
from collections import deque
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from diffusers_helper.conditions.picture import MIN_SIDE, plain_png
from diffusers_helper.errors import PictureError
from diffusers_helper.families.packing import FPS
from diffusers_helper.untrusted.confined import confined

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

MAX_BYTES, MAX_SECONDS, MAX_PIXELS = 4 * 2**30, 600.0, 4096 * 2304
# Protocols and formats that refer to other files or addresses are left out.
FORMATS = ("mov", "matroska", "avi", "mpegts", "mpeg", "flv", "asf", "ogg", "gif")
_PQ, _HLG, _BT2020 = 16, 18, 9  # the codes of the two high ranges and of BT.2020 in ITU-T H.273
_CONVERT = "Convert it to MP4 with H.264."
_PER_SECOND = 1_000_000  # AV_TIME_BASE of FFmpeg


@dataclass(frozen=True, slots=True)
class Footage:
    """The length of a video, and its last frame as a PNG file."""

    seconds: float
    last_frame: bytes


@confined
def read_footage(path: Path) -> Footage:
    with opened(path) as (container, _):
        seconds = _seconds(container)
    return Footage(seconds, plain_png(last_frames(path, 1)[-1]))


def last_frames(path: Path, count: int, fps: int = FPS) -> list[Image.Image]:
    """Read up to `count` frames from the end of a video, in order."""
    frames = _last_frames(path, count, fps, is_near=True)
    # Fewer frames mean that the video is short, or that its index or its times are wrong.
    return frames if len(frames) == count else _last_frames(path, count, fps, is_near=False)


def _last_frames(path: Path, count: int, fps: int, *, is_near: bool) -> list[Image.Image]:
    with opened(path) as (container, name):
        start_seconds = _seconds(container) - (count + 1) / fps - 1 if is_near else 0
        if start_seconds > 0:
            container.seek(int(start_seconds * _PER_SECOND + (container.start_time or 0)), backward=True)
        frames = deque(_at_rate(container, name, fps), maxlen=count)
        if not frames and not is_near:
            raise _empty(name)
        return [_to_picture(frame, _pixel_aspect_ratio(container)) for frame in frames]


def first_frames(path: Path, count: int, fps: int = FPS) -> list[Image.Image]:
    with closing(all_frames(path, fps)) as frames:
        return [*islice(frames, count)]


def all_frames(path: Path, fps: int = FPS) -> Generator[Image.Image]:
    """Yield all frames of a video."""
    with opened(path) as (container, name):
        frame = None
        for frame in _at_rate(container, name, fps):
            yield _to_picture(frame, _pixel_aspect_ratio(container))
        if frame is None:
            raise _empty(name)


def _empty(name: str) -> PictureError:
    return PictureError(f"{name} has no frame that can be decoded.", _CONVERT)


def largest_encodable(count: int) -> int:
    """Find the largest number up to `count` that is 4 n + 1, as a causal VAE encodes."""
    return count - (count - 1) % 4


@contextmanager
def opened(path: Path) -> Generator[tuple[InputContainer, str]]:
    """Yield a video whose headers were checked, and the name for it in messages."""
    # The page, which only asks another process for a video, would take longer to start with PyAV.
    import av
    from av.error import FFmpegError

    name = f"The video {path.name}"
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise PictureError(f"{name} is not a file; expected a video.", "Choose a file.")
        if status.st_size > MAX_BYTES:
            size, limit = f"{status.st_size / 2**30:.1f} GiB", f"{MAX_BYTES // 2**30} GiB"
            raise PictureError(f"{name} has {size}; expected at most {limit}.", "Cut its beginning off.")
        with av.open(path, options={"protocol_whitelist": "file"}) as container:
            _check(container, name)
            yield container, name
    except (FFmpegError, OSError, ValueError) as error:
        if isinstance(error, PictureError):
            raise
        reason = getattr(error, "strerror", None) or error
        remedy = _CONVERT if path.is_file() else "Choose another file."
        raise PictureError(f"{name} cannot be read ({reason}); expected a video.", remedy) from error


def _check(container: InputContainer, name: str) -> None:
    if not {*container.format.name.split(",")} & {*FORMATS}:
        raise PictureError(f"{name} is no MP4, MOV, WebM, MKV or AVI.", _CONVERT)
    if not container.streams.video:
        raise PictureError(f"{name} has no picture; expected a video.", "Choose another file.")
    stream = container.streams.video[0]
    seconds = _seconds(container)
    if stream.width * stream.height > MAX_PIXELS or min(stream.width, stream.height) < MIN_SIDE:
        raise PictureError(
            f"{name} has {stream.width}x{stream.height} pixels; expected at least {MIN_SIDE} each way and at "
            f"most {MAX_PIXELS / 1e6:.1f} million.",
            "Scale it.",
        )
    if seconds > MAX_SECONDS:
        problem = f"{name} has {seconds:.0f} s; expected at most {MAX_SECONDS:.0f}."
        raise PictureError(problem, "Cut its beginning off.")
    stream.thread_type = "AUTO"


def _seconds(container: InputContainer) -> float:
    return (container.duration or 0) / _PER_SECOND


def _at_rate(container: InputContainer, name: str, fps: int) -> Iterator[VideoFrame]:
    """Yield the frame in the middle of each period of 1 / fps seconds, from where the container is on."""
    stream = container.streams.video[0]
    unit = stream.time_base or Fraction(1, _PER_SECOND)
    origin = (stream.start_time or 0) * unit
    default_duration = 1 / stream.average_rate if stream.average_rate else Fraction(1, fps)
    current: VideoFrame | None = None
    index = -1
    end = Fraction(0)
    for frame in _decoded(container, stream):
        time = frame.pts * unit - origin if frame.pts is not None else end
        if current is None:
            index = max(0, -((Fraction(1, 2) - time * fps) // 1))
        while current is not None and Fraction(2 * index + 1, 2 * fps) < time:
            yield current
            index += 1
        current = frame
        end = time + (frame.duration * unit if frame.duration else default_duration)
        if end > MAX_SECONDS + 1:
            raise PictureError(f"{name} is longer than {MAX_SECONDS:.0f} s.", "Cut its beginning off.")
    has_yielded = False
    while current is not None and (not has_yielded or Fraction(2 * index + 1, 2 * fps) < end):
        yield current
        index += 1
        has_yielded = True


def _decoded(container: InputContainer, stream: VideoStream) -> Iterator[VideoFrame]:
    from av.error import InvalidDataError

    for packet in container.demux(stream):
        with suppress(InvalidDataError):
            yield from packet.decode()


def _pixel_aspect_ratio(container: InputContainer) -> float:
    return float(container.streams.video[0].sample_aspect_ratio or 1)


def _to_picture(frame: VideoFrame, pixel_aspect_ratio: float) -> Image.Image:
    """Convert a frame to RGB, upright and with square pixels."""
    from av.video.reformatter import Interpolation

    flags = int(Interpolation.BICUBIC | Interpolation.ACCURATE_RND | Interpolation.BITEXACT)
    pixels = frame.reformat(format="rgb24", interpolation=flags, threads=1).to_ndarray()
    if frame.color_trc in _LIGHT:
        pixels = _tone_map(_LIGHT[frame.color_trc](pixels), is_wide=frame.color_primaries == _BT2020)
    picture = Image.fromarray(pixels)
    if pixel_aspect_ratio != 1:
        size = max(1, round(picture.width * pixel_aspect_ratio)), picture.height
        picture = picture.resize(size, Image.Resampling.LANCZOS)
    turns = {90: Image.Transpose.ROTATE_90, 180: Image.Transpose.ROTATE_180, 270: Image.Transpose.ROTATE_270}
    turn = turns.get(round(frame.rotation) % 360)
    return picture if turn is None else picture.transpose(turn)


_VALUES = np.arange(256, dtype=np.float32) / 255
_LUMA = np.array([0.2627, 0.6780, 0.0593], np.float32)  # of BT.2020
_TO_BT709 = np.array(
    [[1.6605, -0.5876, -0.0728], [-0.1246, 1.1329, -0.0083], [-0.0182, -0.1006, 1.1187]], np.float32
)
_WHITE_NITS = 203  # of a white surface (ITU-R BT.2408)
_MAX_NITS = 1000  # of the light that is shown as white
_KNEE = 0.5  # the share of a white surface's light up to which brightness stays as it is


def _pq_light(pixels: np.ndarray) -> np.ndarray:
    """Convert PQ values (ITU-R BT.2100) to light in nits."""
    power = _VALUES ** (1 / 78.84375)
    ratio = np.maximum(power - 0.8359375, 0) / (18.8515625 - 18.6875 * power)
    return (10000 * ratio ** (1 / 0.1593017578125))[pixels]


def _hlg_light(pixels: np.ndarray) -> np.ndarray:
    """Convert HLG values (ITU-R BT.2100) to light in nits on a screen of 1000 nits."""
    bright = (np.exp((_VALUES - 0.55991073) / 0.17883277) + 0.28466892) / 12
    scene = np.where(_VALUES <= 0.5, _VALUES**2 / 3, bright)[pixels]
    return 1000 * scene * (scene @ _LUMA)[..., None] ** 0.2


_LIGHT = {_PQ: _pq_light, _HLG: _hlg_light}


def _tone_map(nits: np.ndarray, *, is_wide: bool) -> np.ndarray:
    """Convert light in nits to the picture, (H, W, 3) bytes, that a standard screen shows.

    What is brighter than the knee is compressed by an extended Reinhard curve, which continues the straight
    line without a bend. It is applied to the brightest channel, which keeps the hue.
    """
    light = nits / _WHITE_NITS
    if is_wide:
        light = np.maximum(light @ _TO_BT709.T, 0)
    brightest = light.max(-1, keepdims=True)
    headroom = 1 - _KNEE
    excess = np.maximum(brightest - _KNEE, 0) / headroom
    max_excess = np.maximum(_MAX_NITS / _WHITE_NITS - _KNEE, 0) / headroom
    compressed = headroom * excess * (1 + excess / max_excess**2) / (1 + excess)
    light = light * (np.minimum(brightest, _KNEE) + compressed) / np.maximum(brightest, 1e-9)
    return (255 * np.clip(light, 0, 1) ** (1 / 2.2) + 0.5).astype(np.uint8)
