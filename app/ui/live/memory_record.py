"""The content of a job's memory.json as plain data for the page's table."""

import json
from pathlib import Path
from typing import Any

from diffusers_helper.events import STAGES
from diffusers_helper.files import read_file
from diffusers_helper.units import gb_text

MemoryData = dict[str, Any]
_NEAR = 0.9  # the share of the cap from which a peak is near it
_MAX_BYTES = 4_000_000


def memory_of(file: Path) -> MemoryData | None:
    try:
        record = json.loads(read_file(file, _MAX_BYTES))
        uses = [(stage, [use for use in record["stages"] if use["stage"] == stage]) for stage in STAGES]
        rows = [_row(stage, stage_uses) for stage, stage_uses in uses if stage_uses]
        cap_bytes, peak_bytes, reserve = (
            record[f"{name}_bytes"] for name in ("cap", "peak_device", "reserve")
        )
        cap, peak = gb_text(cap_bytes), gb_text(peak_bytes)
        note = (
            f"Only tensors are counted. {gb_text(reserve)} GB of the cap are reserved for all other memory."
        )
        facts = [("Peak on the device", f"{peak} of {cap} GB")]
        if record["retries"]:
            facts.append(("Smaller plans tried", str(record["retries"])))
        is_near = peak_bytes > _NEAR * cap_bytes
    except (OSError, ValueError, KeyError, TypeError):  # there is none, or it is damaged
        return None
    say = f"peak {peak} of {cap} GB"
    return {"facts": facts, "say": say, "isNear": is_near, "rows": rows, "note": note if reserve else ""}


def _row(stage: str, uses: list[dict[str, Any]]) -> list[str]:
    streamed = sum(use["streamed_bytes"] for use in uses)
    most = (gb_text(max(use[f"{name}_bytes"] for use in uses)) for name in ("predicted", "measured"))
    return [STAGES[stage].network, *most, gb_text(streamed) if streamed else "–"]
