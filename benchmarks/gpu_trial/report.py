"""The rows of a trial as a table for docs/log/gpu.md."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from diffusers_helper.units import gb_text

# The unit of a figure by the end of its name; the rest of the name is told before it.
_UNITS = {
    "operations_per_second": (1e12, "TFLOP/s"), "bytes_per_second": (1e9, "GB/s"),
    "operations": (1e12, "TFLOP"), "seconds_per_step": (1, "s a step"), "seconds": (1, "s"),
}  # fmt: skip


def table(folder: Path) -> str:
    """Return the rows of all parts in a folder, in the order of their numbers."""
    lines = ["| what | figure | command |", "| --- | --- | --- |"]
    for file in sorted(folder.glob("part-*.json")):
        content = json.loads(file.read_text(encoding="utf-8"))
        lines += [f"| {' | '.join(row)} |" for row in rows(content)]
    return "\n".join(lines) + "\n"


def rows(content: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield what a part measured, the figures, and the command."""
    title = str(content["title"])
    command = f"`scripts/gpu_trial {content['part']}{' --tiny' if content['is_tiny'] else ''}`"
    for row in content["rows"]:
        yield f"{title}: {row['name']}", ", ".join(filter(None, map(said, row.items()))), command
    if reason := content.get("failed"):
        yield title, f"did not end: {reason}", command


def said(item: tuple[str, Any]) -> str:
    """Return a figure as text with its unit; "" for one that there is not."""
    name, value = item
    if name == "name" or value is None:
        return ""
    if name in ("skipped", "failed"):
        return f"{name}: {value}"
    if isinstance(value, Mapping):
        parts = filter(None, map(said, cast(Mapping[str, Any], value).items()))
        return f"{_words(name)} ({', '.join(parts)})"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"{_words(name)} {', '.join(map(_number, cast(Sequence[float], value)))}"
    if isinstance(value, str | bool):
        return f"{_words(name)} {value}"
    if name.endswith("_bytes"):
        return f"{_words(name.removesuffix('_bytes'))} {gb_text(value)} GB"
    for end, (factor, unit) in _UNITS.items():
        if name == end or name.endswith(f"_{end}"):
            return f"{_words(name.removesuffix(end).rstrip('_'))} {_number(value / factor)} {unit}".strip()
    return f"{_words(name)} {_number(value)}"


def _words(name: str) -> str:
    return name.replace("_", " ")


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.3g}"
