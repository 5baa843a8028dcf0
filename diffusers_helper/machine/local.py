"""The settings of a machine, which a program passes to the library, as that does not read the environment."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from diffusers_helper.machine.facts import Facts


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
        """Return the store of the levels that jobs reached after shortages (`planning.smaller_plans`)."""
        return self._facts("smaller_plans.json")

    @property
    def tile_times(self) -> Facts:
        """Return the store of the times to decode with tiles of each size (`planning.advice`)."""
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
        """Return the folder of encodings of texts and pictures (`output.encoding_cache`)."""
        return self.folder and self.folder / "encodings"

    def _facts(self, name: str) -> Facts:
        return Facts(self.folder and self.folder / name)
