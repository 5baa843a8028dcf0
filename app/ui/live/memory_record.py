"""The content of a job's memory.json as plain data for the page's plot."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field

from diffusers_helper.events import STAGES
from diffusers_helper.files import read_file
from diffusers_helper.units import duration, gb_text

Shown = dict[str, Any]
# A cap this many times as high as the peak would flatten the plot; it is then given only as text.
_CAP_DRAWN = 4.0
_HEADROOM = 1.06
_MAX_BYTES = 4_000_000
_Bytes = Annotated[int, Field(ge=0, le=10**18)]
_Seconds = Annotated[float, Field(ge=0, le=1e18)]


class _Use(BaseModel):
    """One use of one network, as in `store.StageRecord`."""

    stage: str
    begin: _Seconds
    end: _Seconds
    predicted_bytes: _Bytes
    measured_bytes: _Bytes
    streamed_bytes: _Bytes


class _Record(BaseModel):
    """The part of a job's memory.json that is shown."""

    stages: Annotated[list[_Use], Field(min_length=1)]
    cap_bytes: _Bytes
    peak_device_bytes: _Bytes
    reserve_bytes: _Bytes
    retries: int


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
        return _show(_Record.model_validate_json(read_file(file, _MAX_BYTES)))
    except (OSError, ValueError, KeyError):
        return None


def _show(record: _Record) -> Shown:
    uses, cap, reserve = record.stages, record.cap_bytes, record.reserve_bytes
    peak = gb_text(record.peak_device_bytes)
    highest = max(max(use.measured_bytes, use.predicted_bytes) for use in uses)
    drawn = cap <= _CAP_DRAWN * highest
    whole = _HEADROOM * max(highest, cap if drawn else 0, 1)
    first, last = min(use.begin for use in uses), max(use.end for use in uses)
    length = max(last - first, 1e-6)
    kept = f"Only tensors are shown. {gb_text(reserve)} GB of the cap are reserved for all other memory."
    heaviest = max(uses, key=lambda use: use.measured_bytes)
    facts = [("Peak on the device", f"{peak} of {gb_text(cap)} GB")]
    if record.retries:
        facts.append(("Smaller plans tried", str(record.retries)))
    return {
        "facts": facts,
        "cap": round(cap / whole, 4) if drawn else None,
        "capText": f"cap {gb_text(cap)} GB" if drawn else f"cap {gb_text(cap)} GB, far above",
        "length": duration(length),
        "said": (
            f"Memory on the device over {duration(length)}: at most {peak} GB, in “"
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
