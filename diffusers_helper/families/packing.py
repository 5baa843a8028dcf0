"""The section arithmetic of FramePack, for both modes, in integers.

A video is made in sections of `latent_window_size` latent frames. Inverted (anti-drifting) order makes the
last section first and works back to the picture; forward order (F1) starts at the picture. n latent frames
decode to 4n - 3 frames. The formulas come from FramePack's paper, figure 2, and its published demos.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

Mode = Literal["inverted", "forward"]
MODES: tuple[Mode, ...] = ("inverted", "forward")

FPS = 30
LATENT_WINDOW_SIZE = 9
MIN_SECONDS = 1.0
MAX_SECONDS = 120.0
# The latent frames of history that a section sees at full, half and quarter resolution
HISTORY_1X, HISTORY_2X, HISTORY_4X = 1, 2, 16
HISTORY = HISTORY_1X + HISTORY_2X + HISTORY_4X


def frames_of(num_latent_frames: int) -> int:
    """Count the decoded frames: the first latent frame becomes one frame, each other one four."""
    return 4 * num_latent_frames - 3


def count_sections(seconds: float, fps: int = FPS, section_frames: int = 4 * LATENT_WINDOW_SIZE) -> int:
    """Count the sections: max(1, round(fps seconds / section_frames)), halves to even as in FramePack."""
    if not math.isfinite(seconds) or seconds < MIN_SECONDS:
        raise ValueError(f"seconds is {seconds}; expected a number of at least {MIN_SECONDS:g}.")
    return max(1, round(seconds * fps / section_frames))


def paddings(num_sections: int) -> tuple[int, ...]:
    """List the distance of each inverted section from the picture, in latent windows.

    Up to four sections the distances count down to 0. Longer videos use 3, 2, 2, …, 1, 0, which FramePack's
    authors found to look better than the full ramp.
    """
    if num_sections <= 4:
        return tuple(range(num_sections - 1, -1, -1))
    return (3, *([2] * (num_sections - 3)), 1, 0)


@dataclass(frozen=True, slots=True)
class FrameIndices:
    """The temporal positions (RoPE) of each part of the packed sequence, in latent frames."""

    start: tuple[int, ...]
    noisy: tuple[int, ...]
    history_1x: tuple[int, ...]
    history_2x: tuple[int, ...]
    history_4x: tuple[int, ...]

    @property
    def clean(self) -> tuple[int, ...]:
        return self.start + self.history_1x


def frame_indices(mode: Mode, latent_window_size: int = LATENT_WINDOW_SIZE, padding: int = 0) -> FrameIndices:
    """Place one section in time. It lies `padding` latent windows from the picture."""
    if mode == "inverted":
        layout = {"start": 1, "blank": padding * latent_window_size, "noisy": latent_window_size}
        layout |= {"history_1x": HISTORY_1X, "history_2x": HISTORY_2X, "history_4x": HISTORY_4X}
    else:
        layout = {"start": 1, "history_4x": HISTORY_4X, "history_2x": HISTORY_2X, "history_1x": HISTORY_1X}
        layout |= {"noisy": latent_window_size}
    ranges: dict[str, tuple[int, ...]] = {}
    start = 0
    for name, length in layout.items():
        ranges[name] = tuple(range(start, start + length))
        start += length
    ranges.pop("blank", None)
    return FrameIndices(**ranges)


@dataclass(frozen=True, slots=True)
class Section:
    """One section of a video. The attributes that end in `_frames` or `_latents` are numbers of frames.

    Attributes:
        padding: The distance from the picture in latent windows (inverted), or 0 in forward mode.
        has_start: Whether the start picture's latent, if there is one, is added with it in front of its own.
        decode_latents: Latent frames to decode, taken from the side of the history where this section lies.
        overlap_frames: Decoded frames that are blended with those of the previous section.
        pending_frames: Frames next to the following section, with which they will still be blended.
        total_frames: Frames of the video so far, including pending ones.
        decode_start: The index of the first latent to decode, counted from where the video began to grow.
        is_closing: Whether it leads from the end of a loop back to its start.
    """

    number: int
    indices: FrameIndices
    decode_latents: int
    total_frames: int
    video_index: int
    decode_start: int
    padding: int = 0
    has_start: bool = False
    overlap_frames: int = 0
    pending_frames: int = 0
    is_closing: bool = False

    @property
    def decoded_frames(self) -> int:
        return frames_of(self.decode_latents)

    @property
    def final_frames(self) -> int:
        return self.decoded_frames - (self.overlap_frames if self.is_closing else self.pending_frames)


@dataclass(frozen=True, slots=True)
class SectionPlan:
    """The sequence of all sections of one video, in order of making.

    Each section adds `section_frames` to the video. At most `encoded_latents` latent frames are encoded at a
    time, from a picture or a video.
    """

    mode: Mode
    latent_window_size: int
    sections: tuple[Section, ...]
    fps: float = FPS
    section_frames: float = 4 * LATENT_WINDOW_SIZE
    encoded_latents: int = 1

    def __iter__(self) -> Iterator[Section]:
        return iter(self.sections)

    def __len__(self) -> int:
        return len(self.sections)

    def __getitem__(self, index: int) -> Section:
        return self.sections[index]

    @property
    def total_frames(self) -> int:
        """The number of frames of the video: 4 W N + 1 in FramePack, if it has a start picture."""
        return self.sections[-1].total_frames

    @property
    def seconds(self) -> float:
        return self.total_frames / self.fps

    @property
    def section_seconds(self) -> float:
        return self.section_frames / self.fps


def _section(mode: Mode, size: int, number: int, count: int, padding: int, *, has_picture: bool) -> Section:
    is_first = number == 1
    is_last = number == count
    # The picture's own latent frame is decoded with the section that touches it.
    touches_picture = has_picture and (is_last if mode == "inverted" else is_first)
    decode_latents = (size if is_first else 2 * size) + touches_picture
    total = size * number + (has_picture and (mode == "forward" or is_last))
    return Section(
        number=number,
        padding=padding,
        has_start=mode == "inverted" and is_last,
        indices=frame_indices(mode, size, padding),
        decode_latents=decode_latents,
        overlap_frames=0 if is_first else frames_of(size),
        pending_frames=0 if is_last else frames_of(size),
        total_frames=frames_of(total),
        video_index=count - number if mode == "inverted" else number - 1,
        decode_start=-total if mode == "inverted" else total - decode_latents,
    )


def plan_sections(
    seconds: float,
    mode: Mode = "inverted",
    latent_window_size: int = LATENT_WINDOW_SIZE,
    *,
    has_picture: bool = True,
) -> SectionPlan:
    """Plan about `seconds`; ValueError below 1. A video without a start picture lacks that latent frame."""
    count = count_sections(seconds, section_frames=4 * latent_window_size)
    sections = tuple(
        _section(mode, latent_window_size, number, count, padding, has_picture=has_picture)
        for number, padding in enumerate(paddings(count) if mode == "inverted" else (0,) * count, 1)
    )
    return SectionPlan(mode, latent_window_size, sections, section_frames=4 * latent_window_size)


def plan_one_frame(latent_time: int) -> SectionPlan:
    """Plan a single picture, which is one latent frame, `latent_time` >= 1 after the start picture.

    The later it is, the more it changes (one-frame inference, kohya-ss/musubi-tuner, docs/framepack_1f.md).
    """
    section = _section("inverted", 1, 1, 1, latent_time - 1, has_picture=False)
    return SectionPlan("inverted", 1, (replace(section, has_start=False),))


def split_at(plan: SectionPlan, starts: Sequence[int]) -> SectionPlan:
    """Split an inverted plan into runs of sections that begin with pictures, at these video indices.

    Each run has the paddings of a video of its own, so a section sees its picture where the model was trained
    to see the start picture. A plan in forward order stays as it is.
    """
    if plan.mode == "forward":
        return plan
    borders = sorted({0, len(plan), *(start for start in starts if start < len(plan))})
    runs = reversed([*pairwise(borders)])
    run_paddings = [padding for start, end in runs for padding in paddings(end - start)]
    sections = (
        replace(section, padding=padding, indices=frame_indices("inverted", plan.latent_window_size, padding))
        for section, padding in zip(plan, run_paddings, strict=True)
    )
    return replace(plan, sections=tuple(sections))


def with_closing_section(plan: SectionPlan) -> SectionPlan:
    """The section is made last, and decoded with the one before it, whose frames stay as they are."""
    size = plan.latent_window_size
    count = len(plan)
    closing = Section(
        number=count + 1, indices=frame_indices("inverted", size), decode_latents=2 * size,
        overlap_frames=frames_of(size), total_frames=plan[-1].total_frames + 4 * size,
        video_index=count, decode_start=-size, is_closing=True,
    )  # fmt: skip
    return replace(plan, sections=(*plan.sections, closing))


# The distance of the windows of HunyuanVideo's VAE in latent frames; a window is two latent frames longer.
DEFAULT_CHUNK = 3


def window_sizes(num_latents: int, chunk: int) -> dict[int, int]:
    """Map the start of each temporal window of the VAE to its length, both in latent frames.

    Windows start `chunk` latent frames apart and have `chunk + 2` of them, or fewer at the end. The first one
    is a lead-in, and the last one is shared with the next window. A window that would add no frames is left
    out.
    """
    if num_latents <= chunk + 1:
        return {0: num_latents}
    return {start: min(chunk + 2, num_latents - start) for start in range(0, num_latents - 1, chunk)}


def decode_windows(plan: SectionPlan, chunk: int = DEFAULT_CHUNK) -> tuple[tuple[int, ...], ...]:
    """List the lengths of the windows that are decoded for each section, in latent frames.

    Windows overlap, so together they have more latent frames than the section. Windows that were decoded for
    the previous section are reused, and left out here.
    """
    lengths: list[tuple[int, ...]] = []
    previous: set[tuple[int, int]] = set()
    for section in plan:
        sizes = window_sizes(section.decode_latents, chunk)
        windows = [(section.decode_start + start, size) for start, size in sizes.items()]
        lengths.append(tuple(window[1] for window in windows if window not in previous))
        previous = set(windows)
    return tuple(lengths)


def decode_work(plan: SectionPlan, chunk: int = DEFAULT_CHUNK) -> tuple[int, ...]:
    return tuple(map(sum, decode_windows(plan, chunk)))
