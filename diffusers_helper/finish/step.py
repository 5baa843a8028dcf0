"""What the finishing steps have in common: the form of a video between two of them, and their contract."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Self, get_args, get_origin, get_type_hints

from diffusers_helper.errors import InputError, short_repr

if TYPE_CHECKING:
    import numpy as np

Frames = Callable[[int, int], Iterator["np.ndarray"]]
"""Computes the frames from one index up to another, uint8 RGB (H, W, 3), always with the same pixels."""
Read = Callable[[int, Iterable[int]], dict[int, "np.ndarray"]]
"""Reads frames of a source: its number, from 0, and the indices at the rate of the first one."""
SOURCE = "source"
_SHAPE = re.compile(r"(\d{1,5})x(\d{1,5})\*(\d{1,6})@(\d{1,6}(?:/\d{1,6})?)(\+sound)?")


@dataclass(frozen=True, slots=True)
class Shape:
    """The size, the rate in frames per second, and the number of frames of a video, as a player shows it."""

    width: int
    height: int
    rate: Fraction
    frames: int
    has_sound: bool = False

    @classmethod
    def of(cls, text: str) -> Self:
        match = _SHAPE.fullmatch(text)
        if not match or not int(match[3]) or not Fraction(match[4]):
            raise refusal(f"{SOURCE}:{text}", "none, as the videos say this themselves")
        return cls(int(match[1]), int(match[2]), Fraction(match[4]), int(match[3]), bool(match[5]))

    def __str__(self) -> str:
        sound = "+sound" if self.has_sound else ""
        return f"{SOURCE}:{self.width}x{self.height}*{self.frames}@{self.rate}{sound}"

    @property
    def seconds(self) -> float:
        return float(self.frames / self.rate)

    @property
    def pixels(self) -> int:
        return self.width * self.height


@dataclass(frozen=True, slots=True)
class Workshop:
    """What a step needs beside the frames of the step before it.

    Attributes:
        note: Tells the user something about the result.
        cap_bytes: The most memory of a card that a network may take.
    """

    read: Read
    note: Callable[[str], object]
    cap_bytes: int = 0


_PARSERS: Mapping[type, Callable[[str], Any]] = {
    str: str,
    bool: lambda text: True,
    int: lambda text: int(text or 0),
    Fraction: lambda text: Fraction(text).limit_denominator(100),
}


@dataclass(frozen=True, slots=True)
class Word:
    """A word of the text, which sets a field of a step.

    Attributes:
        values: What its values look like; "" for a word without any.
        pattern: What a value has to match, unless it is within `bounds`.
    """

    effect: str
    values: str = ""
    pattern: str = ""
    bounds: tuple[Any, Any] | None = None

    def parsed(self, word: str, kind: type, text: str) -> Any:
        with suppress(ValueError, ZeroDivisionError):
            value = _PARSERS[kind](text)
            low, high = self.bounds or (value, value)
            if low <= value <= high and (self.bounds or re.fullmatch(self.pattern, text)):
                return value
        expected = f"{word}:{self.values} ({self.effect})" if self.values else f"{word} without a value"
        raise refusal(f"{word} {short_repr(text)}", expected)


@dataclass(frozen=True, slots=True)
class Step:
    """A finishing step: its settings are its fields, of which those with a Word are words of the text.

    A further step is a module with a subclass, and an entry in `finishing.STEPS`.
    """

    @classmethod
    @cache
    def words(cls) -> dict[str, tuple[type, Word]]:
        hints = get_type_hints(cls, include_extras=True).items()
        return {name: get_args(hint) for name, hint in hints if get_origin(hint) is Annotated}

    def __str__(self) -> str:
        default = type(self)()
        values = {word: getattr(self, word) for word in self.words()}
        return ",".join(
            word if value is True else f"{word}:{value}"
            for word, value in values.items()
            if value != getattr(default, word)
        )

    def shape(self, shape: Shape) -> Shape:
        """Plan what becomes of a video, or raise InputError if the step cannot be done to it."""
        raise NotImplementedError

    def check(self) -> None:
        """Raise LongtakeError if this machine lacks something that the step needs."""

    def seconds(self, shape: Shape) -> float:
        """Estimate the time for a video on two cores of the machine with which `benchmarks` were made."""
        raise NotImplementedError

    def open(self, frames: Frames, shape: Shape, workshop: Workshop) -> Frames:
        """Open what the step works with, and return its frames, given those of the video before it."""
        raise NotImplementedError


def refusal(problem: str, expected: str, remedy: str = "Correct the text.") -> InputError:
    return InputError(setting="finish", problem=f"has {problem}", expected=expected, remedy=remedy)
