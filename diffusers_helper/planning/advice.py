"""The advice on the VAE's tiles after a job, made of what jobs of the same size have measured here.

There is none without two measurements: how fast other tiles would be is not known before they were used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from diffusers_helper.machine.facts import Facts
from diffusers_helper.planning.estimates import TILES
from diffusers_helper.units import duration, gb_text

# A smaller gain may be chance.
_LEAST_GAIN = 0.05


@dataclass(frozen=True, slots=True)
class TileTimes:
    """The times that decoding a section took with each size of tiles.

    Attributes:
        facts: The place where they are kept.
        key: The machine, the model, the size, and all that the time depends on besides the tiles.
    """

    facts: Facts
    key: str

    def note(self, tile_px: int, seconds: float, peak_bytes: int) -> None:
        """Keep what a job has measured.

        Args:
            tile_px: The side of its tiles.
            seconds: The time for a section.
            peak_bytes: The most that the process held while it decoded.
        """
        entry = {"seconds": round(seconds, 3), "bytes": peak_bytes}
        self.facts.write(self._key(tile_px), entry)

    def advice(self, tile_px: int, cap_bytes: int) -> str:
        """Return a sentence if other tiles were faster and fit under the cap; "" otherwise."""
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
