"""The content of a job's memory.json as plain data for the page's table."""

from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field

from diffusers_helper.events import STAGES
from diffusers_helper.files import read_file
from diffusers_helper.units import gb_text

MemoryData = dict[str, Any]
_NEAR = 0.9  # the share of the cap from which a peak is near it
_MAX_BYTES = 4_000_000
_Bytes = Annotated[int, Field(ge=0, le=10**18)]


class _Use(BaseModel):
    """One use of one network, as in `store.StageRecord`."""

    stage: str
    predicted_bytes: _Bytes
    measured_bytes: _Bytes
    streamed_bytes: _Bytes


class _Record(BaseModel):
    stages: Annotated[list[_Use], Field(min_length=1)]
    cap_bytes: _Bytes
    peak_device_bytes: _Bytes
    reserve_bytes: _Bytes
    retries: int


def memory_of(file: Path) -> MemoryData | None:
    try:
        return _data(_Record.model_validate_json(read_file(file, _MAX_BYTES)))
    except (OSError, ValueError, KeyError):
        return None


def _data(record: _Record) -> MemoryData:
    cap, peak = gb_text(record.cap_bytes), gb_text(record.peak_device_bytes)
    reserve = record.reserve_bytes
    note = f"Only tensors are counted. {gb_text(reserve)} GB of the cap are reserved for all other memory."
    rows = [("Peak on the device", f"{peak} of {cap} GB")]
    if record.retries:
        rows.append(("Smaller plans tried", str(record.retries)))
    return {
        "facts": rows,
        "say": f"peak {peak} of {cap} GB",
        "isNear": record.peak_device_bytes > _NEAR * record.cap_bytes,
        "rows": [_row(stage, stage_uses) for stage in STAGES
                 if (stage_uses := [use for use in record.stages if use.stage == stage])],
        "note": note if reserve else "",
    }  # fmt: skip


def _row(stage: str, uses: list[_Use]) -> list[str]:
    streamed = sum(use.streamed_bytes for use in uses)
    return [
        STAGES[stage].network,
        gb_text(max(use.predicted_bytes for use in uses)),
        gb_text(max(use.measured_bytes for use in uses)),
        gb_text(streamed) if streamed else "–",
    ]
