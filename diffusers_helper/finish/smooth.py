"""More frames per second, by FFmpeg's interpolation along the motion. Cuts are recognised and stay cuts."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil, floor
from typing import TYPE_CHECKING

from diffusers_helper.finish.filters import filtered
from diffusers_helper.finish.step import Frames, Picture, Shape, Step, Workshop, refusal, word

if TYPE_CHECKING:
    from av.video.frame import VideoFrame

_DOUBLE = "2x"
_MAX_RATE = 120
# The filter looks at two frames before and two after each new one, so with them, every segment gets the
# frames that the whole video would have. A search that starts from earlier motion would need them all.
_MARGIN = 3
_FILTER = "mi_mode=mci:mc_mode=aobmc:me_mode=bilat:me=umh:mb_size=8:search_param=16:scd=fdiff:scd_threshold=5"


@dataclass(frozen=True, slots=True)
class Smooth(Step):
    smooth: str = word(
        "", "more frames per second, along the motion, such as 60", f"FPS|{_DOUBLE}",
        rf"{_DOUBLE}|[1-9]\d{{0,2}}",
    )  # fmt: skip

    def shape(self, shape: Shape) -> Shape:
        rate = 2 * shape.rate if self.smooth == _DOUBLE else Fraction(self.smooth)
        if not shape.rate < rate <= _MAX_RATE:
            least = f"the {float(shape.rate):.5g} frames per second that the video has"
            raise refusal(f"smooth:{self.smooth}", f"more than {least}, and at most {_MAX_RATE}")
        return replace(shape, rate=rate, frames=max(1, round(shape.frames * rate / shape.rate)))

    def seconds(self, shape: Shape) -> float:
        return 4e-7 * shape.pixels * self.shape(shape).frames

    def open(self, frames: Frames, shape: Shape, workshop: Workshop) -> Frames:
        from av.video.frame import VideoFrame

        rate = self.shape(shape).rate
        ratio = rate / shape.rate
        # The filter's times must not be negative, and each must keep its place between the frames.
        offset, shift = ratio.denominator * _MARGIN, ratio.numerator * _MARGIN

        def inputs(first: int, last: int) -> "Iterator[VideoFrame]":
            """Yield frames; before the first and after the last one, they are as at the border."""
            begin, end = max(0, first), min(shape.frames, last)
            pictures = frames(begin, end)
            picture = next(pictures)
            for index in range(first, last):
                picture = next(pictures) if begin < index < end else picture
                frame = VideoFrame.from_ndarray(picture, format="rgb24").reformat(format="yuv444p", threads=1)
                frame.pts, frame.time_base = index + offset, 1 / shape.rate
                yield frame

        def smoothed(begin: int, end: int) -> Iterator[Picture]:
            pictures = inputs(floor(begin / ratio) - _MARGIN, ceil(end / ratio) + _MARGIN)
            for output in filtered(pictures, "minterpolate", f"fps={rate}:{_FILTER}"):
                if output.pts is not None and begin <= output.pts - shift < end:
                    yield output.reformat(format="rgb24", threads=1).to_ndarray()

        return smoothed
