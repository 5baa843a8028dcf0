"""The section arithmetic of FramePack, for both modes, in integers.

A video is made in *sections* of `window` latent frames. *Inverted* (anti-drifting) order makes the last
section first and works back to the picture; *forward* order (F1) starts at the picture. n latent frames
decode to 4n - 3 frames. The formulas come from FramePack's paper, figure 2, and its published demos.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

Mode = Literal["inverted", "forward"]
MODES: tuple[Mode, ...] = ("inverted", "forward")

FPS = 30
WINDOW = 9
MIN_SECONDS = 1.0
MAX_SECONDS = 120.0
# The latent frames of history that a section sees at full, half and quarter resolution
HISTORY_1X, HISTORY_2X, HISTORY_4X = 1, 2, 16
HISTORY = HISTORY_1X + HISTORY_2X + HISTORY_4X


def frames_of(num_latent_frames: int) -> int:
    """Return the number of frames that latent frames decode to: one for the first, four for each other."""
    return 4 * num_latent_frames - 3


def count_sections(seconds: float, fps: int = FPS, frames: int = 4 * WINDOW) -> int:
    """Return the number of sections of so many frames for a length in seconds.

    It is max(1, round(fps seconds / frames)). Halves are rounded to even, as in FramePack.
    """
    if not math.isfinite(seconds) or seconds < MIN_SECONDS:
        raise ValueError(f"seconds is {seconds}; expected a number of at least {MIN_SECONDS:g}.")
    return max(1, round(seconds * fps / frames))


def paddings(num_sections: int) -> tuple[int, ...]:
    """Return the distance of each inverted section from the picture, in windows and in order of making.

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
        """Return the positions of the clean latents: the picture, then the nearest history frame."""
        return self.start + self.history_1x


def frame_indices(mode: Mode, window: int = WINDOW, padding: int = 0) -> FrameIndices:
    """Return the temporal positions for one section, which lies `padding` windows from the picture."""
    if mode == "inverted":
        layout = {"start": 1, "blank": padding * window, "noisy": window}
        layout |= {"history_1x": HISTORY_1X, "history_2x": HISTORY_2X, "history_4x": HISTORY_4X}
    else:
        layout = {"start": 1, "history_4x": HISTORY_4X, "history_2x": HISTORY_2X, "history_1x": HISTORY_1X}
        layout |= {"noisy": window}
    ranges: dict[str, tuple[int, ...]] = {}
    begin = 0
    for name, length in layout.items():
        ranges[name] = tuple(range(begin, begin + length))
        begin += length
    ranges.pop("blank", None)
    return FrameIndices(**ranges)


@dataclass(frozen=True, slots=True)
class Section:
    """One section of a video. The attributes that end in `_frames` or `_latents` are numbers of frames.

    Attributes:
        number: The section's place in order of making, from 1.
        padding: The distance from the picture in windows (inverted), or 0 in forward mode.
        has_start: Whether the start picture's latent, if there is one, is added with it in front of its own.
        decode_latents: Latent frames to decode, taken from the side of the history where this section lies.
        overlap_frames: Decoded frames that are blended with earlier frames (0 for the first section).
        pending_frames: Frames next to the following section, with which they will still be blended.
        total_frames: Frames of the video so far, including pending ones.
        video_position: The place of this section in the video, from 0.
        begin: The place of the first latent to decode, counted from where the video began to grow.
        is_closing: Whether it leads from the end of a loop back to its start.
    """

    number: int
    indices: FrameIndices
    decode_latents: int
    total_frames: int
    video_position: int
    begin: int
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
        """Return the number of its own frames that no later section will change."""
        return self.decoded_frames - (self.overlap_frames if self.is_closing else self.pending_frames)


@dataclass(frozen=True, slots=True)
class SectionPlan:
    """The sequence of all sections of one video, in order of making."""

    mode: Mode
    window: int
    sections: tuple[Section, ...]
    fps: int = FPS

    def __iter__(self) -> Iterator[Section]:
        return iter(self.sections)

    def __len__(self) -> int:
        return len(self.sections)

    def __getitem__(self, index: int) -> Section:
        return self.sections[index]

    @property
    def total_frames(self) -> int:
        """Return the number of frames of the finished video: 4 W N + 1 in FramePack, if it has a picture."""
        return self.sections[-1].total_frames

    @property
    def seconds(self) -> float:
        return self.total_frames / self.fps


