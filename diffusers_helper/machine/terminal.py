"""Texts of unknown origin, such as prompts and the names of files, and what a terminal may get of them."""

from __future__ import annotations

import logging
import re

# A terminal obeys the control characters, and the marks of direction make a text look like another one. Half
# a pair of surrogates stands for a byte that is not UTF-8, and cannot be written.
_HIDDEN = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_BROKEN = re.compile("[\0\ud800-\udfff]")


def visible(text: str) -> str:
    r"""Return the text with control characters as escapes such as \x1b, except line breaks and tabs."""
    return _HIDDEN.sub(_escape, text)


def one_line(text: str) -> str:
    r"""Return the text with all control characters and line breaks, too, as escapes such as \n."""
    return visible(text).replace("\n", r"\n")


def is_whole(text: str) -> bool:
    """Return whether a text has neither NUL nor half a pair of surrogates, which no file or process takes."""
    return _BROKEN.search(text) is None


def _escape(found: re.Match[str]) -> str:
    number = ord(found[0])
    # JSON knows \u007f but not \x7f, and leaves the character itself as it is.
    return f"\\x{number:02x}" if number < 0x20 else f"\\u{number:04x}"


class LogLines(logging.Formatter):
    """A formatter that makes one line of each record, besides its traceback, and shows control characters."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return one_line(super().formatMessage(record))

    def format(self, record: logging.LogRecord) -> str:
        """Return the record's line and its traceback, if there is one."""
        return visible(super().format(record))
