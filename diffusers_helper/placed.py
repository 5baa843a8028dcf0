"""The text of the setting `pictures`, which names the pictures at times of a video, one on each line."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path

from diffusers_helper.errors import InputError, short_repr

MOST_PICTURES = 16
_LINE = re.compile(
    r"(?P<time>\d{1,4}(?:\.\d*)?)\s*s(?:\s*@\s*(?P<crop>0(?:\.\d*)?|1(?:\.0*)?|\.\d+))?\s*:\s*(?P<file>.+)"
)


@dataclass(frozen=True, slots=True)
class Placed:
    """One picture at a time of the video in seconds, with the part of it to keep, as `crop` of a request."""

    time: float
    file: str
    crop: float = 0.5

    def place(self, seconds: float) -> int:
        """Return the place of the section that begins with it, where each adds so many seconds.

        The first one begins with the start picture.
        """
        return max(1, math.floor(self.time / seconds + 0.5))

    @property
    def when(self) -> str:
        """Return the time, with the crop unless that is the middle, as its line begins."""
        return f"{self.time:.9g}s{'' if self.crop == 0.5 else f'@{self.crop:.9g}'}"

    def __str__(self) -> str:
        """Return the line of the picture, in the one form that it is stored in."""
        return f"{self.when}: {self.file}"


def placed_of(text: str) -> tuple[Placed, ...]:
    """Return the pictures that the lines of a text name, by their times.

    Args:
        text: Lines of the form TIMEs: FILE or TIMEs@CROP: FILE. Empty lines are skipped.

    Raises:
        InputError: If a line cannot be used, or there are too many.
    """
    found: list[Placed] = []
    for line in filter(None, map(str.strip, text.splitlines())):
        match = _LINE.fullmatch(line)
        if match is None:
            raise InputError(
                setting="pictures", found=f"has the line {short_repr(line)}",
                expected="a time and a file, as in 2.4s: photo.jpg", remedy="Correct the line.",
            )  # fmt: skip
        crop = 0.5 if match["crop"] is None else float(match["crop"])
        found.append(Placed(float(match["time"]), match["file"], crop))
    if len(found) > MOST_PICTURES:
        raise InputError(
            setting="pictures", found=f"names {len(found)} pictures", expected=f"at most {MOST_PICTURES}",
            remedy="Leave some out.",
        )  # fmt: skip
    return tuple(sorted(found, key=lambda one: one.time))


def shown(text: str) -> str:
    """Return a text of pictures as people read it: times and names in one line."""
    return ", ".join(f"{one.time:g} s: {Path(one.file).name}" for one in placed_of(text))
