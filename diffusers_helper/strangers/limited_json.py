"""JSON of unknown origin, whose size is checked before any of it is built."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from diffusers_helper.files import read_file

MOST_BYTES = 4 * 2**20
"""The bytes of a file with JSON that is read at all. The largest indices of known models have 0.4 MB."""
_MOST_VALUES = 2_000_000  # commas and brackets; each value takes about 64 bytes of memory


def parse_json(
    data: bytes,
    *,
    number: Callable[[str], Any] = float,
    constant: Callable[[str], Any] | None = None,
) -> Any:
    """Return the content of a JSON text.

    Args:
        number: What makes a number of a text that is no whole number.
        constant: The same for NaN and the infinities, if they are not numbers like others.

    Raises:
        ValueError: If it is no JSON, has too many values, or is nested too deeply.
    """
    found = sum(data.count(sign) for sign in (b",", b"[", b"{"))
    if found > _MOST_VALUES:
        raise ValueError(f"{found} values in a list of at most {_MOST_VALUES}")
    try:
        return json.loads(data, parse_float=number, parse_constant=constant or number)
    except RecursionError as error:
        raise ValueError("lists within lists, nested too deeply") from error


def json_or_none(text: object) -> Any:
    """Return the content of a JSON text; None for anything else, and for a text that `parse_json` refuses."""
    try:
        return parse_json(text.encode()) if isinstance(text, str) else None
    except ValueError:
        return None


def plain_json(content: bytes | str) -> Any:
    """Return the value of a JSON text. Its numbers are finite, and its strings can be written as UTF-8.

    Raises:
        ValueError: If the text is anything else, or `parse_json` refuses it.
    """
    data = content.encode() if isinstance(content, str) else content
    value = parse_json(data, number=_finite)
    if b"\\ud" in data.lower():  # perhaps half of a surrogate pair
        json.dumps(value, ensure_ascii=False).encode()
    return value


def plain_texts(content: bytes | str) -> dict[str, str]:
    """Return texts by name from JSON of unknown origin.

    Raises:
        ValueError: If it is anything else.
    """
    found: Any = plain_json(content)
    table = cast(dict[str, Any], found) if isinstance(found, dict) else None
    if table is None or not all(isinstance(value, str) for value in table.values()):
        raise ValueError("it is not a table of texts")
    return table


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text} is not a finite number")
    return number


def read_json(file: Path, most_bytes: int = MOST_BYTES) -> Any:
    """Return the content of a file with JSON.

    Raises:
        OSError: If it cannot be read, is no regular file, or is too long.
        ValueError: If `parse_json` refuses it.
    """
    return parse_json(read_file(file, most_bytes))
