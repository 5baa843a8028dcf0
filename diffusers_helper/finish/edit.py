"""The edit of a video: trim, join with cuts or cross-fades, reverse, to and fro, speed, and steady colours.

What is shown when is decided in integers: each frame of the result is a mixture of frames of the sources.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from itertools import chain, pairwise
from typing import TYPE_CHECKING, ClassVar

from diffusers_helper.finish.step import FLAG, Frames, Shape, Step, Word, Workshop, between, matching, refusal

if TYPE_CHECKING:
    import numpy as np

Mixture = tuple[tuple[int, int, int], ...]
"""A frame as (source, frame, weight); the pixels are divided by the sum of the weights."""

_MAX_FADE = 300
# The colours are compared in thirds of the brightness, since a median alone would jump from level to level.
_DARK, _BRIGHT = 0.25, 0.75
_LEAST_GAIN, _MOST_GAIN = 0.8, 1.25
_SAMPLES = 65_536  # pixels that are compared of a large frame


@dataclass(frozen=True, slots=True)
class Edit(Step):
    """The edit.

    Attributes:
        trim: The part of the first video to take, in seconds, such as 0.5-2 or 1-.
        join: The frames of the cross-fades between the videos; 0 for cuts. -1 is a single video.
        smooths: Whether frames are made in between later. A lower speed then takes the frames as they are,
            at a lower rate, for a true slow motion.
        sources: The lengths of the videos in frames, at the rate of the first one.
    """

    WORDS: ClassVar[Mapping[str, Word]] = {
        "trim": (
            matching(r"(\d+(\.\d{1,3})?)?-(\d+(\.\d{1,3})?)?"),
            "a time to begin and one to end with, in seconds, as in trim:0.5-2",
        ),
        "join": (
            between(0, _MAX_FADE, lambda value: int(value or 0)),
            f"the frames of a cross-fade, up to {_MAX_FADE}, as in join:12, or 0 for a cut",
        ),
        "reverse": FLAG,
        "loop": FLAG,
        "speed": (
            between(Fraction(1, 10), 10, lambda value: Fraction(value).limit_denominator(100)),
            "a number from 0.1 to 10, as in speed:0.5",
        ),
        "colours": FLAG,
        "mute": FLAG,
    }

    trim: str = ""
    join: int = -1
    reverse: bool = False
    loop: bool = False
    speed: Fraction = Fraction(1)
    colours: bool = False
    mute: bool = False
    smooths: bool = False
    sources: tuple[int, ...] = ()

    @property
    def loses_sound(self) -> bool:
        return self.reverse or self.loop or self.speed != 1

    def clips(self, rate: Fraction) -> list[range]:
        """List the frames to take of each source, in order."""
        first, *others = self.sources
        begin, end = 0, first
        if self.trim:
            start, stop = (round(Fraction(text) * rate) if text else None for text in self.trim.split("-"))
            begin, end = start or 0, min(first, first if stop is None else stop)
        if begin >= end:
            problem = f"trim:{self.trim}, but the video has {float(first / rate):.2f} s"
            raise refusal(problem, "a part of the video")
        return [range(begin, end), *map(range, others)]

    @lru_cache(maxsize=64)  # noqa: B019 - an edit is a value, and a page asks for the same one again and again
    def mixtures(self, rate: Fraction) -> tuple[Mixture, ...]:
        clips = self.clips(rate)
        fade = max(0, self.join)
        if len(clips) > 1 and 2 * fade > min(map(len, clips)):
            most = min(map(len, clips)) // 2
            raise refusal(f"join:{fade}", f"at most {most}, half of the shortest video's frames")
        mixtures = list(joined(clips, fade))
        if self.reverse:
            mixtures.reverse()
        if self.loop:
            mixtures += mixtures[-2:0:-1]
        return tuple(mixtures if self.smooths else at_speed(mixtures, self.speed))

    def shape(self, shape: Shape) -> Shape:
        frames = len(self.mixtures(shape.rate))
        rate = shape.rate * self.speed if self.smooths else shape.rate
        return replace(shape, rate=rate, frames=frames)

    def seconds(self, shape: Shape) -> float:
        return 1.2e-8 * shape.pixels * len(self.mixtures(shape.rate))

    def open(self, frames: Frames, shape: Shape, workshop: Workshop) -> Frames:
        mixtures = self.mixtures(shape.rate)

        def mixed(begin: int, end: int) -> Iterator[np.ndarray]:
            entries = [*chain.from_iterable(mixtures[begin:end])]
            pictures = {
                number: workshop.read(number, {frame for source, frame, _ in entries if source == number})
                for number in sorted({source for source, _, _ in entries})
            }
            for mixture in mixtures[begin:end]:
                yield _mix([(pictures[source][frame], weight) for source, frame, weight in mixture])

        if not self.colours:
            return mixed
        reference = colour_levels(next(mixed(0, 1)))

        def steady(begin: int, end: int) -> Iterator[np.ndarray]:
            for frame in mixed(begin, end):
                yield with_levels(frame, reference)

        return steady


def joined(clips: Sequence[range], fade: int) -> Iterator[Mixture]:
    """Put clips one after the other, where the last `fade` frames of each are mixed with the next one's."""
    for number, clip in enumerate(clips):
        is_last = number == len(clips) - 1
        begin = fade if number else 0
        for frame in clip[begin : len(clip) - (0 if is_last else fade)]:
            yield ((number, frame, 1),)
        for index in range(0 if is_last else fade):
            old, new = clip[len(clip) - fade + index], clips[number + 1][index]
            yield ((number, old, fade - index), (number + 1, new, index + 1))


def at_speed(mixtures: Sequence[Mixture], speed: Fraction) -> Iterator[Mixture]:
    """Take the frame in the middle of each new period."""
    for index in range(max(1, round(len(mixtures) / speed))):
        yield mixtures[min(len(mixtures) - 1, (2 * index + 1) * speed.numerator // (2 * speed.denominator))]


def _mix(pictures: Sequence[tuple[np.ndarray, int]]) -> np.ndarray:
    import numpy as np

    (first, total), *others = pictures
    if not others:
        return first
    mixed = first.astype(np.uint32) * total
    for picture, weight in others:
        mixed += picture.astype(np.uint32) * weight
        total += weight
    return ((mixed + total // 2) // total).astype(np.uint8)


def colour_levels(frame: np.ndarray) -> np.ndarray:
    """Measure the mean of the dark, the middle and the bright values of each channel, as (3, 3)."""
    import numpy as np

    pixels = frame.reshape(-1, 3)
    values = np.sort(pixels[:: max(1, len(pixels) // _SAMPLES)].astype(np.float32), axis=0)
    borders = 0, round(_DARK * len(values)), round(_BRIGHT * len(values)), len(values)
    return np.stack([values[begin:end].mean(0) for begin, end in pairwise(borders)])


def with_levels(frame: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """Stretch and shift each channel so that its levels become those of the reference, within bounds."""
    import numpy as np

    dark, middle, bright = colour_levels(frame)
    contrast = np.maximum(reference[2] - reference[0], 1) / np.maximum(bright - dark, 1)
    gain = np.clip(contrast, _LEAST_GAIN, _MOST_GAIN)
    table = (np.arange(256)[:, None] - middle) * gain + reference[1]
    table = np.clip(np.rint(table), 0, 255).astype(np.uint8)
    return np.stack([table[frame[..., channel], channel] for channel in range(3)], -1)
