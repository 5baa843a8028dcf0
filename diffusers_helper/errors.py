"""The errors that a person can meet, as data that each surface puts into its own words.

A text here names a setting of a request, or a command of the program, in back quotes: "Raise `preserved_gb`."
Each surface replaces the name by its own: the command line by `--preserved-gb`, the page by a slider's label.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Callable
from typing import Literal

FailureCode = Literal[
    "bad_input", "picture", "does_not_fit", "out_of_memory", "not_finite", "disk_full", "storage",
    "download", "installation", "engine_died", "error",
]  # fmt: skip
"""What kind of failure it is, for whoever has to tell one from another. `error` is any that has no name."""
INPUT_CODES: tuple[FailureCode, ...] = ("bad_input", "picture", "does_not_fit")
"""The failures that another request would not meet."""

_MAX_TEXT, _MAX_NUMBER = 200, 60
_short = reprlib.Repr()
_short.maxstring = _short.maxother = _MAX_TEXT
_short.maxlong = _MAX_NUMBER
_NAME = re.compile(r"`(\w+)`")
_COMMANDS = {"doctor": "python -m app doctor"}


def short_repr(value: object) -> str:
    """Return the representation of a value, short enough for one sentence, and never taken for a name."""
    return _short.repr(value).replace("`", "'")


def first_line(error: BaseException) -> str:
    """Return the beginning of an error's text, or its kind if it has none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]


def own_name(name: str) -> str:
    """Return the name of a setting or command on surfaces that have no other name for it."""
    return _COMMANDS.get(name, name)


def in_words(text: str, name: Callable[[str], str] = own_name) -> str:
    """Return the text with each name in back quotes replaced by the surface's own."""
    return _NAME.sub(lambda found: name(found[1]), text)


class LongtakeError(Exception):
    """A failure that can be explained.

    Attributes:
        code: The kind of the failure.
        message: One sentence with what was found and what was expected; names are in back quotes.
        remedy: The action that helps, in the same form.
        setting: The setting that the failure is about; empty for none or several.
    """

    code: FailureCode = "error"

    def __init__(
        self, message: str, remedy: str = "", *, setting: str = "", code: FailureCode | None = None
    ) -> None:
        super().__init__(message, remedy)
        self.message, self.remedy, self.setting = message, remedy, setting
        self.code = code or self.code

    def __str__(self) -> str:
        return in_words(f"{self.message} {self.remedy}".strip())


class InputError(LongtakeError, ValueError):
    """A request that cannot be carried out as it stands. Nothing has been loaded or written for it."""

    code = "bad_input"

    def __init__(
        self,
        message: str = "",
        remedy: str = "",
        *,
        setting: str = "",
        value: object = None,
        found: str = "",
        expected: str = "",
    ) -> None:
        """Build the message from its parts, or take a whole sentence.

        Args:
            message: The sentence, for an error that is not about one setting's value.
            found: The fault, as it follows the setting's name, where that is not simply the value.
        """
        message = message or f"`{setting}` {found or f'is {short_repr(value)}'}; expected {expected}."
        super().__init__(message, remedy, setting=setting)
        self.expected = expected


class PictureError(InputError):
    """A start picture that cannot be used."""

    code = "picture"

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(message, remedy, setting="image")


class GenerationCancelled(Exception):
    """The end of a job that a person asked for, which is not a failure."""
