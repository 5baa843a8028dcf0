"""A video in another format: MP4 with three codecs, WebM, GIF, PNG frames in a ZIP file, or a single frame.

Frames are taken as a player shows them, at the video's own rate. Nothing is random and the number of threads
is fixed, so the same video gives the same bytes again. The recipe goes along wherever the format has a place
for it.
"""

import heapq
import io
import math
import shutil
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import chain, islice
from pathlib import Path
from typing import Any, cast

import av
import numpy as np
from av.container import OutputContainer
from av.error import FFmpegError
from av.packet import Packet
from PIL import Image

from diffusers_helper.conditions.film import open_container, opened
from diffusers_helper.conditions.footage import all_frames, at_rate
from diffusers_helper.conditions.video_frame import to_picture
from diffusers_helper.errors import InputError
from diffusers_helper.files import replacing
from diffusers_helper.output import gif
from diffusers_helper.output.video import converted, decoding_time, prepare_codec
from diffusers_helper.provenance.metadata import append_pictures, png_chunks, read_embedded
from diffusers_helper.provenance.zips import sized_entry, stored_zip

_BITEXACT = {"fflags": "+bitexact"}
_BITS_PER_PIXEL = 0.12  # for encoders on a card, which share no scale of quality
_SOUND_BITS = 128_000  # in a second, by default
_SAMPLE_FRAMES, _SAMPLE_PIXELS = 17, 8_000_000  # that are encoded to estimate a size
_KEY_FRAMES = 200  # about how many frames encoders put between two of them


@dataclass(frozen=True, slots=True)
class Format:
    label: str
    suffix: str
    encoder: str = ""
    options: Mapping[str, str] = field(default_factory=dict[str, str])


# With B-frames, x265 leaves the times of very short videos undefined.
_X265 = {"x265-params": "log-level=error:pools=4:frame-threads=1:bframes=0"}
_SVT = {"svtav1-params": "lp=2"}
_CARDS = {"nvenc": "Nvidia's NVENC", "amf": "AMD's AMF", "qsv": "Intel's Quick Sync"}
FORMATS = {
    "h264": Format("MP4, H.264", ".mp4", "libx264", {"preset": "medium", "crf": "16"}),
    "hevc": Format("MP4, HEVC", ".mp4", "libx265", {"crf": "18", **_X265}),
    "av1": Format("MP4, AV1", ".mp4", "libsvtav1", {"crf": "22", "preset": "7", **_SVT}),
    "vp9": Format("WebM, VP9", ".webm", "libvpx-vp9", {"crf": "18", "b": "0", "cpu-used": "3"}),
    "gif": Format("GIF", ".gif"),
    "png": Format("PNG frames, ZIP", ".zip"),
    "frame": Format("One frame, PNG", ".png"),
    **{
        f"{codec}_{card}": Format(f"MP4, {label} by {name}", ".mp4", f"{codec}_{card}")
        for card, name in _CARDS.items()
        for codec, label in (("h264", "H.264"), ("hevc", "HEVC"), ("av1", "AV1"))
    },
}  # fmt: skip
Progress = tuple[int, int]
"""The frames that are done, and about how many there are."""


def format_of(target: Path, codec: str = "") -> str:
    """Name the format of a file by its ending, and by a codec for an MP4."""
    suffix = target.suffix.lower()
    names = [name for name, form in FORMATS.items() if form.suffix == suffix]
    if not names:
        endings = ", ".join(dict.fromkeys(form.suffix for form in FORMATS.values()))
        raise InputError(
            f"{target.name} has no known ending; expected one of {endings}.", "Name another file."
        )
    if codec and codec not in names:
        raise InputError(
            f"codec is {codec!r}; expected {', '.join(names)} for {suffix}.", "Choose another one."
        )
    return codec or names[0]


