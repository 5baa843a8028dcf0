"""The errors a person can meet. Each carries a sentence to read and a remedy to try."""

from __future__ import annotations

import reprlib

_MAX_TEXT, _MAX_NUMBER = 200, 60
_short = reprlib.Repr()
_short.maxstring = _short.maxother = _MAX_TEXT
_short.maxlong = _MAX_NUMBER


def short_repr(value: object) -> str:
    """A value as a refusal names it: one sentence stays one, however long the value."""
    return _short.repr(value)


class LongtakeError(Exception):
    """Something went wrong in a way we can explain.

    Attributes:
        message: one sentence for a person: what was found and what was expected.
        remedy: one sentence: what to do about it.
    """

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message, remedy)
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.message} {self.remedy}".strip()


class InputError(LongtakeError, ValueError):
    """The request cannot be carried out as it stands; nothing has been loaded or written yet."""


class GenerationCancelled(Exception):
    """The person asked for an end. Control flow, not a failure."""
