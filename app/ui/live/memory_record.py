"""The content of a job's memory.json as plain data for the page's plot."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from diffusers_helper.events import STAGES
from diffusers_helper.files import read_file
from diffusers_helper.strangers.limited_json import plain_json
from diffusers_helper.units import duration, gb_text

Shown = dict[str, Any]
# A cap this many times as high as the peak would flatten the plot; it is then given only as text.
_CAP_DRAWN = 4.0
_HEADROOM = 1.06
_MAX_BYTES = 4_000_000
_MOST_NUMBER = 1e18


@dataclass(frozen=True, slots=True)
class _Use:
    """One use of one network, as in `store.StageRecord`."""

    stage: str
    begin: float
    end: float
    predicted_bytes: int
    measured_bytes: int
    streamed_bytes: int


def memory_of(file: Path) -> Shown | None:
    """Return the values that the page shows of the file, or None if it cannot be read."""
    try:
        facts = file.stat()
    except OSError:
        return None
    return _read(file, facts.st_mtime_ns, facts.st_size)


@lru_cache(maxsize=32)
def _read(file: Path, changed: int, size: int) -> Shown | None:
    """Read the file. `changed` is only a key for the cache."""
    try:
        record = plain_json(read_file(file, _MAX_BYTES))
        uses = [_use(stage) for stage in record["stages"]]
        numbers = [
            _number(record[name]) for name in ("cap_bytes", "peak_device_bytes", "reserve_bytes", "retries")
        ]
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return _show(uses, *map(int, numbers)) if uses else None


def _use(stage: dict[str, Any]) -> _Use:
    if not STAGES[stage["stage"]].network:
        raise ValueError(stage["stage"])
    names = ("begin", "end", "predicted_bytes", "measured_bytes", "streamed_bytes")
    begin, end, *counts = (_number(stage[name]) for name in names)
    return _Use(stage["stage"], begin, max(begin, end), *map(int, counts))


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _MOST_NUMBER:
        raise ValueError(value)
    return value


def _show(uses: list[_Use], cap: int, peak: int, reserve: int, retries: int) -> Shown:
    highest = max(max(use.measured_bytes, use.predicted_bytes) for use in uses)
    drawn = cap <= _CAP_DRAWN * highest
    whole = _HEADROOM * max(highest, cap if drawn else 0, 1)
    first, last = min(use.begin for use in uses), max(use.end for use in uses)
    length = max(last - first, 1e-6)
    kept = f"Only tensors are shown. {gb_text(reserve)} GB of the cap are reserved for all other memory."
    heaviest = max(uses, key=lambda use: use.measured_bytes)
    facts = [("Peak on the device", f"{gb_text(peak)} of {gb_text(cap)} GB")]
    if retries:
        facts.append(("Smaller plans tried", str(retries)))
    return {
        "facts": facts,
        "cap": round(cap / whole, 4) if drawn else None,
        "capText": f"cap {gb_text(cap)} GB" if drawn else f"cap {gb_text(cap)} GB, far above",
        "length": duration(length),
        "said": (
            f"Memory on the device over {duration(length)}: at most {gb_text(peak)} GB, in “"
            f"{STAGES[heaviest.stage].network}”; the cap is {gb_text(cap)} GB."
        ),
        "bars": [
            [
                use.stage, round((use.begin - first) / length, 4), round((use.end - use.begin) / length, 4),
                round(use.measured_bytes / whole, 4), round(use.predicted_bytes / whole, 4),
            ]
            for use in uses
        ],
        "rows": [_row(stage, some) for stage in STAGES
                 if (some := [use for use in uses if use.stage == stage])],
        "note": kept if reserve else "",
    }  # fmt: skip


def _row(stage: str, uses: list[_Use]) -> Shown:
    streamed = sum(use.streamed_bytes for use in uses)
    return {
        "stage": stage,
        "name": STAGES[stage].network,
        "cells": [
            gb_text(max(use.predicted_bytes for use in uses)),
            gb_text(max(use.measured_bytes for use in uses)),
            gb_text(streamed) if streamed else "–",
        ],
    }