class _Source:
    """The video to export, with its frames at a constant rate, and the recipe in it."""

    def __init__(self, path: Path) -> None:
        with opened(path, math.inf) as film:
            self.rate = film.stream.average_rate or Fraction(30)
            self.is_h264 = film.stream.codec_context.name == "h264" and "mp4" in film.container.format.name
            sounds = film.container.streams.audio[:1]
            self.sound_bits = sum(min(sound.bit_rate or _SOUND_BITS, _SOUND_BITS) for sound in sounds)
            self.count = max(1, round(max(film.times(), default=0) * self.rate))
        embedded = None
        with suppress(InputError), path.open("rb") as file:  # a damaged recipe stays behind
            embedded = read_embedded(file)
        self.recipe, self.pictures = embedded or (None, {})
        self.path = path
        self.seconds = self.count / self.rate

    def frames(self, rate: Fraction | None = None) -> Generator[Image.Image]:
        return all_frames(self.path, rate or self.rate, math.inf)

    def sample(self, rate: Fraction) -> list[Image.Image]:
        """Take successive frames from the middle, or fewer large ones."""
        with opened(self.path, math.inf) as film:
            film.seek(self.count // 2 / self.rate)
            most = min(_SAMPLE_FRAMES, max(2, _SAMPLE_PIXELS // (film.stream.width * film.stream.height)))
            return [to_picture(frame, film) for _, frame in islice(at_rate(film, rate), most)]


def estimated_bytes(video: Path, name: str) -> int | None:
    """Estimate the size of a video in a format by encoding a part of it; None if this fails on this machine.

    A library has the encoders of cards that this machine lacks, so each one is tried like this.
    """
    source, form = _Source(video), FORMATS[name]
    if name == "h264" and source.is_h264:
        return video.stat().st_size
    if name == "png":
        return frames_zip(video)[0]
    rate = gif.rate_of(source.seconds, source.rate) if name == "gif" else source.rate
    with suppress(FFmpegError, ValueError, OSError), ExitStack() as stack:
        container = av.open(io.BytesIO(), "w", format=form.suffix[1:])
        stack.callback(container.close)
        sample = source.sample(rate)
        packets = (
            gif.encoded(container, lambda: map(Image.Image.copy, sample), rate)
            if name == "gif"
            else _encoded(container, sample, form, rate)
        )
        first, *others = (packet.size for packet in packets)
        count = source.seconds * rate
        num_first = math.ceil(count / _KEY_FRAMES)
        size = first * num_first + sum(others) / max(1, len(others)) * (count - num_first)
        if name == "gif":
            return round(min(gif.MAX_BYTES, size))
        kept = sum(map(len, source.pictures.values())) if form.suffix == ".mp4" else 0
        return round(size + len(source.recipe or b"") + kept + source.sound_bits / 8 * source.seconds)
    return None


def exported(video: Path, target: Path, name: str = "", *, at: float = 0.0) -> Iterator[Progress]:
    """Write a video in a format to a file, which is there when the iterator has ended.

    Args:
        at: For a single frame, its time in seconds.

    Raises:
        InputError: If the video cannot be read, the format cannot be written here, or there is too much.
    """
    name = name or format_of(target)
    source, form = _Source(video), FORMATS[name]
    if form.encoder and estimated_bytes(video, name) is None:
        raise InputError(f"{form.label} cannot be written on this machine.", "Choose another format.")
    with replacing(target) as temporary:
        if name == "h264" and source.is_h264:
            shutil.copyfile(video, temporary)
        elif name == "frame":
            _write_frame(source, temporary, at)
        elif name == "gif":
            rate = gif.rate_of(source.seconds, source.rate)
            count = max(1, round(source.seconds * rate))
            yield from gif.write_gif(lambda: source.frames(rate), temporary, count, rate)
        elif name == "png":
            with temporary.open("wb") as file:
                for number, part in enumerate(frames_zip(video)[1], 1):
                    file.write(part)
                    yield min(number, source.count), source.count
        else:
            yield from _write_film(source, temporary, form)


def _write_film(source: _Source, target: Path, form: Format) -> Iterator[Progress]:
    is_mp4 = form.suffix == ".mp4"
    options = _BITEXACT | ({"movflags": "+faststart"} if is_mp4 else {})
    with ExitStack() as stack:
        frames = stack.enter_context(closing(source.frames()))
        container = stack.enter_context(open_container(source.path))
        output = stack.enter_context(av.open(target, "w", format=form.suffix[1:], options=options))
        if source.recipe is not None:
            output.metadata["comment"] = source.recipe.decode("utf-8", "replace")
        film = _encoded(output, frames, form, source.rate)
        sound = _sound(container, output, is_mp4)
        done = 0
        for packet in heapq.merge(film, sound, key=decoding_time):
            done += packet.stream.type == "video"
            output.mux(packet)
            yield max(1, done), max(1, done, source.count)
    if is_mp4:
        append_pictures(target, source.pictures)


def _encoded(
    container: OutputContainer, pictures: Iterable[Image.Image], form: Format, rate: Fraction
) -> Iterator[Packet]:
    """Add a stream at once, and return its packets: all streams must be there before the first packet."""
    pictures = iter(pictures)
    first = next(pictures)
    size = first.width - first.width % 2, first.height - first.height % 2  # 4:2:0 has pairs of pixels
    stream = cast(Any, container.add_stream(form.encoder, rate=rate, options=dict(form.options)))
    codec: Any = stream.codec_context
    prepare_codec(codec, *size, 1 / rate)
    if form.encoder == "libx265":
        codec.codec_tag = "hvc1"  # Apple's players know no other name
    if not form.options:  # it is on a card
        codec.pix_fmt = "nv12"
        codec.bit_rate = int(size[0] * size[1] * rate * _BITS_PER_PIXEL)
    cut = (np.asarray(picture)[: size[1], : size[0]] for picture in chain([first], pictures))
    return chain.from_iterable(map(stream.encode, chain(converted(cut, codec.time_base), [None])))


def _sound(source: Any, output: OutputContainer, is_mp4: bool) -> Iterator[Packet]:
    """Encode the sound again, after adding its stream at once."""
    if not source.streams.audio:
        return iter(())
    stream: Any = output.add_stream("aac" if is_mp4 else "libopus", rate=48000, layout="stereo")
    frames = chain(source.decode(source.streams.audio[0]), [None])
    # PyAV resamples to what the encoder takes.
    return chain.from_iterable(map(stream.encode, frames))


def frames_zip(video: Path) -> tuple[int, Iterator[bytes]]:
    """Return the size of a ZIP file of a video's frames and recipe, and its parts.

    The frames are PNG files without compression, so that their size is known before they are there.
    """
    source = _Source(video)
    frames = source.frames()
    first = next(frames)
    contents, size = map(_png, chain([first], frames)), len(_png(first))
    names = (f"{number:05}.png" for number in range(1, source.count + 1))
    entries = [sized_entry(name, size, islice(contents, 1)) for name in names]
    if source.recipe is not None:
        entries.insert(0, sized_entry("recipe.json", len(source.recipe), [source.recipe]))
    return stored_zip(entries)


def _png(picture: Image.Image) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, "PNG", compress_level=0)
    return buffer.getvalue()


def _write_frame(source: _Source, target: Path, at: float) -> None:
    with closing(source.frames()) as frames:
        picture = next(islice(frames, max(0, int(at * source.rate + Fraction(1, 1000))), None), None)
    if picture is None:
        raise InputError(f"{source.path.name} has no frame at {at:g} s.", "Choose an earlier time.")
    recipe = png_chunks(source.recipe.decode(), source.pictures) if source.recipe is not None else None
    picture.save(target, "PNG", pnginfo=recipe)
