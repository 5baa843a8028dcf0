"""Sizes, durations and counts as text for users. Internally, sizes are in bytes and times in seconds."""

import math
import re

GB = 1024**3
NUMBER = r"\d{1,9}(?:[.,]\d*)?"
CLOCK = r"(?:\d{1,2}:)?\d{1,3}:[0-5]\d(?:[.,]\d*)?"
UNIT = r"\s*s(?:ec(?:ond)?s?)?"
TIME = rf"(?:{CLOCK}(?:{UNIT})?|{NUMBER}{UNIT})"
"""Times as people write them: 2s, 1.5 s, 1,5 seconds, 0:02."""


def seconds_in(text: str) -> float:
    """Parse a text that `TIME` matches, also without its unit."""
    parts = re.sub(r"[^\d.:]", "", text.replace(",", ".")).split(":")
    return sum(float(part) * 60**power for power, part in enumerate(reversed(parts)))


def gb_bytes(num_gb: float) -> int:
    return math.floor(num_gb * GB)


def gb_text(num_bytes: float, *, round_up: bool = False, more_digits: int = 0) -> str:
    """Write bytes as GB with one decimal, or up to four if it is small: 20, 16.5, 0.12, 0.0034."""
    digits = 1 + more_digits + sum(num_bytes < GB / 10**n for n in range(3))
    scaled = num_bytes * 10**digits / GB  # exact: GB is a power of two
    rounded = math.ceil(scaled) if round_up else round(scaled)
    return f"{rounded / 10**digits:.{digits}f}".rstrip("0").rstrip(".")


def compared_gb(num_bytes: float, needed_bytes: float) -> tuple[str, str]:
    """Write a size, and one that is needed, with so many decimals that the texts compare as the sizes do."""
    texts = ("", "")
    for more_digits in range(9):
        needed = gb_text(needed_bytes, round_up=True, more_digits=more_digits)
        texts = gb_text(num_bytes, more_digits=more_digits), needed
        if (float(texts[0]) < float(needed)) == (num_bytes < needed_bytes):
            break
    return texts


def size_text(num_bytes: float) -> str:
    for unit, size in (("GB", GB), ("MB", 1024**2), ("KB", 1024)):
        if num_bytes >= size:
            return f"{num_bytes / size:.{int(num_bytes < 10 * size)}f} {unit}"
    return f"{num_bytes:.0f} bytes"


def duration(seconds: float) -> str:
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    minutes, remaining_seconds = divmod(round(seconds), 60)
    if minutes < 60:
        parts = (minutes, "min"), (remaining_seconds, "s")
        return " ".join(f"{number} {unit}" for number, unit in parts if number)
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"


def about(seconds: float) -> str:
    """Write an estimated duration, rounded as an estimate should be: "about 40 s", "about 9 min"."""
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
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
