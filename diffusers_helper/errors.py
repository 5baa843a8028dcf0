"""The errors that a user can see, as data that page, endpoint and command line turn into sentences.

A message names a setting or a command in back quotes, which each of them replaces by its own name.
"""

import re
import reprlib
from collections.abc import Callable
from typing import Literal

FailureCode = Literal[
    "bad_input", "picture", "does_not_fit", "out_of_memory", "not_finite", "disk_full", "storage",
    "card_busy", "card_away", "download", "installation", "engine_died", "error",
]  # fmt: skip
"""The kinds of failures, for programs that handle them differently. `error` stands for all other kinds."""
INPUT_CODES: tuple[FailureCode, ...] = ("bad_input", "picture", "does_not_fit")
"""The kinds of failures that are caused by the request itself."""

_MAX_TEXT = 200
_MAX_NUMBER = 60
_short = reprlib.Repr()
_short.maxstring = _short.maxother = _MAX_TEXT
_short.maxlong = _MAX_NUMBER
_NAME = re.compile(r"`(\w+)`")
_NUMBER = re.compile(r"\[Errno -?\d+\] ")
_COMMANDS = {"doctor": "longtake doctor"}


def short_repr(value: object) -> str:
    return _short.repr(value).replace("`", "'")


def first_line(error: BaseException) -> str:
    """Take the first line of an error's text without its number, or the error's class if it has no text."""
    return (_NUMBER.sub("", str(error)).strip().splitlines() or [type(error).__name__])[0][:300]


def default_name(name: str) -> str:
    return _COMMANDS.get(name, name)


def in_words(text: str, name: Callable[[str], str] = default_name) -> str:
    return _NAME.sub(lambda match: name(match[1]), text)


class LongtakeError(Exception):
    """A failure: a sentence on what was found and expected, with names in back quotes, and what to do."""

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
    """A refusal of a request that cannot be carried out, before anything is loaded or written for it."""

    code = "bad_input"

    def __init__(
        self,
        message: str = "",
        remedy: str = "",
        *,
        setting: str = "",
        value: object = None,
        problem: str = "",
        expected: str = "",
    ) -> None:
        message = message or f"`{setting}` {problem or f'is {short_repr(value)}'}; expected {expected}."
        super().__init__(message, remedy, setting=setting)
        self.expected = expected


class PictureError(InputError):
    code = "picture"

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(message, remedy, setting="image")


class GenerationCancelled(Exception):
    """The end of a job at the user's request, which is not a failure."""
