"""Whole answers as text that a reviewer can read, for snapshots."""

import json
import re
from collections.abc import Iterable, Iterator
from difflib import SequenceMatcher
from typing import Any

_WIDTH = 172
_MEDIA = re.compile(r"data:[\w/]+;base64,[\w+/=]+")
_TAG = re.compile(r"(?<=>)(?=<(?!/))|(?<=</div>)|(?<=</ul>)|(?<=</p>)|(?<=</button>)|(?<=</label>)|\n+")


def whole(value: Any) -> str:
    """Write a value with its parts, as many on a line as fit."""
    return "\n".join(_lines("", _plain(value), 0))


def changes(before: Any, after: Any) -> str:
    """Write what a value has otherwise than an earlier one, each part with its path."""
    return "\n".join(_packed(_changes("", _plain(before), _plain(after)), 0)) or "(the same)"


def _plain(value: Any) -> Any:
    return json.loads(_MEDIA.sub("data:…", json.dumps(value, ensure_ascii=False, default=str)))


def _texts(items: list[Any]) -> list[str]:
    return [json.dumps(item) for item in items]


def _lines(name: str, value: Any, depth: int) -> list[str]:
    head = "  " * depth + (f"{name}: " if name else "")
    text = json.dumps(value, ensure_ascii=False)
    if isinstance(value, str) and ("\n" in value or (len(text) > _WIDTH and "><" in value)):
        return [
            head.rstrip(),
            *(f"{'  ' * depth}  {part.strip()}" for part in _TAG.split(value) if part.strip()),
        ]
    if not isinstance(value, dict | list) or len(head) + len(text) <= _WIDTH or not value:
        return [head + (value if isinstance(value, str) and value else text)]
    items = value.items() if isinstance(value, dict) else ((f"{n}", item) for n, item in enumerate(value))
    return [*([head.rstrip()] if name else []), *_packed(items, depth + bool(name))]


def _packed(items: Iterable[tuple[str, Any]], depth: int) -> Iterator[str]:
    """Put short parts beside each other."""
    line = ""
    for name, value in items:
        lines = _lines(name, value, depth)
        if line and (len(lines) > 1 or len(line) + len(lines[0].strip()) + 3 > _WIDTH):
            yield line
            line = ""
        if len(lines) > 1:
            yield from lines
        else:
            line = f"{line} | {lines[0].strip()}" if line else lines[0]
    if line:
        yield line


def _changes(path: str, before: Any, after: Any) -> Iterator[tuple[str, Any]]:
    if before == after:
        return
    if isinstance(before, dict) and isinstance(after, dict):
        for key in dict.fromkeys((*before, *after)):
            at = f"{path}.{key}" if path else key
            if key in after:
                yield from _changes(at, before.get(key, "…"), after[key])
            else:
                yield f"{at} is gone", ""
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for index, (old, new) in enumerate(zip(before, after, strict=True)):
            yield from _changes(f"{path}.{index}", old, new)
    elif isinstance(before, list) and isinstance(after, list) and before and after:
        matcher = SequenceMatcher(None, _texts(before), _texts(after))
        for what, start, end, first, last in matcher.get_opcodes():
            if what != "equal":
                yield f"{path}.{first} instead of {end - start}", after[first:last]
    else:
        yield path, after
