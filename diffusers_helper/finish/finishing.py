"""What is done to a video: the text of the setting `finish`, its steps, and their plan in integers.

The steps run in a fixed order, whatever the order of the words: edit, enlarge, smooth. Once the videos are
known, the text begins with a fact about each, so that the plan follows from the text alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from typing import Self

from diffusers_helper.errors import InputError, short_repr
from diffusers_helper.families.packing import FrameIndices, Section, SectionPlan
from diffusers_helper.finish.edit import Edit
from diffusers_helper.finish.enlarge import Enlarge
from diffusers_helper.finish.smooth import Smooth
from diffusers_helper.finish.step import Shape, Step, refusal
from diffusers_helper.setting import lines_of

STEPS: tuple[type[Step], ...] = (Edit, Enlarge, Smooth)
WORDS = {word: step for step in STEPS for word in step.WORDS}
_SOURCE = "source"
_SHAPE = re.compile(r"(\d{1,5})x(\d{1,5})\*(\d{1,6})@(\d{1,6}(?:/\d{1,6})?)(\+sound)?")
_MAX_SOURCES = 32
_MAX_SECONDS = 1200
_SEGMENT_SECONDS = 1.2  # as of FramePack's sections
_SEGMENT_BYTES = 2**28  # the frames of a segment may be in memory at once
_MIN_SEGMENT = 8
_BYTES_PER_PIXEL = 0.03  # of a video with the default compression, of little motion


@dataclass(frozen=True, slots=True)
class VideoFacts:
    """A video as it was given: its form as a player shows it, and whether it has sound."""

    shape: Shape
    has_sound: bool = False

    @classmethod
    def of(cls, text: str) -> Self:
        match = _SHAPE.fullmatch(text)
        if not match or not int(match[3]) or not Fraction(match[4]):
            raise refusal(f"{_SOURCE}:{text}", "none, as the videos say this themselves")
        return cls(Shape(int(match[1]), int(match[2]), Fraction(match[4]), int(match[3])), bool(match[5]))

    def __str__(self) -> str:
        shape = self.shape
        sound = "+sound" if self.has_sound else ""
        return f"{_SOURCE}:{shape.width}x{shape.height}*{shape.frames}@{shape.rate}{sound}"

    def frames_at(self, rate: Fraction) -> int:
        return max(1, round(self.shape.frames * rate / self.shape.rate))


@dataclass(frozen=True, slots=True)
class Finishing:
    steps: tuple[Step, ...]
    sources: tuple[VideoFacts, ...] = ()

    @classmethod
    @lru_cache(maxsize=256)
    def of(cls, text: str) -> Self:
        """Parse the setting, or raise InputError, also for a plan that the videos do not allow."""
        values: dict[type[Step], dict[str, str]] = {Edit: {}}
        sources = list[VideoFacts]()
        for item in filter(None, re.split(r"[\s,]+", text)):
            word, _, value = item.partition(":")
            if word == _SOURCE:
                sources.append(VideoFacts.of(value))
            elif word not in WORDS:
                raise refusal(short_repr(word), f"some of {', '.join(WORDS)}")
            elif value != values.setdefault(WORDS[word], {}).setdefault(word, value):
                raise refusal(f"{word} twice", "it once")
        if len(sources) > _MAX_SOURCES:
            raise refusal(f"{len(sources)} videos", f"at most {_MAX_SOURCES}")
        steps = [step.of(values[step]) for step in STEPS if step in values]
        return cls(tuple(steps)).with_sources(tuple(sources))

    def __str__(self) -> str:
        return ",".join(filter(None, map(str, (*self.sources, *self.steps))))

    def with_sources(self, sources: tuple[VideoFacts, ...]) -> Self:
        """Make the same finishing of other videos, the first of which sets size and rate."""
        lengths = tuple(source.frames_at(sources[0].shape.rate) for source in sources)
        edit, *others = self.steps
        assert isinstance(edit, Edit)
        smooths = any(isinstance(step, Smooth) for step in others)
        edit = replace(edit, sources=lengths, smooths=smooths)
        finishing = replace(self, steps=(edit, *others), sources=sources)
        if sources:
            result = finishing.result
            if result.seconds > _MAX_SECONDS:
                raise refusal(f"a video of {result.seconds:.0f} s", f"at most {_MAX_SECONDS} s")
        return finishing

    @property
    def edit(self) -> Edit:
        edit = self.steps[0]
        assert isinstance(edit, Edit)
        return edit

    @property
    def words(self) -> str:
        """The text without the facts about the videos."""
        return str(replace(self, sources=()))

    @property
    def summary(self) -> str:
        return self.words.replace(",", " · ").replace(":", " ")

    def shapes(self) -> list[Shape]:
        """List what each step gets, and what the last one makes."""
        shapes = [self.sources[0].shape]
        for step in self.steps:
            shapes.append(step.shape(shapes[-1]))
        return shapes

    @property
    def result(self) -> Shape:
        """What comes out. The format of the file needs even sides."""
        shape = self.shapes()[-1]
        return replace(shape, width=shape.width // 2 * 2, height=shape.height // 2 * 2)

    @property
    def segments(self) -> list[range]:
        """Divide the frames of the result into equal parts, which are written independently."""
        result = self.result
        most = max(
            _MIN_SEGMENT, min(round(_SEGMENT_SECONDS * result.rate), _SEGMENT_BYTES // (3 * result.pixels))
        )
        count = -(-result.frames // most)
        return [
            range(*borders)
            for borders in pairwise(result.frames * index // count for index in range(count + 1))
        ]

    @property
    def plan(self) -> SectionPlan:
        segments, rate = self.segments, self.result.rate
        sections = tuple(
            Section(
                number=index + 1, indices=FrameIndices((), (), (), (), ()), decode_latents=1,
                total_frames=segment.stop, video_index=index, decode_start=index,
            )
            for index, segment in enumerate(segments)
        )  # fmt: skip
        fps = rate.numerator if rate.denominator == 1 else float(rate)
        return SectionPlan("forward", 1, sections, fps, segments[-1].stop / len(segments))

    @property
    def nominal_seconds(self) -> float:
        return sum(step.seconds(shape) for step, shape in zip(self.steps, self.shapes(), strict=False))

    @property
    def nominal_bytes(self) -> int:
        """Estimate the bytes of the finished video, of which a job writes about three times as many."""
        result = self.result
        return round(_BYTES_PER_PIXEL * result.pixels * result.frames)


def finishing_line(text: str) -> Iterator[Finishing]:
    if text.strip():
        yield Finishing.of(text)


def finishing_lines(text: str) -> Iterator[Finishing]:
    """Parse the setting `then`, which has a job on each line. None of them takes other files."""
    for line in lines_of(text):
        finishing = Finishing.of(line)
        if finishing.edit.join >= 0 or finishing.sources:
            raise InputError(
                setting="then", value=line, expected="no join, since there is one video",
                remedy="Join the finished videos.",
            )  # fmt: skip
        yield finishing
