"""A video in another format: MP4 with three codecs, WebM, GIF, PNG frames in a ZIP file, or a single frame.

Frames are taken as a player shows them, at the video's own rate. Nothing is random and the number of threads
is fixed, so the same video gives the same bytes again. The recipe goes along wherever the format has a place
for it.
"""

from __future__ import annotations

import heapq
import io
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import chain, islice
from pathlib import Path
from typing import Any, cast
from zipfile import ZIP64_LIMIT, ZipFile, ZipInfo

import av
import numpy as np
from av.container import OutputContainer
from av.error import FFmpegError
from av.packet import Packet
from PIL import Image

from diffusers_helper.conditions.film import MAX_SECONDS, open_container, opened
from diffusers_helper.conditions.footage import all_frames, last_frames
from diffusers_helper.errors import InputError
from diffusers_helper.files import replacing
from diffusers_helper.output import gif
from diffusers_helper.output.video import converted, prepare_codec
from diffusers_helper.provenance.metadata import Embedded, append_pictures, png_chunks, read_embedded
from diffusers_helper.units import size_text

_BITEXACT = {"fflags": "+bitexact"}
_BITS_PER_PIXEL = 0.12  # for encoders on a card, which share no scale of quality
_TRIAL_SIZE = 256  # encoders on cards refuse very small frames


@dataclass(frozen=True, slots=True)
class Format:
    """A format of an exported video.

    Attributes:
        share: What it takes of the bytes of the video in H.264, roughly; 0 if this has no bearing on it.
    """

    label: str
    suffix: str
    encoder: str = ""
    options: Mapping[str, str] = field(default_factory=dict[str, str])
    share: float = 0.0


