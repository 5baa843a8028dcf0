"""The film of a file: the stream that a player shows, and its frames in their order, with their times.

A file of a stranger is opened by FFmpeg's readers of the common containers alone, and follows no reference to
other files or addresses. What cannot be decoded is left out. Functions raise PictureError for a file that
cannot be used.
"""

from __future__ import annotations

import stat
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from fractions import Fraction
from itertools import chain, groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from diffusers_helper.conditions.picture_file import MIN_SIDE
from diffusers_helper.errors import PictureError
from diffusers_helper.families.packing import FPS
from diffusers_helper.finish.filters import filtered

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

MAX_BYTES, MAX_SECONDS, MAX_PIXELS = 4 * 2**30, 600, 4096 * 2304
ENDINGS = (
    ".mp4", ".m4v", ".mov", ".3gp", ".3g2", ".mkv", ".webm", ".avi", ".ts", ".mts", ".m2ts", ".mpg", ".mpeg",
    ".vob", ".mod", ".flv", ".wmv", ".asf", ".ogv", ".ogg", ".dv", ".m4a", ".mka", ".wma", ".oga",
)  # fmt: skip
"""The endings of the names of films, and of sound in the same formats, in small letters."""
# Formats that refer to other files or addresses, such as playlists, are left out.
_FORMATS = ("mov", "matroska", "avi", "mpegts", "mpeg", "flv", "asf", "ogg", "dv", "gif", "apng")
_SOUNDS = ("wav", "mp3", "flac", "aac")
_INDEXED = ("mov", "matroska")
_CONVERT = "Convert it to MP4 with H.264."
_PER_SECOND = 1_000_000  # AV_TIME_BASE of FFmpeg
_THREADS = 4  # each takes the memory of a frame more
# FFmpeg's own decoders leave the transparency of these codecs out.
_TRANSPARENT_DECODERS = {"vp8": "libvpx", "vp9": "libvpx-vp9"}


class Film:
    """The film of an open file; `end` is when the last frame so far ends, in seconds from the beginning."""

    def __init__(self, container: InputContainer, name: str, max_seconds: float) -> None:
        stream = picture_stream(container)
        if stream is None:
            raise PictureError(f"{name} has no picture; expected a video.", "Choose another file.")
        self.name, self.container, self.stream = name, container, stream
        self.pixel_aspect_ratio = stream.sample_aspect_ratio or Fraction(1)
        self.may_be_transparent = (container.format.name, stream.codec.name) != ("avi", "rawvideo")
        self.end = Fraction(0)
        self._max_seconds = max_seconds
        self._time_base = stream.time_base or Fraction(1, _PER_SECOND)
        self._origin = (stream.start_time or 0) * self._time_base
        self._check_size(stream.width, stream.height)

    def seek_to_end(self, seconds: float) -> None:
        """Go to where the last `seconds` can be decoded from, or without a length to the last key frame."""
        length = self._stated_seconds or (self.container.duration or 0) / _PER_SECOND or MAX_SECONDS
        self._go_to(Fraction(min(length, MAX_SECONDS) - seconds))

    def seek(self, time: Fraction) -> bool:
        """Go to a key frame before a time, in the formats that know where it is; False for the others."""
        return self.container.format.name.startswith(_INDEXED) and self._go_to(time)

    def _go_to(self, time: Fraction) -> bool:
        from av.error import FFmpegError

        if time > 0:
            with suppress(FFmpegError, OverflowError):
                self.container.seek(int((self._origin + time) / self._time_base), stream=self.stream)
                return True
        return False

    def times(self) -> list[Fraction]:
        self._check_length(self._stated_seconds)
        packets = [packet for packet in self.container.demux(self.stream) if packet.pts is not None]
        periods = sorted(
            (packet.pts or 0, packet.duration or 0) for packet in packets if not packet.is_discard
        )
        times = [pts * self._time_base - self._origin for pts, _ in periods]
        if times:
            rate = self.stream.average_rate or FPS
            times.append(times[-1] + (periods[-1][1] * self._time_base or Fraction(1) / rate))
            self._check_length(float(times[-1]))
        return times

    def _check_length(self, seconds: float) -> None:
        if seconds > self._max_seconds + 1:
            problem = f"{self.name} has {seconds:.0f} s; expected at most {self._max_seconds}."
            raise PictureError(problem, "Cut its beginning off.")

    def frames(self) -> Iterator[tuple[Fraction, VideoFrame]]:
        """Yield each frame from where the file is on, deinterlaced, and its time from the beginning."""
        rate = self.stream.average_rate
        default_duration = 1 / rate if rate else Fraction(1, FPS)
        for frame in _deinterlaced(self._decoded()):
            unit = frame.time_base or self._time_base
            time = self.end if frame.pts is None else frame.pts * unit - self._origin
            self.end = max(self.end, time + (frame.duration * unit if frame.duration else default_duration))
            if self.end > self._max_seconds + 1:
                self._check_length(max(float(self.end), self._stated_seconds))
            yield time, frame

    @property
    def _stated_seconds(self) -> float:
        return float((self.stream.duration or 0) * self._time_base)

    def _decoded(self) -> Iterator[VideoFrame]:
        from av.error import FFmpegError, InvalidDataError

        decoder = _decoder_of(self.stream)
        for packet in self.container.demux(self.stream):
            try:
                frames = decoder.decode(packet)
            except FFmpegError as error:
                # A decoder that refuses a new size has that size, or none.
                self._check_size(decoder.width, decoder.height)
                if not isinstance(error, InvalidDataError):
                    raise
                continue
            for frame in frames:
                self._check_size(frame.width, frame.height)
                yield frame
        self._check_size(decoder.width, decoder.height)

    def _check_size(self, width: int, height: int) -> None:
        """Refuse a size, which may change within a film, or what square pixels make of it."""
        for side in (width, round(width * self.pixel_aspect_ratio)):
            if side * height > MAX_PIXELS or min(side, height) < MIN_SIDE:
                size = f"{side}x{height} pixels" if side * height else "frames of a size that cannot be read"
                raise PictureError(
                    f"{self.name} has {size}; expected at least {MIN_SIDE} pixels each way and at most "
                    f"{MAX_PIXELS / 1e6:.1f} million.",
                    "Scale it.",
                )


