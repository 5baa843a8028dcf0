"""Untrusted JSON, whose size is checked before any of it is built."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from diffusers_helper.files import read_file

MAX_BYTES = 4 * 2**20
"""The bytes of a file with JSON that is read at all. The largest indices of known models have 0.4 MB."""
_MAX_VALUES = 2_000_000  # commas and brackets; each value takes about 64 bytes of memory


def parse_json(data: bytes, *, parse_number: Callable[[str], Any] = float) -> Any:
    """Parse a JSON text, or raise ValueError if it has too many values or is nested too deeply."""
    num_values = sum(data.count(separator) for separator in (b",", b"[", b"{"))
    if num_values > _MAX_VALUES:
        raise ValueError(f"{num_values} values in a list of at most {_MAX_VALUES}")
    try:
        return json.loads(data, parse_float=parse_number, parse_constant=parse_number)
    except RecursionError as error:
        raise ValueError("lists within lists, nested too deeply") from error


def json_or_none(text: object) -> Any:
    try:
        return parse_json(text.encode()) if isinstance(text, str) else None
    except ValueError:
        return None


def plain_json(content: bytes | str) -> Any:
    """Parse JSON with finite numbers and strings that can be written as UTF-8, or raise ValueError."""
    data = content.encode() if isinstance(content, str) else content
    value = parse_json(data, parse_number=_finite)
    if b"\\ud" in data.lower():  # perhaps half of a surrogate pair
        json.dumps(value, ensure_ascii=False).encode()
    return value


def plain_texts(content: bytes | str) -> dict[str, str]:
    value: Any = plain_json(content)
    table = cast(dict[str, Any], value) if isinstance(value, dict) else None
    if table is None or not all(isinstance(value, str) for value in table.values()):
        raise ValueError("it is not a table of texts")
    return table


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text} is not a finite number")
    return number


def read_json(file: Path, max_bytes: int = MAX_BYTES) -> Any:
    return parse_json(read_file(file, max_bytes))