# With B-frames, x265 leaves the times of very short videos undefined.
_X265 = {"x265-params": "log-level=error:pools=4:frame-threads=1:bframes=0"}
_SVT = {"svtav1-params": "lp=2"}
_CARDS = {"nvenc": "Nvidia's NVENC", "amf": "AMD's AMF", "qsv": "Intel's Quick Sync"}
FORMATS = {
    "h264": Format("MP4, H.264", ".mp4", "libx264", {"preset": "medium", "crf": "16"}, 1.0),
    "hevc": Format("MP4, HEVC", ".mp4", "libx265", {"crf": "18", **_X265}, 0.4),
    "av1": Format("MP4, AV1", ".mp4", "libsvtav1", {"crf": "22", "preset": "7", **_SVT}, 0.35),
    "vp9": Format("WebM, VP9", ".webm", "libvpx-vp9", {"crf": "18", "b": "0", "cpu-used": "3"}, 0.45),
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


def is_usable(name: str) -> bool:
    """Try a format's encoder by one frame: a library has those of cards that this machine lacks."""
    form = FORMATS[name]
    if not form.encoder:
        return True
    with suppress(FFmpegError, ValueError, OSError), ExitStack() as stack:
        container = av.open(io.BytesIO(), "w", format=form.suffix[1:])
        stack.callback(container.close)
        picture = Image.new("RGB", (_TRIAL_SIZE, _TRIAL_SIZE))
        return any(_encoded(container, [picture], form, picture.size, Fraction(30)))
    return False


def estimated_bytes(video: Path, name: str) -> int:
    """Estimate the size of a video in a format, from its own size and two of its frames."""
    form = FORMATS[name]
    rate, count = _rate_and_count(video)
    with closing(all_frames(video, rate)) as frames:
        samples = [next(frames), *last_frames(video, 1)]
    pixels = samples[0].width * samples[0].height
    if name == "png":
        return round(sum(len(_png(picture)) for picture in samples) / 2 * count)
    if name == "gif":
        for picture in samples:
            picture.thumbnail((gif.MAX_SIDE, gif.MAX_SIDE))
        num_frames = count / rate * 100 / gif.delay_of(count / rate, rate)
        bytes_of_both = sum(len(_png(picture.quantize())) for picture in samples)
        return round(min(gif.MAX_BYTES, bytes_of_both / 2 * num_frames))
    if not form.share:
        return round(pixels * count * _BITS_PER_PIXEL / 8)
    pictures = sum(map(len, _embedded(video)[1].values()))
    return round((video.stat().st_size - pictures) * form.share) + pictures * (form.suffix == ".mp4")


def exported(video: Path, target: Path, name: str = "", *, at: float = 0.0) -> Iterator[Progress]:
    """Write a video in a format to a file, which is there when the iterator has ended.

    Args:
        at: For a single frame, its time in seconds.

    Raises:
        InputError: If the video cannot be read, the format cannot be written here, or there is too much.
    """
    name = name or format_of(target)
    if not is_usable(name):
        raise InputError(
            f"{FORMATS[name].label} cannot be written on this machine.", "Choose another format."
        )
    embedded = _embedded(video)
    with replacing(target) as temporary:
        if name == "h264" and _is_h264(video):
            shutil.copyfile(video, temporary)
        elif name == "frame":
            _write_frame(video, temporary, embedded, at)
        elif name == "gif":
            rate, count = _rate_and_count(video)
            yield from gif.write_gif(video, temporary, count / rate, rate)
        elif name == "png":
            yield from _write_frames(video, temporary, embedded)
        else:
            yield from _write_video(video, temporary, FORMATS[name], embedded)


def _embedded(video: Path) -> Embedded:
    with suppress(InputError), video.open("rb") as file:  # a damaged recipe stays behind
        return read_embedded(file) or (None, {})
    return None, {}


def _is_h264(video: Path) -> bool:
    with opened(video) as film:
        return film.stream.codec_context.name == "h264" and "mp4" in film.container.format.name


def _rate_and_count(video: Path) -> tuple[Fraction, int]:
    """Return the frames per second of a video, and about how many it has."""
    with opened(video) as film:
        rate = film.stream.average_rate or Fraction(30)
        seconds = (film.container.duration or 0) / 1_000_000
        return rate, film.stream.frames or max(1, round(min(seconds, MAX_SECONDS) * rate))


def _write_video(video: Path, target: Path, form: Format, embedded: Embedded) -> Iterator[Progress]:
    done = 0

    def counted(pictures: Iterable[Image.Image], width: int, height: int) -> Iterator[Image.Image]:
        nonlocal done
        for picture in pictures:
            done += 1
            yield picture.crop((0, 0, width, height))

    text, pictures = embedded
    rate, count = _rate_and_count(video)
    is_mp4 = form.suffix == ".mp4"
    options = _BITEXACT | ({"movflags": "+faststart"} if is_mp4 else {})
    with ExitStack() as stack:
        frames = stack.enter_context(closing(all_frames(video, rate)))
        source = stack.enter_context(open_container(video))
        output = stack.enter_context(av.open(target, "w", format=form.suffix[1:], options=options))
        if text is not None:
            output.metadata["comment"] = text.decode("utf-8", "replace")
        first = next(frames)
        size = first.width - first.width % 2, first.height - first.height % 2  # 4:2:0 has pairs of pixels
        film = _encoded(output, counted(chain([first], frames), *size), form, size, rate)
        sound = _sound(source, output, is_mp4)
        for packet in heapq.merge(film, sound, key=_time_of):
            output.mux(packet)
            yield done, max(done, count)
    if is_mp4:
        append_pictures(target, pictures)


def _time_of(packet: Packet) -> Fraction:
    return (packet.dts or packet.pts or 0) * cast(Fraction, packet.time_base)


def _encoded(
    container: OutputContainer,
    pictures: Iterable[Image.Image],
    form: Format,
    size: tuple[int, int],
    rate: Fraction,
) -> Iterator[Packet]:
    """Add a stream at once, and return its packets: all streams must be there before the first packet."""
    stream = cast(Any, container.add_stream(form.encoder, rate=rate, options=dict(form.options)))
    codec: Any = stream.codec_context
    prepare_codec(codec, *size, 1 / rate)
    if form.label.startswith("MP4, HEVC"):
        codec.codec_tag = "hvc1"  # Apple's players know no other name
    if not form.options:  # it is on a card
        codec.pix_fmt = "nv12"
        codec.bit_rate = int(size[0] * size[1] * rate * _BITS_PER_PIXEL)
    frames = converted(map(np.asarray, pictures), codec.time_base)
    return chain.from_iterable(map(stream.encode, chain(frames, [None])))


def _sound(source: Any, output: OutputContainer, is_mp4: bool) -> Iterator[Packet]:
    """Encode the sound again, after adding its stream at once."""
    if not source.streams.audio:
        return iter(())
    stream: Any = output.add_stream("aac" if is_mp4 else "libopus", rate=48000, layout="stereo")
    frames = chain(source.decode(source.streams.audio[0]), [None])
    # PyAV resamples to what the encoder takes.
    return chain.from_iterable(map(stream.encode, frames))


def _write_frames(video: Path, target: Path, embedded: Embedded) -> Iterator[Progress]:
    """Write the frames as PNG files into a ZIP file, uncompressed, with the recipe."""
    rate, count = _rate_and_count(video)
    with ZipFile(target, "w") as archive, closing(all_frames(video, rate)) as frames:
        if embedded[0] is not None:
            archive.writestr(ZipInfo("recipe.json"), embedded[0])
        for number, picture in enumerate(frames, 1):
            content = _png(picture)
            if archive.fp.tell() + len(content) > ZIP64_LIMIT:  # pyright: ignore[reportOptionalMemberAccess]
                raise InputError(
                    f"The frames have more than {size_text(ZIP64_LIMIT)}, which older programs do not open.",
                    "Export a shorter or a smaller video.",
                )
            archive.writestr(ZipInfo(f"{number:05}.png"), content)
            yield number, max(number, count)


def _write_frame(video: Path, target: Path, embedded: Embedded, at: float) -> None:
    rate, _ = _rate_and_count(video)
    with closing(all_frames(video, rate)) as frames:
        picture = next(islice(frames, max(0, int(at * rate + Fraction(1, 1000))), None), None)
    if picture is None:
        raise InputError(f"{video.name} has no frame at {at:g} s.", "Choose an earlier time.")
    text, pictures = embedded
    picture.save(target, "PNG", pnginfo=png_chunks(text.decode(), pictures) if text is not None else None)


def _png(picture: Image.Image) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    return buffer.getvalue()
