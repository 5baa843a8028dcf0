"""Whole answers as readable text, for snapshots: sizes in GB, figures of four digits, folders by names."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from diffusers_helper.units import GB


def text_of(value: Any, name: str = "") -> str:
    """Write a value on one line, without members that are empty, 0, None or False; bytes are in GB."""
    if is_dataclass(value) and not isinstance(value, type):
        members = {field.name: getattr(value, field.name) for field in fields(value) if field.compare}
        parts = [f"{field}={text_of(member, field)}" for field, member in members.items() if _counts(member)]
        return f"{type(value).__name__}({', '.join(parts)})"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key}: {text_of(item, name)}' for key, item in value.items())}}}"
    if isinstance(value, tuple | list):
        return f"[{_items(value, name)}]"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if name.endswith("_bytes"):
        return f"{value / GB:.3f} GB"
    return str(value) if isinstance(value, int) else f"{value:.4g}"


def _counts(member: Any) -> bool:
    return member not in (None, 0, "", (), [], {})


def _items(values: Any, name: str) -> str:
    if len(values) > 4 and all(type(value) is int for value in values):
        runs = groupby(enumerate(values), key=lambda pair: pair[1] - pair[0])
        spans = [[value for _, value in run] for _, run in runs]
        return ", ".join(f"{span[0]}-{span[-1]}" if span[1:] else str(span[0]) for span in spans)
    return ", ".join(text_of(value, name) for value in values)


def lines_of(value: Any, *names: str) -> list[str]:
    """Write each of these attributes, or else all fields, on a line of its own; items of a tuple, too."""
    names = names or tuple(field.name for field in fields(value) if field.repr and field.compare)
    lines = list[str]()
    for name in names:
        member = getattr(value, name)
        if isinstance(member, tuple) and member and (isinstance(member[0], str) or is_dataclass(member[0])):
            lines += [f"{name}: {text_of(item)}" for item in member]
        elif isinstance(member, Mapping):
            lines += [f"{name}.{key}: {text_of(item, name)}" for key, item in member.items()]
        else:
            lines.append(f"{name}: {text_of(member, name)}")
    return lines


def changed(lines: list[str], usual: list[str]) -> list[str]:
    """Leave out the lines that are as usual, and name those that are not there."""
    names = {line.partition(":")[0] for line in lines}
    gone = (line.partition(":")[0] for line in usual)
    return [
        *(line for line in lines if line not in usual),
        *(f"no {name}" for name in gone if name not in names),
    ]


def without(text: str, **paths: Path) -> str:
    """Replace these folders by their names in angle brackets."""
    for name, path in paths.items():
        text = text.replace(str(path), f"<{name}>")
    return text
