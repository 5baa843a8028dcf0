"""The content of a job's memory.json as plain data for the page's plot."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field

from diffusers_helper.events import STAGES
from diffusers_helper.files import read_file
from diffusers_helper.units import duration, gb_text

PlotData = dict[str, Any]
# A cap this many times as high as the peak would flatten the plot; it is then given only as text.
_MAX_CAP_FACTOR = 4.0
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


def memory_of(file: Path) -> PlotData | None:
    """Read the values that the page shows of the file; None if it cannot be read."""
    try:
        stat = file.stat()
    except OSError:
        return None
    return _read_cached(file, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=32)
def _read_cached(file: Path, changed: int, size: int) -> PlotData | None:
    """Read the file. `changed` and `size` are only keys for the cache."""
    try:
        return _plot(_Record.model_validate_json(read_file(file, _MAX_BYTES)))
    except (OSError, ValueError, KeyError):
        return None


def _plot(record: _Record) -> PlotData:
    uses = record.stages
    cap = record.cap_bytes
    reserve = record.reserve_bytes
    peak = gb_text(record.peak_device_bytes)
    highest = max(max(use.measured_bytes, use.predicted_bytes) for use in uses)
    draws_cap = cap <= _MAX_CAP_FACTOR * highest
    top_bytes = _HEADROOM * max(highest, cap if draws_cap else 0, 1)
    start, end = min(use.begin for use in uses), max(use.end for use in uses)
    length = max(end - start, 1e-6)
    note = f"Only tensors are shown. {gb_text(reserve)} GB of the cap are reserved for all other memory."
    heaviest = max(uses, key=lambda use: use.measured_bytes)
    rows = [("Peak on the device", f"{peak} of {gb_text(cap)} GB")]
    if record.retries:
        rows.append(("Smaller plans tried", str(record.retries)))
    return {
        "facts": rows,
        "cap": round(cap / top_bytes, 4) if draws_cap else None,
        "capText": f"cap {gb_text(cap)} GB" if draws_cap else f"cap {gb_text(cap)} GB, far above",
        "length": duration(length),
        "said": (
            f"Memory on the device over {duration(length)}: at most {peak} GB, in “"
            f"{STAGES[heaviest.stage].network}”; the cap is {gb_text(cap)} GB."
        ),
        "bars": [
            [
                use.stage, round((use.begin - start) / length, 4), round((use.end - use.begin) / length, 4),
                round(use.measured_bytes / top_bytes, 4), round(use.predicted_bytes / top_bytes, 4),
            ]
            for use in uses
        ],
        "rows": [_row(stage, stage_uses) for stage in STAGES
                 if (stage_uses := [use for use in uses if use.stage == stage])],
        "note": note if reserve else "",
    }  # fmt: skip


def _row(stage: str, uses: list[_Use]) -> PlotData:
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
