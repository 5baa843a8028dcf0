"""The video of a job, which becomes a longer playable MP4 after each section, by encoding only that section.

Frames that can no longer change are encoded once, as a segment with a closed GOP in `segments/`. The playable
file joins the segments by stream copy. Frames that the next section will still change are shown as a
provisional segment. In inverted order new segments go in front of the others.

The same frames give the same bytes on any machine: H.264, yuv420p, bt709 with limited range, faststart.
"""

import heapq
import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, cast

import av
import numpy as np
from av.bitstream import BitStreamFilterContext
from av.codec.context import ThreadType
from av.container import InputContainer, OutputContainer
from av.packet import Packet
from av.video.reformatter import ColorRange, Colorspace, Interpolation, VideoReformatter
from av.video.stream import VideoStream

from diffusers_helper.conditions.film import open_container, picture_stream
from diffusers_helper.families.packing import FPS, Mode
from diffusers_helper.files import file_sha256, link_or_copy, replacing, write_atomic
from diffusers_helper.provenance.branch import read_sums
from diffusers_helper.provenance.job_folder import JobFolder
from diffusers_helper.provenance.metadata import append_pictures
from diffusers_helper.provenance.recipe import Recipe, StoredRecipe

MIN_CRF = 1  # below, x264 uses the lossless profile High 4:4:4 Predictive, which browsers do not play

_X264_PRESET = "medium"
# The number of frame threads changes the stream, so it is fixed and does not depend on the machine.
_THREADS = 4
# A join needs `stitchable`, which makes the headers independent of content and CRF. Equal bytes on all
# machines need `cpu-independent`, which makes x264's choices independent of the instruction set. `mbtree`
# gives fewer bits to frames that no others refer to, such as the last frames of each segment. With it, the
# PSNR of these is up to 3 dB below the mean, which shows as a seam at every join; without it, about 1 dB.
_X264 = "stitchable=1:cpu-independent=1:open-gop=0:mbtree=0"
# Provisional segments are soon replaced, so these options take a sixth of the work, for 0.5 to 1.7 dB less
# PSNR. x264 sets this chroma offset by itself only at higher subme; setting it here keeps the headers the
# same. More than 5 B-frames would change them.
_X264_PROVISIONAL = (
    f"{_X264}:subme=1:me=dia:trellis=0:chroma-qp-offset=-2:rc-lookahead=0:b-adapt=0:scenecut=0"
    ":partitions=none:mixed-refs=0:pbratio=2:bframes=5:threads=1"
)
# The frames by which decoding runs ahead of presentation, with x264's default pyramid of B-frames.
_REORDER_DELAY = 2
_BT709 = 1  # the code of bt709 for primaries, transfer and matrix in ITU-T H.273
# x264 writes its version and options into an SEI unit (NAL type 6).
_STRIP_SEI = "filter_units=remove_types=6"
_BITEXACT = {"fflags": "+bitexact"}
# By default, opening a file decodes its first picture, which takes 15 ms per segment and is not needed here.
_COPY_ONLY: Any = [{"skip_frame": "all"}]  # PyAV's stub asks for strings, its code for dictionaries
_SWSCALE_FLAGS = int(Interpolation.BICUBIC | Interpolation.ACCURATE_RND | Interpolation.BITEXACT)

_VERSION = re.compile(r"video-(\d+)\.mp4")
_NO_FRAMES = np.empty((0, 0, 0, 3), np.uint8)


def prepare_codec(codec: Any, width: int, height: int, time_base: Fraction) -> None:
    """Set size, rate, colours and threads of an encoder for the frames that `converted` gives."""
    codec.width, codec.height, codec.pix_fmt = width, height, "yuv420p"
    codec.time_base = time_base
    codec.color_primaries = codec.color_trc = codec.colorspace = _BT709
    codec.color_range = ColorRange.MPEG
    codec.thread_count, codec.thread_type = _THREADS, ThreadType.FRAME


