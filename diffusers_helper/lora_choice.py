"""The text of the setting `lora`, which names the LoRAs of a video and their weights, one on each line."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from diffusers_helper.errors import InputError, short_repr

MOST_LORAS = 16
MOST_WEIGHT = 10.0
_LINE = re.compile(
    r"(?P<file>.+?)(?::(?P<weight>[+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?))?(?:\s+sha256:(?P<sum>[0-9a-f]{64}))?",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Choice:
    """One LoRA of a video.

    Attributes:
        weight: The factor of its effect; 1 for that of its author, 0 for none.
        sha256: The checksum that the file must have; "" for any.
    """

    file: str
    weight: float = 1.0
    sha256: str = ""

    @property
    def name(self) -> str:
        """Return the name of the file without its folder."""
        return Path(self.file).name

    def is_called(self, name: str) -> bool:
        """Return whether a name means it: that of its file, with or without the ending."""
        return name in (self.name, Path(self.file).stem)

    def __str__(self) -> str:
        """Return the line of the choice, in the one form that it is stored in."""
        return f"{self.file}:{self.weight:.15g}{f' sha256:{self.sha256}' if self.sha256 else ''}"


def choices_of(text: str) -> tuple[Choice, ...]:
    """Return the LoRAs that the lines of a text name.

    Args:
        text: Lines of the form FILE, FILE:WEIGHT or FILE:WEIGHT sha256:CHECKSUM. Empty lines are skipped.

    Raises:
        InputError: If a line cannot be used, a file is named twice, or there are too many.
    """
    found = named(text)
    names = [one.file for one in found]
    for one in found:
        if not abs(one.weight) <= MOST_WEIGHT:
            raise _refusal(
                f"gives {short_repr(one.name)} the weight {one.weight:g}",
                f"a weight from -{MOST_WEIGHT:g} to {MOST_WEIGHT:g}",
                "Choose another weight.",
            )
        if names.count(one.file) > 1:
            raise _refusal(f"names {short_repr(one.file)} twice", "each file once", "Leave one of them out.")
    if len(found) > MOST_LORAS:
        raise _refusal(f"names {len(found)} files", f"at most {MOST_LORAS}", "Leave some out.")
    return found


def named(text: str) -> tuple[Choice, ...]:
    """Return the LoRAs that the lines of a text name, as `choices_of` does, even if they cannot be used."""
    found = (_LINE.fullmatch(line.strip()) for line in text.splitlines() if line.strip())
    return tuple(
        Choice(one["file"], float(one["weight"] or 1), (one["sum"] or "").lower()) for one in found if one
    )


def shown(text: str) -> str:
    """Return a text of LoRAs as people read it: names and weights in one line."""
    return ", ".join(f"{one.name} ({one.weight:g})" for one in choices_of(text))


def _refusal(found: str, expected: str, remedy: str) -> InputError:
    return InputError(setting="lora", found=found, expected=expected, remedy=remedy)
