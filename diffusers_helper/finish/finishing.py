"""What is done to a video: the text of the setting `finish`, its steps, and their plan in integers.

The steps run in a fixed order, whatever the order of the words: edit, enlarge, smooth. Once the videos are
known, the text begins with a fact about each, so that the plan follows from the text alone.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any, Self

from diffusers_helper.errors import InputError, short_repr
from diffusers_helper.families.packing import FrameIndices, Section, SectionPlan
from diffusers_helper.finish.edit import Edit
from diffusers_helper.finish.enlarge import Enlarge
from diffusers_helper.finish.smooth import Smooth
from diffusers_helper.finish.step import SOURCE, Shape, Step, refusal
from diffusers_helper.setting import lines_of

STEPS: tuple[type[Step], ...] = (Edit, Enlarge, Smooth)
WORDS = {word: facts for step in STEPS for word, facts in step.words().items()}
_MAX_SOURCES = 32
_MAX_SECONDS = 1200
_SEGMENT_SECONDS = 1.2  # as of FramePack's sections
_SEGMENT_BYTES = 2**28  # the frames of a segment may be in memory at once
_MIN_SEGMENT = 8
_BYTES_PER_PIXEL = 0.03  # of a video with the default compression, of little motion


@dataclass(frozen=True, slots=True)
class Finishing:
    """The steps, which begin with the edit, even if it changes nothing."""

    edit: Edit
    others: tuple[Step, ...]
    sources: tuple[Shape, ...] = ()

    @classmethod
    @lru_cache(maxsize=256)
    def of(cls, text: str) -> Self:
        """Parse the setting, or raise InputError, also for a plan that the videos do not allow."""
        values, sources = dict[str, Any](), list[Shape]()
        for item in filter(None, re.split(r"[\s,]+", text)):
            word, _, value = item.partition(":")
            if word == SOURCE:
                sources.append(Shape.of(value))
            elif word not in WORDS:
                raise refusal(short_repr(word), f"some of {', '.join(WORDS)}")
            elif values.setdefault(word, parsed := WORDS[word].parsed(word, value)) != parsed:
                raise refusal(f"{word} twice", "it once")
        if len(sources) > _MAX_SOURCES:
            raise refusal(f"{len(sources)} videos", f"at most {_MAX_SOURCES}")
        settings = {step: {word: values[word] for word in step.words() if word in values} for step in STEPS}
        edit = Edit(**settings.pop(Edit), smooths=bool(settings[Smooth]))
        others = tuple(step(**words) for step, words in settings.items() if words)
        return cls(edit, others).with_sources(tuple(sources))

    def __str__(self) -> str:
        return ",".join(filter(None, map(str, (*self.sources, *self.steps))))

    def with_sources(self, sources: tuple[Shape, ...]) -> Self:
        """Make the same finishing of other videos, the first of which sets size and rate."""
        lengths = (max(1, round(source.frames * sources[0].rate / source.rate)) for source in sources)
        finishing = replace(self, edit=replace(self.edit, sources=tuple(lengths)), sources=sources)
        if sources and (seconds := finishing.result.seconds) > _MAX_SECONDS:
            raise refusal(f"a video of {math.ceil(seconds)} s", f"at most {_MAX_SECONDS} s")
        return finishing

    @property
    def steps(self) -> tuple[Step, ...]:
        return self.edit, *self.others

    @property
    def words(self) -> str:
        """The text without the facts about the videos."""
        return str(replace(self, sources=()))

    @property
    def summary(self) -> str:
        return self.words.replace(",", " · ").replace(":", " ")

    def shapes(self) -> list[Shape]:
        """List what each step gets, and what the last one makes."""
        return [*accumulate(self.steps, lambda shape, step: step.shape(shape), initial=self.sources[0])]

    @property
    def result(self) -> Shape:
        """What comes out. The format of the file needs even sides."""
        shape = self.shapes()[-1]
        return replace(shape, width=shape.width // 2 * 2, height=shape.height // 2 * 2)

    @property
    def segments(self) -> list[range]:
        """Divide the frames of the result into equal parts, which are written independently."""
        result = self.result
        in_memory = _SEGMENT_BYTES // (3 * result.pixels)
        most = max(_MIN_SEGMENT, min(round(_SEGMENT_SECONDS * result.rate), in_memory))
        count = -(-result.frames // most)
        borders = (result.frames * index // count for index in range(count + 1))
        return [range(*pair) for pair in pairwise(borders)]

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
        return round(_BYTES_PER_PIXEL * self.result.pixels * self.result.frames)


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
