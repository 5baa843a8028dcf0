"""The text of the setting `lora`, which names the LoRAs of a video and their weights, one on each line.

The page and the command line choose by name from the folder with a user's LoRAs.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from diffusers_helper.errors import InputError, short_repr
from diffusers_helper.files import SAFETENSORS, expanded_path, named_folder, weight_names
from diffusers_helper.setting import text_of

MAX_LORAS = 16
MAX_WEIGHT = 10.0
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
        return name in (self.name, Path(self.file).stem)

    def __str__(self) -> str:
        return f"{self.file}:{self.weight:.15g}{f' sha256:{self.sha256}' if self.sha256 else ''}"


def choices_of(text: str) -> tuple[Choice, ...]:
    """Parse lines FILE, FILE:WEIGHT or FILE:WEIGHT sha256:CHECKSUM, or raise InputError."""
    choices = parsed_choices(text)
    names = [choice.file for choice in choices]
    for choice in choices:
        if not abs(choice.weight) <= MAX_WEIGHT:
            raise _refusal(
                f"gives {short_repr(choice.name)} the weight {choice.weight:g}",
                f"a weight from -{MAX_WEIGHT:g} to {MAX_WEIGHT:g}",
                "Choose another weight.",
            )
        if names.count(choice.file) > 1:
            raise _refusal(
                f"names {short_repr(choice.file)} twice", "each file once", "Leave one of them out."
            )
    if len(choices) > MAX_LORAS:
        raise _refusal(f"names {len(choices)} files", f"at most {MAX_LORAS}", "Leave some out.")
    return choices


def parsed_choices(text: str) -> tuple[Choice, ...]:
    matches = (_LINE.fullmatch(line.strip()) for line in text.splitlines() if line.strip())
    return tuple(
        Choice(match["file"], float(match["weight"] or 1), (match["sum"] or "").lower())
        for match in matches
        if match
    )


def lora_summary(text: str) -> str:
    return ", ".join(f"{choice.name} ({choice.weight:g})" for choice in choices_of(text))


def _refusal(problem: str, expected: str, remedy: str) -> InputError:
    return InputError(setting="lora", problem=problem, expected=expected, remedy=remedy)


VARIABLE = "LONGTAKE_LORAS"


def lora_folder(environ: Mapping[str, str]) -> Path:
    return named_folder(environ, VARIABLE, "loras")


def with_paths(text: str, folder: Path) -> str:
    """Replace names in a text of LoRAs, which have to be those of files in the folder, by paths."""
    names = weight_names(folder)
    return text_of(replace(choice, file=str(folder / _find(choice, names))) for choice in choices_of(text))


def with_absolute_paths(text: str, folder: Path, start: Path = Path()) -> str:
    def absolute_path(choice: Choice) -> str:
        path = start / expanded_path(choice.file, "lora")
        return str(path.absolute() if path.is_file() else folder / _find(choice, weight_names(folder)))

    return text_of(replace(choice, file=absolute_path(choice)) for choice in choices_of(text))


def with_relative_names(text: str, folder: Path) -> str:
    """Replace paths in a text of LoRAs by the names with which `with_paths` finds the files."""

    def relative_name(choice: Choice) -> str:
        path = Path(choice.file)
        return path.relative_to(folder).as_posix() if path.is_relative_to(folder) else path.name

    return text_of(replace(choice, file=relative_name(choice)) for choice in choices_of(text))


def _find(choice: Choice, names: tuple[str, ...]) -> str:
    file_name = choice.file if choice.file.lower().endswith(SAFETENSORS) else choice.file + SAFETENSORS
    spellings = {file_name, f"{choice.file}{SAFETENSORS.upper()}"}
    if found_names := [name for name in names if name in spellings]:
        return found_names[0]
    matches = [name for name in names if "/" not in file_name and Path(name).name in spellings]
    if len(matches) == 1:
        return matches[0]
    if matches:
        problem = f"names {short_repr(file_name)}, which lies in several folders"
        raise _refusal(problem, f"one of {', '.join(matches)}", "Name it with its folder.")
    problem = f"names {short_repr(Path(file_name).name)}, which is not in the folder for LoRAs"
    raise _refusal(problem, "a safetensors file there", "Put it there, or choose another one.")