@contextmanager
def opened(path: Path, max_seconds: float = MAX_SECONDS) -> Generator[Film]:
    # The page, which only asks another process for a video, would take longer to start with PyAV.
    from av.error import FFmpegError

    name = f"The video {path.name}"
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise PictureError(f"{name} is not a file; expected a video.", "Choose a file.")
        if status.st_size > MAX_BYTES:
            size, limit = f"{status.st_size / 2**30:.1f} GiB", f"{MAX_BYTES // 2**30} GiB"
            raise PictureError(f"{name} has {size}; expected at most {limit}.", "Cut its beginning off.")
        with open_container(path) as container:
            yield Film(container, name, max_seconds)
    except PictureError:
        raise
    except MemoryError as error:
        raise PictureError(f"{name} takes too much memory; expected a smaller video.", _CONVERT) from error
    except (FFmpegError, OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        remedy = _CONVERT if path.is_file() else "Choose another file."
        raise PictureError(f"{name} cannot be read ({reason}); expected a video.", remedy) from error


def open_container(path: Path, *, sounds: bool = False, **options: Any) -> InputContainer:
    """Open a file that refers to nothing outside itself, with further options of `av.open`."""
    import av
    from av.error import ArgumentError

    options["options"] = {
        "format_whitelist": ",".join((*_FORMATS, *(_SOUNDS if sounds else ()))),
        "protocol_whitelist": "file",
    }
    try:
        return cast("InputContainer", av.open(path, metadata_errors="replace", **options))
    except ArgumentError as error:
        raise PictureError(f"The video {path.name} is no MP4, MOV, WebM, MKV or AVI.", _CONVERT) from error


def picture_stream(container: InputContainer) -> VideoStream | None:
    """Choose what a player shows: the first default track that is no cover and no thumbnails."""
    from av.stream import Disposition as Is

    others = Is.attached_pic | Is.timed_thumbnails | Is.still_image | Is.dependent
    tracks = [track for track in container.streams.video if not track.disposition & others]
    decodable = [track for track in tracks if track.codec_context]
    return min(decodable, key=lambda track: not track.disposition & Is.default, default=None)


def _decoder_of(stream: VideoStream) -> Any:
    """Prepare a stream's decoder, which refuses larger frames before it takes memory for them."""
    import av

    decoder: Any = stream.codec_context
    if stream.metadata.get("alpha_mode") == "1" and decoder.name in _TRANSPARENT_DECODERS:
        decoder = av.CodecContext.create(_TRANSPARENT_DECODERS[decoder.name], "r")
        decoder.width, decoder.height = stream.width, stream.height
    decoder.options = {"max_pixels": str(MAX_PIXELS)}
    decoder.thread_type, decoder.thread_count = "AUTO", _THREADS
    return decoder


def _deinterlaced(frames: Iterable[VideoFrame]) -> Iterator[VideoFrame]:
    for _, alike in groupby(frames, lambda frame: (frame.width, frame.height, frame.format.name)):
        for frame in alike:
            if frame.interlaced_frame:
                rest = chain([frame], alike)  # noqa: B031 - nothing is left of it afterwards
                yield from filtered(rest, "bwdif", "mode=send_frame:deint=interlaced")
            else:
                yield frame
