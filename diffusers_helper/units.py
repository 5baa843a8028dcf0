"""Sizes, durations and counts as text for users. Internally, sizes are in bytes and times in seconds."""

from __future__ import annotations

import math

GB = 1024**3


def gb_bytes(count: float) -> int:
    """Return a number of GB (1024^3 bytes) in whole bytes, rounded down."""
    return math.floor(count * GB)


def gb_text(count: float, *, up: bool = False) -> str:
    """Return bytes as a number of GB with one decimal, or up to four if it is small: 20, 16.5, 0.12, 0.0034.

    Args:
        up: Whether to round up, for a figure that must not be too low.
    """
    digits = 1 + sum(count < GB / 10**n for n in range(3))
    scaled = count * 10**digits / GB  # exact: GB is a power of two
    whole = math.ceil(scaled) if up else round(scaled)
    return f"{whole / 10**digits:.{digits}f}".rstrip("0").rstrip(".")


def size_text(count: float) -> str:
    """Return the size of a file in the unit that suits it: 812 bytes, 34 KB, 1.2 MB, 3.4 GB, each of 1024."""
    for unit, size in (("GB", GB), ("MB", 1024**2), ("KB", 1024)):
        if count >= size:
            return f"{count / size:.1f} {unit}" if count < 10 * size else f"{count / size:.0f} {unit}"
    return f"{count:.0f} bytes"


def duration(seconds: float) -> str:
    """Return a duration as text, such as "0.4 s", "12 s", "2 min 5 s" or "1 h 40 min"."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return " ".join(filter(None, (f"{minutes} min" if minutes else "", f"{rest} s" if rest else "")))
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"


def about(seconds: float) -> str:
    """Return an estimated duration as text, rounded as an estimate should be: "about 40 s", "about 9 min"."""
    if seconds < 7.5:
        return "a few seconds"
    minutes, hours = seconds / 60, seconds / 3600
    if seconds < 57.5:
        rounded = 5.0 * round(seconds / 5)
    elif minutes < 9.5:
        rounded = 30.0 * round(2 * minutes)
    elif minutes < 57.5:
        rounded = 60.0 * (round(minutes) if minutes < 20 else 5 * round(minutes / 5))
    else:
        rounded = 1800.0 * round(2 * hours)
    return f"about {duration(rounded)}"


def count_text(number: int, noun: str) -> str:
    """Return a number with its noun, which is plural unless the number is 1: "1 section", "2 sections"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
