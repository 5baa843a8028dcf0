"""Advice on the VAE's tiles after a job, from the decoding times of jobs of the same size on this machine.

Advice needs at least two measurements, since the speed of other tiles is not known before a job has used
them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from diffusers_helper.machine.facts import Facts
from diffusers_helper.planning.estimates import TILES
from diffusers_helper.units import duration, gb_text

# A smaller gain may be due to chance.
_LEAST_GAIN = 0.05


@dataclass(frozen=True, slots=True)
class TileTimes:
    """The times that it took to decode a section with tiles of each size.

    Attributes:
        facts: The file that stores the times.
        key: The machine, the model, the video's size, and all else that the time depends on except the tiles.
    """

    facts: Facts
    key: str

    def note(self, tile_px: int, seconds: float, peak_bytes: int) -> None:
        """Store the measurement of a job.

        Args:
            tile_px: The side of the job's tiles in pixels.
            seconds: The time to decode a section.
            peak_bytes: The peak of the memory that the process held while it decoded.
        """
        entry = {"seconds": round(seconds, 3), "bytes": peak_bytes}
        self.facts.write(self._key(tile_px), entry)

    def advice(self, tile_px: int, cap_bytes: int) -> str:
        """Return a sentence of advice if tiles of another size were faster and fit under the cap, or ""."""
        known = {tile: entry for tile in (*TILES, tile_px) if (entry := self._read(tile))}
        fitting = {tile: entry for tile, entry in known.items() if entry["bytes"] <= cap_bytes}
        if tile_px not in known or not fitting:
            return ""
        mine, best = known[tile_px]["seconds"], min(fitting, key=lambda tile: fitting[tile]["seconds"])
        seconds, peak = fitting[best]["seconds"], gb_text(fitting[best]["bytes"])
        if (gain := 1 - seconds / mine) < _LEAST_GAIN:
            return ""
        return (
            f"VAE tiles of {best} pixels would have fitted and been {gain:.0%} faster: in an earlier job, a "
            f"section took {duration(seconds)} to decode instead of {duration(mine)}, with a peak of {peak} "
            f"of {gb_text(cap_bytes)} GB. The pixels would differ."
        )

    def _key(self, tile_px: int) -> str:
        return f"{self.key}, tiles {tile_px}"

    def _read(self, tile_px: int) -> dict[str, Any]:
        entry = self.facts.read(self._key(tile_px))
        numbers = [entry.get(name) for name in ("seconds", "bytes")]
        return entry if all(isinstance(one, int | float) and one > 0 for one in numbers) else {}
