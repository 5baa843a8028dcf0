"""The settings of a machine, which a program passes to the library, and the stores of facts about it.

The library does not read the environment. Facts are determined once and kept in small JSON files, one entry
per key.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, cast

from diffusers_helper.files import write_atomic

_log = logging.getLogger(__name__)
_MOST = 1e13  # bytes per second; more is a mistake


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts in one file. Without a file nothing is stored; a missing or damaged file counts as empty."""

    file: Path | None = None

    def read(self, key: str) -> dict[str, Any]:
        """Return the entry for a key, or an empty dict if there is none."""
        entry = self._all().get(key)
        return cast(dict[str, Any], entry) if isinstance(entry, dict) else {}

    def write(self, key: str, entry: dict[str, Any]) -> None:
        """Store the entry for a key. If the file cannot be written, log a warning."""
        if self.file is None:
            return
        entries = {**self._all(), key: entry}
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(self.file, json.dumps(entries, indent=1).encode() + b"\n")
        except OSError as error:
            _log.warning("%s cannot be written (%s)", self.file, error)

    def forget(self) -> int:
        """Remove the file, and return the number of entries that it had.

        Raises:
            OSError: If the file cannot be removed.
        """
        count = len(self._all())
        if self.file is not None:
            self.file.unlink(missing_ok=True)
        return count

    def _all(self) -> dict[str, Any]:
        if self.file is None:
            return {}
        try:
            entries = json.loads(self.file.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return {}
        return cast(dict[str, Any], entries) if isinstance(entries, dict) else {}


@dataclass(frozen=True, slots=True)
class Local:
    """The settings of a machine, as opposed to those of a job.

    Attributes:
        environ: The environment variables, of which `planning.profiles` reads some.
        folder: The folder for this machine's measurements and the levels of smaller plans; None for neither.
        is_guest: Whether the process belongs to another program, whose limits stay as they are.
        try_attention: A function that tries ways to compute attention in a process of its own, given their
            names and the other arguments of `attention.trial.try_ways`, and returns what that yields; None
            if nothing is tried.
    """

    environ: Mapping[str, str] = field(default_factory=dict[str, str])
    folder: Path | None = None
    is_guest: bool = False
    try_attention: Callable[..., list[dict[str, Any]]] | None = None

    @property
    def calibration(self) -> Path | None:
        """Return the file with the ratios of measured to estimated memory (`planning.estimates`)."""
        return self.folder and self.folder / "calibration.json"

    @property
    def learned(self) -> Facts:
        """Return the store of the levels that jobs reached after shortages (`planning.ladder`)."""
        return self._facts("smaller_plans.json")

    @property
    def tile_times(self) -> Facts:
        """Return the store of the times to decode with tiles of each size (`job.plans.TileTimes`)."""
        return self._facts("tile_times.json")

    @property
    def kernels(self) -> Facts:
        """Return the store of what was seen of attention (`machine.attention`)."""
        return self._facts("attention.json")

    @property
    def disks(self) -> Facts:
        """Return the store of the speeds of disks (`machine.disk`)."""
        return self._facts("disks.json")

    @property
    def speeds(self) -> Facts:
        """Return the store of the speeds of bus and disk that a benchmark measured (`machine.measured`)."""
        return self._facts("speeds.json")

    @property
    def encodings(self) -> Path | None:
        """Return the folder of encodings of texts and pictures (`output.encoding_cache.EncodingCache`)."""
        return self.folder and self.folder / "encodings"

    def _facts(self, name: str) -> Facts:
        return Facts(self.folder and self.folder / name)


@dataclass(frozen=True, slots=True)
class Speeds:
    """Measured speeds in bytes per second; None for those that were not measured.

    Attributes:
        host_to_device_pinned_bytes_per_second: Copies from pinned main memory to the card, which is how
            weights are streamed.
        host_to_device_bytes_per_second: Copies from other main memory.
        disk_read_bytes_per_second: Reads of a large file that bypass the page cache.
    """

    host_to_device_pinned_bytes_per_second: float | None = None
    host_to_device_bytes_per_second: float | None = None
    disk_read_bytes_per_second: float | None = None


def keep_speeds(facts: Facts, card: str, measured: Speeds) -> None:
    """Store measured speeds. Those that are None keep the value that is stored.

    Args:
        facts: The store (`Local.speeds`).
        card: The card (`Machine.card`).
    """
    found = {name: round(value) for name, value in asdict(measured).items() if value is not None}
    facts.write(card, {**facts.read(card), **found})


def speeds(facts: Facts, card: str) -> Speeds:
    """Return the stored speeds of a machine with this card; None for what is missing or of no use."""
    entry = facts.read(card)
    return Speeds(**{field.name: _speed(entry.get(field.name)) for field in fields(Speeds)})


def _speed(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 < value < _MOST else None
