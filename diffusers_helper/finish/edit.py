"""The edit of a video: trim, join with cuts or cross-fades, reverse, to and fro, speed, and steady colours.

What is shown when is decided in integers: each frame of the result is a mixture of frames of the sources.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from itertools import chain, zip_longest
from typing import Any

from diffusers_helper.finish.step import Frames, Picture, Shape, Step, Workshop, between, refusal, word

Mixture = tuple[tuple[int, int, int], ...]
"""A frame as (source, frame, weight); the pixels are divided by the sum of the weights."""

_MAX_FADE = 300
_GAINS = 0.8, 1.25  # the least and the most contrast that steady colours give a frame


@dataclass(frozen=True, slots=True)
class Edit(Step):
    """The edit.

    Attributes:
        join: -1 is a single video.
        smooths: Whether frames are made in between later. A lower speed then takes the frames as they are,
            at a lower rate, for a true slow motion.
        sources: The lengths of the videos in frames, at the rate of the first one.
    """

    trim: str = word(
        "", "the part to take, in seconds, such as 0.5-2 or 1-", "FROM-TO",
        r"(\d+(\.\d{1,3})?)?-(\d+(\.\d{1,3})?)?",
    )  # fmt: skip
    join: int = word(
        -1, f"frames of a cross-fade between the videos, up to {_MAX_FADE}; 0 for cuts", "N",
        between(0, _MAX_FADE, lambda text: int(text or 0)),
    )  # fmt: skip
    reverse: bool = word(False, "play it backwards")
    loop: bool = word(False, "play it to the end and back again")
    speed: Fraction = word(  # noqa: RUF009 - it is a field
        Fraction(1), "from 0.1 to 10; 0.5 is half as fast; with smooth, frames are made in between", "N",
        between(Fraction(1, 10), 10, lambda text: Fraction(text).limit_denominator(100)),
    )  # fmt: skip
    colours: bool = word(False, "give all frames the colours of the first one")
    mute: bool = word(False, "leave the sound out")
    smooths: bool = False
    sources: tuple[int, ...] = ()

    @property
    def loses_sound(self) -> bool:
        return self.reverse or self.loop or self.speed != 1

    def clips(self, rate: Fraction) -> list[range]:
        """List the frames to take of each source, in order."""
        first, *others = map(range, self.sources)
        begin, _, end = self.trim.partition("-")
        part = first[round(Fraction(begin or 0) * rate) : round(Fraction(end) * rate) if end else None]
        if not part:
            problem = f"trim:{self.trim}, but the video has {float(len(first) / rate):.2f} s"
            raise refusal(problem, "a part of the video")
        return [part, *others]

    @lru_cache(maxsize=64)  # noqa: B019 - an edit is a value, and a page asks for the same one again and again
    def mixtures(self, rate: Fraction) -> tuple[Mixture, ...]:
        clips = self.clips(rate)
        fade, most = max(0, self.join), min(map(len, clips)) // 2
        if clips[1:] and fade > most:
            raise refusal(f"join:{fade}", f"at most {most}, half of the shortest video's frames")
        mixtures = [*joined(clips, fade)]
        if self.reverse:
            mixtures.reverse()
        if self.loop:
            mixtures += mixtures[-2:0:-1]
        return tuple(mixtures if self.smooths else at_speed(mixtures, self.speed))

    def shape(self, shape: Shape) -> Shape:
        rate = shape.rate * self.speed if self.smooths else shape.rate
        return replace(shape, rate=rate, frames=len(self.mixtures(shape.rate)))

    def seconds(self, shape: Shape) -> float:
        return 1.2e-8 * shape.pixels * len(self.mixtures(shape.rate))

    def open(self, frames: Frames, shape: Shape, workshop: Workshop) -> Frames:
        def mixed(begin: int, end: int) -> Iterator[Picture]:
            part = self.mixtures(shape.rate)[begin:end]
            entries = [*chain.from_iterable(part)]
            pictures = {
                number: workshop.read(number, {frame for source, frame, _ in entries if source == number})
                for number in sorted({source for source, _, _ in entries})
            }
            for mixture in part:
                yield _mix([(pictures[source][frame], weight) for source, frame, weight in mixture])

        if not self.colours:
            return mixed
        reference = colours_of(next(mixed(0, 1)))
        return lambda begin, end: (with_colours(frame, reference) for frame in mixed(begin, end))


def joined(clips: Sequence[range], fade: int) -> Iterator[Mixture]:
    """Put clips one after the other, where the last `fade` frames of each are mixed with the next one's."""
    for number, (clip, following) in enumerate(zip_longest(clips, clips[1:], fillvalue=range(0))):
        faded = following[:fade]
        end = len(clip) - len(faded)
        for frame in clip[fade if number else 0 : end]:
            yield ((number, frame, 1),)
        for index, (old, new) in enumerate(zip(clip[end:], faded, strict=True)):
            yield ((number, old, fade - index), (number + 1, new, index + 1))


def at_speed(mixtures: Sequence[Mixture], speed: Fraction) -> Iterator[Mixture]:
    """Take the frame in the middle of each new period."""
    for index in range(max(1, round(len(mixtures) / speed))):
        yield mixtures[min(len(mixtures) - 1, int((index + Fraction(1, 2)) * speed))]


def _mix(pictures: Sequence[tuple[Picture, int]]) -> Picture:
    if len(pictures) == 1:
        return pictures[0][0]
    total = sum(weight for _, weight in pictures)
    weighted: Any = sum(picture.astype("uint32") * weight for picture, weight in pictures)
    return ((weighted + total // 2) // total).astype("uint8")


def colours_of(frame: Picture) -> Picture:
    """Measure the mean and the deviation of each channel, as (2, 3)."""
    import numpy as np
    from PIL import Image, ImageStat

    measured = ImageStat.Stat(Image.fromarray(frame))
    return np.array([measured.mean, measured.stddev])


def with_colours(frame: Picture, reference: Picture) -> Picture:
    """Give each channel the mean and, within bounds, the deviation of the reference."""
    import numpy as np
    from PIL import Image

    (mean, deviation), (new_mean, new_deviation) = colours_of(frame)[..., None], reference[..., None]
    gain = np.clip(np.maximum(new_deviation, 1) / np.maximum(deviation, 1), *_GAINS)
    table = ((np.arange(256) - mean) * gain + new_mean).round().clip(0, 255)
    return np.asarray(Image.fromarray(frame).point(table.ravel().tolist()))