def converted(frames: Iterable[np.ndarray], time_base: Fraction) -> Iterator[av.VideoFrame]:
    reformatter = VideoReformatter()
    for index, pixels in enumerate(frames):
        frame = reformatter.reformat(
            av.VideoFrame.from_ndarray(np.ascontiguousarray(pixels), format="rgb24"),
            format="yuv420p",
            dst_colorspace=Colorspace.ITU709,
            dst_color_range=ColorRange.MPEG,
            interpolation=_SWSCALE_FLAGS,
            threads=1,
        )
        frame.pts = index
        frame.time_base = time_base
        yield frame


class GrowingVideo:
    """The writer of one job's video, section by section, which continues where an earlier writer ended.

    It writes these files to the folder, each of them atomically:

    - `segments/0001.mp4` and so on, one per section in order of making (empty if it has no final frames);
    - `video-0001.mp4` and so on, the playable version after each section, of which the last two are kept;
    - `segments/sums.json`, the SHA-256 checksums of these files. A file that has changed is made again;
    - `video.mp4`, after `finish()`.

    Attributes:
        latest: The newest playable version; None before the first section.
        sections: The number of sections whose files are complete. After a restart, the next call of
            `add_section` is for section `sections + 1`, and replaces incomplete files of that section.
        warning: A sentence for the user about damaged files; "" if there are none.
        recipe: A function that returns the recipe for each new version; None for versions without one.
        sound: A file whose sound each version gets, as long as it is; None for none.
    """

    def __init__(
        self, folder: Path, *, width: int, height: int, mode: Mode, crf: int,
        fps: int | Fraction = FPS,
    ) -> None:  # fmt: skip
        """Open a folder, which may have the sections of an earlier writer.

        Where a side is no multiple of 16, the stream needs cropping, which some hardware decoders get wrong.
        `crf` is from 0 to 51; 0 counts as 1.
        """
        self._folder = JobFolder(folder.expanduser().absolute())
        self._folder.remove_leftovers()
        self._segment = self._folder.segment
        self._width, self._height = width, height
        self.shape = height, width
        self._mode = mode
        self._crf = max(MIN_CRF, crf)
        self._fps = fps
        self._time_base = 1 / Fraction(fps)
        for subfolder in (self._folder.path, self._folder.segments):  # but not the folder of all jobs
            subfolder.mkdir(exist_ok=True)

        self._checksums = read_sums(self._folder.sums)
        num_recorded = next(n for n in itertools.count(1) if self._segment(n).name not in self._checksums) - 1
        self.recipe: Callable[[], Recipe | StoredRecipe] | None = None
        self.sound: Path | None = None
        self._original: Path | None = None
        self._ends_with_original = False
        version_paths = map(self._version, sorted(self._versions(), reverse=True))
        self.latest = next(filter(self._is_intact, version_paths), None)
        self.frames = _count_frames(self.latest) if self.latest else 0
        # If the newest version is damaged, its section is made again, since the provisional segment that the
        # version needs is gone. A branch has no version of its own yet.
        is_branch = not any(_VERSION.fullmatch(name) for name in self._checksums)
        has_newest = is_branch or self.latest == self._version(num_recorded)
        last_section = num_recorded if has_newest else num_recorded - 1
        damaged = (n for n in range(1, last_section + 1) if not self._is_intact(self._segment(n)))
        self.sections = max(0, next(damaged, last_section + 1) - 1)
        self.warning = ""
        # Without checksums, the first section may just have been interrupted, but not a second one.
        has_unrecorded = not num_recorded and self._segment(2).is_file()
        if self.sections < num_recorded or has_unrecorded:
            self.warning = (
                f"Files of the video so far are damaged, so section {self.sections + 1} and all later ones "
                "are decoded again."
            )

    def join_to(self, original: Path, frames: Iterator[np.ndarray], *, is_last: bool = False) -> str:
        """Put a video before or behind the sections, copied if it has their headers, and say how."""
        self._original = self._folder.segments / "original.mp4"
        self._ends_with_original = is_last
        if self._is_intact(self._original):
            return ""
        first_frame = next(frames)
        self._encode(self._original, [first_frame], _X264)
        with open_container(self._original) as sample, open_container(original) as source:
            is_copied = self._can_copy(source, sample)
        if is_copied:
            with (
                replacing(self._original) as temporary,
                av.open(temporary, "w", format="mp4", options=_BITEXACT) as output,
            ):
                self._copy([original], output)
        else:
            self._encode(self._original, itertools.chain([first_frame], frames), _X264)
        self._checksums[self._original.name] = file_sha256(self._original)
        self._write_checksums()
        if is_copied:
            return "The frames of the video that is continued are copied as they are."
        return (
            "The frames of the video that is continued are encoded again, without sound and in "
            f"{self._width}x{self._height} at {self._fps} frames per second, since they have another form."
        )

    def _can_copy(self, source: InputContainer, sample: InputContainer) -> bool:
        stream = cast(VideoStream, picture_stream(source))
        headers = sample.streams.video[0].codec_context.extradata
        if stream.codec_context.extradata != headers or source.streams.audio:
            return False
        scale = cast(Fraction, stream.time_base) / self._time_base
        times = [packet.pts * scale for packet in source.demux(stream) if packet.pts is not None]
        return sorted(times) == list(range(len(times)))

    def add_section(
        self, final: Iterable[np.ndarray], pending: np.ndarray = _NO_FRAMES, *, is_behind: bool = False
    ) -> Path:
        """Encode one section's frames, uint8 RGB (T, H, W, 3), and join a new playable version.

        `pending` frames will be among the next section's final ones. The previous version stays for players
        that read it.
        """
        number = self.sections + 1
        self._encode(self._segment(number), final, _X264)
        order = [self._segment(n) for n in range(1, number + 1)]
        provisional = self._folder.segments / "provisional.mp4"
        if len(pending):
            self._encode(provisional, pending, _X264_PROVISIONAL)
            order.append(provisional)
        if self._mode == "inverted":
            order.reverse()
        if is_behind:
            order.append(order.pop(0))
        # In inverted order the section that follows the original comes last.
        if self._original and self._ends_with_original:
            order.append(self._original)
        elif self._original and (self._mode == "forward" or not len(pending)):
            order.insert(0, self._original)
        version = self._version(number)
        frames = self._join(version, [path for path in order if path.stat().st_size])
        self._record_checksums(number)
        self.latest, self.frames, self.sections = version, frames, number

        provisional.unlink(missing_ok=True)
        for old_number in self._versions() - {number, number - 1}:
            self._version(old_number).unlink()
        return version

    def finish(self) -> Path:
        assert self.latest is not None
        video = self._folder.video
        with replacing(video) as temporary:
            link_or_copy(self.latest, temporary)
        return video

    def _version(self, number: int) -> Path:
        return self._folder.path / f"video-{number:04}.mp4"

    def _versions(self) -> set[int]:
        matches = (_VERSION.fullmatch(path.name) for path in self._folder.path.iterdir())
        return {int(match[1]) for match in matches if match}

    def _is_intact(self, path: Path) -> bool:
        return path.is_file() and self._checksums.get(path.name) == file_sha256(path)

    def _record_checksums(self, number: int) -> None:
        names = {self._segment(n).name for n in range(1, number)} | {self._version(number - 1).name}
        if self._original:
            names.add(self._original.name)
        checksums = {name: value for name, value in self._checksums.items() if name in names}
        checksums |= {path.name: file_sha256(path) for path in (self._segment(number), self._version(number))}
        self._checksums = checksums
        self._write_checksums()

    def _write_checksums(self) -> None:
        write_atomic(self._folder.sums, json.dumps(self._checksums, indent=1).encode())

    def _encode(self, path: Path, frames: Iterable[np.ndarray], x264: str) -> None:
        path.parent.mkdir(exist_ok=True)  # something may have removed it since the start
        with replacing(path) as temporary:
            if isinstance(frames, np.ndarray) and not len(frames):
                temporary.touch()
                return
            with av.open(temporary, "w", format="mp4", options=_BITEXACT) as container:
                options = {"preset": _X264_PRESET, "crf": str(self._crf), "x264-params": x264}
                stream = container.add_stream("libx264", rate=self._fps, options=options)
                prepare_codec(stream.codec_context, self._width, self._height, self._time_base)
                strip_sei = BitStreamFilterContext(_STRIP_SEI, stream)
                for frame in itertools.chain(converted(frames, self._time_base), [None]):
                    for packet in stream.encode(frame):
                        for stripped in strip_sei.filter(packet):
                            stripped.stream = stream
                            stripped.time_base = stream.codec_context.time_base
                            container.mux(stripped)

    def _join(self, path: Path, segments: Sequence[Path]) -> int:
        """Join segments, given in temporal order, by stream copy into one file, and return its frame count.

        Time stamps count frames. The presentation time of a packet is its time in the segment plus the number
        of frames in all earlier segments, so there is no gap at a join. Its decoding time is its index in the
        file minus `_REORDER_DELAY`, so decoding times rise by one frame per packet.
        """
        timescale = str(1000 * self._time_base.denominator)
        options = {**_BITEXACT, "movflags": "+faststart", "movie_timescale": timescale}
        recipe = self.recipe() if self.recipe else None
        with replacing(path) as temporary:
            with av.open(temporary, "w", format="mp4", options=options) as output:
                if recipe is not None:
                    output.metadata["comment"] = recipe.to_json()
                sound = list[Iterator[Packet]]()
                if self.sound:
                    seconds = sum(map(_count_frames, segments)) * self._time_base
                    sound.append(_sound_packets(self.sound, output, seconds))
                frames = self._copy(segments, output, *sound)
            if recipe is not None:
                append_pictures(temporary, recipe.pictures)
        return frames

    def _copy(self, segments: Sequence[Path], output: OutputContainer, *sound: Iterator[Packet]) -> int:
        num_frames = 0
        for packet in heapq.merge(self._packets(segments, output), *sound, key=decoding_time):
            num_frames += packet.stream.type == "video"
            output.mux(packet)
        return num_frames

    def _packets(self, segments: Sequence[Path], output: OutputContainer) -> Iterator[Packet]:
        num_frames = 0
        output_stream: VideoStream | None = None
        for segment in segments:
            with open_container(segment, stream_options=_COPY_ONLY) as source:
                stream = cast(VideoStream, picture_stream(source))
                if output_stream is None:
                    output_stream = output.add_stream_from_template(stream, time_base=self._time_base)
                    headers = stream.codec_context.extradata
                elif stream.codec_context.extradata != headers:
                    raise ValueError(f"{segment} was encoded with other settings than the earlier segments.")
                start = num_frames
                for packet in source.demux(stream):
                    if packet.pts is None:  # the end of the segment
                        continue
                    pts = start + int(packet.pts * cast(Fraction, stream.time_base) / self._time_base)
                    packet.stream = output_stream
                    packet.time_base = self._time_base
                    packet.duration = 1
                    packet.pts = pts
                    packet.dts = num_frames - _REORDER_DELAY
                    yield packet
                    num_frames += 1


def decoding_time(packet: Packet) -> Fraction:
    return (packet.dts or 0) * packet.time_base


def _sound_packets(file: Path, output: OutputContainer, seconds: Fraction) -> Iterator[Packet]:
    with open_container(file) as source:
        stream = source.streams.audio[0]
        output_stream = output.add_stream_from_template(stream)
        for packet in source.demux(stream):
            if packet.pts is not None and packet.pts * packet.time_base < seconds:
                packet.stream = output_stream
                yield packet


def _count_frames(video: Path) -> int:
    with open_container(video) as container:
        return container.streams.video[0].frames