def _section(mode: Mode, window: int, number: int, count: int, padding: int, *, has_picture: bool) -> Section:
    is_first, is_last = number == 1, number == count
    # The picture's own latent frame is decoded with the section that touches it.
    touches_picture = has_picture and (is_last if mode == "inverted" else is_first)
    decode_latents = (window if is_first else 2 * window) + touches_picture
    total = window * number + (has_picture and (mode == "forward" or is_last))
    return Section(
        number=number,
        padding=padding,
        has_start=mode == "inverted" and is_last,
        indices=frame_indices(mode, window, padding),
        decode_latents=decode_latents,
        overlap_frames=0 if is_first else frames_of(window),
        pending_frames=0 if is_last else frames_of(window),
        total_frames=frames_of(total),
        video_position=count - number if mode == "inverted" else number - 1,
        begin=-total if mode == "inverted" else total - decode_latents,
    )


def plan_sections(
    seconds: float, mode: Mode = "inverted", window: int = WINDOW, *, has_picture: bool = True
) -> SectionPlan:
    """Return the sections that make a video of about `seconds`, or raise ValueError if it is below one.

    Without a start picture, its latent frame is missing where the video would begin.
    """
    count = count_sections(seconds, frames=4 * window)
    steps_back = paddings(count) if mode == "inverted" else (0,) * count
    return SectionPlan(
        mode=mode,
        window=window,
        sections=tuple(
            _section(mode, window, k + 1, count, steps_back[k], has_picture=has_picture) for k in range(count)
        ),
    )


def plan_one_frame(time: int) -> SectionPlan:
    """Return the plan of a single picture, which is one latent frame, `time` >= 1 after the start picture.

    Its place in time is free: the later, the more the picture changes (one-frame inference, as in kohya-ss'
    musubi-tuner, docs/framepack_1f.md).
    """
    section = _section("inverted", 1, 1, 1, time - 1, has_picture=False)
    return SectionPlan("inverted", 1, (replace(section, has_start=False),))


def led_by(plan: SectionPlan, begins: Sequence[int]) -> SectionPlan:
    """Return an inverted plan in which runs of sections begin with pictures; one in forward order stays.

    Each run has the distances of a video of its own, so a section sees its picture where the model was
    trained to see the start picture. `begins` are the places in the video of the sections that begin with a
    picture, besides the first one.
    """
    if plan.mode == "forward":
        return plan
    ends = sorted({0, len(plan), *(begin for begin in begins if begin < len(plan))})
    steps_back = [step for begin, end in reversed([*pairwise(ends)]) for step in paddings(end - begin)]
    led = (
        replace(section, padding=step, indices=frame_indices("inverted", plan.window, step))
        for section, step in zip(plan, steps_back, strict=True)
    )
    return replace(plan, sections=tuple(led))


def looped(plan: SectionPlan) -> SectionPlan:
    """Return an inverted plan with one more section, which leads from the end of the video back to its start.

    It is made last and comes last in the video. It is decoded behind the last window, whose frames stay as
    they are.
    """
    window, count, before = plan.window, len(plan), plan[-1]
    closing = Section(
        number=count + 1, indices=frame_indices("inverted", window), decode_latents=2 * window,
        overlap_frames=frames_of(window), total_frames=before.total_frames + 4 * window,
        video_position=count, begin=-window, is_closing=True,
    )  # fmt: skip
    return replace(plan, sections=(*plan.sections, closing))


# The distance of the windows of HunyuanVideo's VAE in latent frames; a window is two latent frames longer.
OWN_CHUNK = 3


def window_sizes(num_latents: int, chunk: int) -> dict[int, int]:
    """Return the length of each temporal window by its start, in latent frames.

    Windows start `chunk` latent frames apart and have `chunk + 2` of them, or fewer at the end. The first one
    of a window is a lead-in, and the last one is shared with the next window. A window that would add no
    frames is left out.
    """
    if num_latents <= chunk + 1:
        return {0: num_latents}
    return {start: min(chunk + 2, num_latents - start) for start in range(0, num_latents - 1, chunk)}


def decode_windows(plan: SectionPlan, chunk: int = OWN_CHUNK) -> tuple[tuple[int, ...], ...]:
    """Return the lengths of the windows that are decoded for each section, in latent frames.

    Sections and windows are in the order of making. Since windows overlap, they have more latent frames than
    the section. Windows that were decoded for the previous section are reused, and left out here.
    """
    work: list[tuple[int, ...]] = []
    before: set[tuple[int, int]] = set()
    for section in plan:
        sizes = window_sizes(section.decode_latents, chunk)
        windows = [(section.begin + start, size) for start, size in sizes.items()]
        work.append(tuple(window[1] for window in windows if window not in before))
        before = set(windows)
    return tuple(work)


def decode_work(plan: SectionPlan, chunk: int = OWN_CHUNK) -> tuple[int, ...]:
    """Return the number of latent frames that are decoded for each section, in order of making."""
    return tuple(map(sum, decode_windows(plan, chunk)))
