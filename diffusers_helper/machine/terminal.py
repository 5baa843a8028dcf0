"""Texts of unknown origin, such as prompts and names of files, in a form that is safe for a terminal."""

import logging
import re
from unicodedata import east_asian_width

# A terminal obeys control characters, and marks of direction make a text look like another one. Half a
# pair of surrogates stands for a byte that is not UTF-8, and cannot be written.
_CONTROL = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_INVALID = re.compile("[\0\ud800-\udfff]")


def visible(text: str) -> str:
    r"""Write control characters as escapes such as \x1b, except line breaks and tabs."""
    return _CONTROL.sub(_escape, text)


def one_line(text: str) -> str:
    return visible(text).replace("\n", r"\n")


def width_of(text: str) -> int:
    """Count the columns of a terminal, of which a wide character, as of Chinese, takes two."""
    return sum(1 + (east_asian_width(character) in "WF") for character in text)


def is_plain_text(text: str) -> bool:
    """Check that a text has neither NUL nor half a pair of surrogates, which no file or process takes."""
    return _INVALID.search(text) is None


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    # JSON knows \u007f but not \x7f, and leaves the character itself as it is.
    return f"\\x{code:02x}" if code < 0x20 else f"\\u{code:04x}"


class LogLines(logging.Formatter):
    """A formatter that makes one line of each record, besides its traceback, and shows control characters."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return one_line(super().formatMessage(record))

    def format(self, record: logging.LogRecord) -> str:
        return visible(super().format(record))
