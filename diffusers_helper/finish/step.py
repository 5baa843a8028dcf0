"""What the finishing steps have in common: the form of a video between two of them, and their contract."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from diffusers_helper.errors import InputError, short_repr

if TYPE_CHECKING:
    import numpy as np

Picture: TypeAlias = "np.ndarray"
"""A frame, uint8 RGB (H, W, 3)."""
Frames = Callable[[int, int], Iterator[Picture]]
"""Computes the frames from one index up to another, always with the same pixels."""
Network = Callable[[Picture], Picture]
"""Enlarges a part of a frame; both are float32 from 0 to 1, in channels, rows and columns."""
Read = Callable[[int, Iterable[int]], dict[int, Picture]]
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
        load: Loads the network that a person's own file contains, and tells how many times it enlarges.
    """

    read: Read
    note: Callable[[str], object]
    cap_bytes: int = 0
    load: Callable[[str], tuple[Network, int]] | None = None


@dataclass(frozen=True, slots=True)
class Word:
    """A word of the text, which sets a field of a step.

    Attributes:
        values: What its values look like; "" for a word without any.
        parse: The pattern of a text, or what makes a value of it, where None or ValueError refuses it.
    """

    effect: str
    values: str = ""
    parse: str | Callable[[str], Any] = lambda text: not text or None

    def parsed(self, word: str, text: str) -> Any:
        with suppress(ValueError, ZeroDivisionError):
            pattern = self.parse
            value = pattern(text) if callable(pattern) else text if re.fullmatch(pattern, text) else None
            if value is not None:
                return value
        expected = f"{word}:{self.values} ({self.effect})" if self.values else f"{word} without a value"
        raise refusal(f"{word} {short_repr(text)}", expected)


def word(default: Any, *facts: Any) -> Any:
    return field(default=default, metadata={"word": Word(*facts)})


def between(low: Any, high: Any, kind: Callable[[str], Any] = int) -> Callable[[str], Any]:
    return lambda text: value if low <= (value := kind(text)) <= high else None


@dataclass(frozen=True, slots=True)
class Step:
    """A finishing step: its settings are its fields, of which those made by `word` are words of the text.

    A further step is a module with a subclass, and an entry in `finishing.STEPS`.
    """

    @classmethod
    def words(cls) -> dict[str, Word]:
        return {entry.name: entry.metadata["word"] for entry in fields(cls) if entry.metadata}

    def __str__(self) -> str:
        values = {entry: getattr(self, entry.name) for entry in fields(self) if entry.metadata}
        return ",".join(
            entry.name if value is True else f"{entry.name}:{value}"
            for entry, value in values.items()
            if value != entry.default
        )

    def shape(self, shape: Shape) -> Shape:
        """Plan what becomes of a video, or raise InputError if the step cannot be done to it."""
        raise NotImplementedError

    def prepared(self, folders: Sequence[Path]) -> Self:
        """Return the step with facts about its files in folders; LongtakeError if something is missing."""
        return self

    def seconds(self, shape: Shape) -> float:
        """Estimate the time for a video on two cores of the machine with which `benchmarks` were made."""
        raise NotImplementedError

    def open(self, frames: Frames, shape: Shape, workshop: Workshop) -> Frames:
        """Open what the step works with, and return its frames, given those of the video before it."""
        raise NotImplementedError


def refusal(problem: str, expected: str, remedy: str = "Correct the text.") -> InputError:
    return InputError(setting="finish", problem=f"has {problem}", expected=expected, remedy=remedy)
