"""The video that a new one continues: its frames at the new one's rate, and what is wrong with a file.

Frames are taken by time and not by number, so a video of any or of a changing rate keeps its speed. They are
upright, have square pixels, and are RGB with 8 bits; high dynamic range (PQ and HLG) is mapped to the
standard one. What cannot be decoded, as at the end of a file that was cut off, is left out. Functions raise
PictureError for a video that cannot be used.
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
from diffusers_helper.strangers.confined import confined

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
    """What is known of a video, and its last frame as a PNG file."""

    seconds: float
    last: bytes


@confined
def read_footage(path: Path) -> Footage:
    """Return what is known of a video."""
    with opened(path) as (container, _):
        seconds = _seconds(container)
    return Footage(seconds, plain_png(last_frames(path, 1)[-1]))


def last_frames(path: Path, most: int, fps: int = FPS) -> list[Image.Image]:
    """Return up to so many frames from the end of a video, in order."""
    found = _last_frames(path, most, fps, is_near=True)
    # A short video has no more. Of another one, the index or the times are not what they seem.
    return found if len(found) == most else _last_frames(path, most, fps, is_near=False)


def _last_frames(path: Path, most: int, fps: int, *, is_near: bool) -> list[Image.Image]:
    with opened(path) as (container, name):
        before = _seconds(container) - (most + 1) / fps - 1 if is_near else 0
        if before > 0:
            container.seek(int(before * _PER_SECOND + (container.start_time or 0)), backward=True)
        kept = deque(_at_rate(container, name, fps), maxlen=most)
        if not kept and not is_near:
            raise _empty(name)
        return [_picture(frame, _ratio(container)) for frame in kept]


def first_frames(path: Path, most: int, fps: int = FPS) -> list[Image.Image]:
    """Return up to so many frames from the beginning of a video."""
    with closing(all_frames(path, fps)) as frames:
        return [*islice(frames, most)]


def all_frames(path: Path, fps: int = FPS) -> Generator[Image.Image]:
    """Yield all frames of a video."""
    with opened(path) as (container, name):
        frame = None
        for frame in _at_rate(container, name, fps):
            yield _picture(frame, _ratio(container))
        if frame is None:
            raise _empty(name)


def _empty(name: str) -> PictureError:
    return PictureError(f"{name} has no frame that can be decoded.", _CONVERT)


def in_fours(count: int) -> int:
    """Return the largest number up to `count` that is 4 n + 1, as a causal VAE encodes."""
    return count - (count - 1) % 4


@contextmanager
def opened(path: Path) -> Generator[tuple[InputContainer, str]]:
    """Yield a video that was checked as far as its headers say, and the name for it in messages."""
    # The page, which only asks another process for a video, would take longer to start with PyAV.
    import av
    from av.error import FFmpegError

    name = f"The video {path.name}"
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise PictureError(f"{name} is not a file; expected a video.", "Choose a file.")
        if status.st_size > MAX_BYTES:
            found = f"{name} has {status.st_size / 2**30:.1f} GiB; expected at most {MAX_BYTES // 2**30} GiB."
            raise PictureError(found, "Cut its beginning off.")
        with av.open(path, options={"protocol_whitelist": "file"}) as container:
            _check(container, name)
            yield container, name
    except (FFmpegError, OSError, ValueError) as error:
        if isinstance(error, PictureError):
            raise
        reason = getattr(error, "strerror", None) or error
        raise PictureError(f"{name} cannot be read ({reason}); expected a video.", _CONVERT) from error


def _check(container: InputContainer, name: str) -> None:
    if not {*container.format.name.split(",")} & {*FORMATS}:
        raise PictureError(f"{name} is no MP4, MOV, WebM, MKV or AVI.", _CONVERT)
    if not container.streams.video:
        raise PictureError(f"{name} has no picture; expected a video.", "Choose another file.")
    stream, seconds = container.streams.video[0], _seconds(container)
    if stream.width * stream.height > MAX_PIXELS or min(stream.width, stream.height) < MIN_SIDE:
        raise PictureError(
            f"{name} has {stream.width}x{stream.height} pixels; expected at least {MIN_SIDE} each way and at "
            f"most {MAX_PIXELS / 1e6:.1f} million.",
            "Scale it.",
        )
    if seconds > MAX_SECONDS:
        raise PictureError(
            f"{name} has {seconds:.0f} s; expected at most {MAX_SECONDS:.0f}.", "Cut its beginning off."
        )
    stream.thread_type = "AUTO"


def _seconds(container: InputContainer) -> float:
    return (container.duration or 0) / _PER_SECOND


def _at_rate(container: InputContainer, name: str, fps: int) -> Iterator[VideoFrame]:
    """Yield what is visible in the middle of each period of 1 / fps s, from the place of reading on."""
    stream = container.streams.video[0]
    unit = stream.time_base or Fraction(1, _PER_SECOND)
    origin = (stream.start_time or 0) * unit
    usual = 1 / stream.average_rate if stream.average_rate else Fraction(1, fps)
    held: VideoFrame | None = None
    tick, end = -1, Fraction(0)
    for frame in _decoded(container, stream):
        time = frame.pts * unit - origin if frame.pts is not None else end
        if held is None:
            tick = max(0, -((Fraction(1, 2) - time * fps) // 1))
        while held is not None and Fraction(2 * tick + 1, 2 * fps) < time:
            yield held
            tick += 1
        held, end = frame, time + (frame.duration * unit if frame.duration else usual)
        if end > MAX_SECONDS + 1:
            raise PictureError(f"{name} is longer than {MAX_SECONDS:.0f} s.", "Cut its beginning off.")
    yielded = False
    while held is not None and (not yielded or Fraction(2 * tick + 1, 2 * fps) < end):
        yield held
        tick, yielded = tick + 1, True


def _decoded(container: InputContainer, stream: VideoStream) -> Iterator[VideoFrame]:
    from av.error import InvalidDataError

    for packet in container.demux(stream):
        with suppress(InvalidDataError):
            yield from packet.decode()


def _ratio(container: InputContainer) -> float:
    return float(container.streams.video[0].sample_aspect_ratio or 1)


def _picture(frame: VideoFrame, ratio: float) -> Image.Image:
    """Return a frame upright, with square pixels, as RGB."""
    from av.video.reformatter import Interpolation

    exact = int(Interpolation.BICUBIC | Interpolation.ACCURATE_RND | Interpolation.BITEXACT)
    pixels = frame.reformat(format="rgb24", interpolation=exact, threads=1).to_ndarray()
    if frame.color_trc in _LIGHT:
        pixels = _standard_range(_LIGHT[frame.color_trc](pixels), is_wide=frame.color_primaries == _BT2020)
    picture = Image.fromarray(pixels)
    if ratio != 1:
        size = max(1, round(picture.width * ratio)), picture.height
        picture = picture.resize(size, Image.Resampling.LANCZOS)
    turns = {90: Image.Transpose.ROTATE_90, 180: Image.Transpose.ROTATE_180, 270: Image.Transpose.ROTATE_270}
    turn = turns.get(round(frame.rotation) % 360)
    return picture if turn is None else picture.transpose(turn)


_VALUES = np.arange(256, dtype=np.float32) / 255
_LUMA = np.array([0.2627, 0.6780, 0.0593], np.float32)  # of BT.2020
_TO_BT709 = np.array(
    [[1.6605, -0.5876, -0.0728], [-0.1246, 1.1329, -0.0083], [-0.0182, -0.1006, 1.1187]], np.float32
)
_WHITE, _BRIGHTEST = 203, 1000  # nits of a white surface (ITU-R BT.2408), and of what is shown as white
_KNEE = 0.5  # the share of the light of a white surface up to which all stays as bright as it is


def _pq_light(pixels: np.ndarray) -> np.ndarray:
    """Return the light of PQ values (ITU-R BT.2100) in nits."""
    power = _VALUES ** (1 / 78.84375)
    ratio = np.maximum(power - 0.8359375, 0) / (18.8515625 - 18.6875 * power)
    return (10000 * ratio ** (1 / 0.1593017578125))[pixels]


def _hlg_light(pixels: np.ndarray) -> np.ndarray:
    """Return the light of HLG values (ITU-R BT.2100) on a screen of 1000 nits, in nits."""
    bright = (np.exp((_VALUES - 0.55991073) / 0.17883277) + 0.28466892) / 12
    scene = np.where(_VALUES <= 0.5, _VALUES**2 / 3, bright)[pixels]
    return 1000 * scene * (scene @ _LUMA)[..., None] ** 0.2


_LIGHT = {_PQ: _pq_light, _HLG: _hlg_light}


def _standard_range(nits: np.ndarray, *, is_wide: bool) -> np.ndarray:
    """Return the picture, (H, W, 3) bytes, that a standard screen shows in place of this light.

    What is brighter than the knee is compressed by an extended Reinhard curve, which continues the straight
    line without a bend. It is applied to the brightest channel, which keeps the hue.
    """
    light = nits / _WHITE
    if is_wide:
        light = np.maximum(light @ _TO_BT709.T, 0)
    peak, span = light.max(-1, keepdims=True), 1 - _KNEE
    above, most = (np.maximum(one - _KNEE, 0) / span for one in (peak, _BRIGHTEST / _WHITE))
    shown = np.minimum(peak, _KNEE) + span * above * (1 + above / most**2) / (1 + above)
    light = light * shown / np.maximum(peak, 1e-9)
    return (255 * np.clip(light, 0, 1) ** (1 / 2.2) + 0.5).astype(np.uint8)
