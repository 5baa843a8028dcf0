"""The text of the setting `pictures`, which names the pictures at times of a video, one on each line."""

import math
import re
from dataclasses import dataclass
from pathlib import Path

from diffusers_helper.errors import InputError, short_repr
from diffusers_helper.setting import lines_of
from diffusers_helper.units import TIME, seconds_in

MAX_PICTURES = 16
_LINE = re.compile(
    rf"(?P<time>{TIME})(?:\s*@\s*(?P<crop>0(?:\.\d*)?|1(?:\.0*)?|\.\d+))?\s*:\s*(?P<file>.+)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class TimedPicture:
    time: float
    file: str
    crop: float = 0.5

    def section_index(self, seconds: float) -> int:
        """Find the section that begins with it, if each adds so many seconds; never the first."""
        return max(1, math.floor(self.time / seconds + 0.5))

    @property
    def time_text(self) -> str:
        return f"{self.time:.9g}s{'' if self.crop == 0.5 else f'@{self.crop:.9g}'}"

    def __str__(self) -> str:
        return f"{self.time_text}: {self.file}"


def timed_pictures_of(text: str) -> tuple[TimedPicture, ...]:
    pictures: list[TimedPicture] = []
    for line in lines_of(text):
        match = _LINE.fullmatch(line)
        if match is None:
            raise InputError(
                setting="pictures", problem=f"has the line {short_repr(line)}",
                expected="a time and a file, as in 2.4s: photo.jpg", remedy="Correct the line.",
            )  # fmt: skip
        crop = 0.5 if match["crop"] is None else float(match["crop"])
        pictures.append(TimedPicture(seconds_in(match["time"]), match["file"], crop))
    if len(pictures) > MAX_PICTURES:
        raise InputError(
            setting="pictures", problem=f"names {len(pictures)} pictures", expected=f"at most {MAX_PICTURES}",
            remedy="Leave some out.",
        )  # fmt: skip
    return tuple(sorted(pictures, key=lambda picture: picture.time))


def pictures_summary(text: str) -> str:
    return ", ".join(f"{picture.time:g} s: {Path(picture.file).name}" for picture in timed_pictures_of(text))
