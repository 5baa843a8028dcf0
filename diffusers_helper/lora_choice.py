"""The text of the setting `lora`, which names the LoRAs of a video and their weights, one on each line.

The page and the command line choose by name from the folder with a user's LoRAs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from diffusers_helper.errors import InputError, short_repr
from diffusers_helper.files import given_path, named_folder
from diffusers_helper.setting import text_of

MOST_LORAS = 16
MOST_WEIGHT = 10.0
_LINE = re.compile(
    r"(?P<file>.+?)(?::(?P<weight>[+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?))?(?:\s+sha256:(?P<sum>[0-9a-f]{64}))?",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Choice:
    """One LoRA of a video. Its file must have the checksum, unless that is "" for any."""

    file: str
    weight: float = 1.0
    sha256: str = ""

    @property
    def name(self) -> str:
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


VARIABLE = "LONGTAKE_LORAS"
_SUFFIX = ".safetensors"


def lora_folder(environ: Mapping[str, str]) -> Path:
    """Return the folder that the environment names, or `loras` in the current folder. It need not exist."""
    return named_folder(environ, VARIABLE, "loras")


def lora_names(folder: Path) -> tuple[str, ...]:
    """Return the files in the folder and its folders, sorted, by their paths relative to it."""
    found = (path.relative_to(folder).as_posix() for path in folder.rglob(f"*{_SUFFIX}") if path.is_file())
    return tuple(sorted(found, key=str.lower))


def within(text: str, folder: Path) -> str:
    """Return a text of LoRAs with paths in place of names, which have to be those of files in the folder.

    Raises:
        InputError: If there is no such file, or the name fits several.
    """
    names = lora_names(folder)
    return text_of(replace(one, file=str(folder / _found(one, names))) for one in choices_of(text))


def located(text: str, folder: Path, start: Path = Path()) -> str:
    """Return a text of LoRAs with absolute paths in place of paths, or of names of files in the folder.

    Args:
        start: The folder that paths are relative to.

    Raises:
        InputError: If there is no such file.
    """

    def place(one: Choice) -> str:
        path = start / given_path(one.file, "lora")
        return str(path.absolute() if path.is_file() else folder / _found(one, lora_names(folder)))

    return text_of(replace(one, file=place(one)) for one in choices_of(text))


def relative(text: str, folder: Path) -> str:
    """Return a text of LoRAs with the names by which `within` finds the files, in place of paths."""

    def name(one: Choice) -> str:
        path = Path(one.file)
        return path.relative_to(folder).as_posix() if path.is_relative_to(folder) else path.name

    return text_of(replace(one, file=name(one)) for one in choices_of(text))


def _found(one: Choice, names: tuple[str, ...]) -> str:
    """Return the file of a choice among those of the folder: by its whole name, or by the last part of it."""
    wanted = one.file.removesuffix(_SUFFIX) + _SUFFIX
    if wanted in names:
        return wanted
    alike = [name for name in names if "/" not in wanted and Path(name).name == wanted]
    if len(alike) == 1:
        return alike[0]
    if alike:
        found = f"names {short_repr(wanted)}, which lies in several folders"
        raise _refusal(found, f"one of {', '.join(alike)}", "Name it with its folder.")
    found = f"names {short_repr(Path(wanted).name)}, which is not in the folder for LoRAs"
    raise _refusal(found, "a safetensors file there", "Put it there, or choose another one.")
