"""The settings of a machine that a program hands to the library, which reads no environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from diffusers_helper.machine.facts import Facts


@dataclass(frozen=True, slots=True)
class Local:
    """The settings of a machine, as opposed to those of a job.

    Attributes:
        environ: Environment variables; `profiles` defines which are read.
        folder: The folder for measurements of this machine and plans that were too large; None keeps neither.
        is_guest: Whether the process belongs to another program, whose limits stay as they are.
    """

    environ: Mapping[str, str] = field(default_factory=dict[str, str])
    folder: Path | None = None
    is_guest: bool = False

    @property
    def calibration(self) -> Path | None:
        """Return the file with ratios of measured to estimated memory (`benchmarks/calibrate_memory.py`)."""
        return self.folder and self.folder / "calibration.json"

    @property
    def learned(self) -> Facts:
        """Return the plans that took too much memory (`planning.recovery`)."""
        return self._facts("smaller_plans.json")

    @property
    def tile_times(self) -> Facts:
        """Return the times that the VAE took with each size of tiles (`planning.advice`)."""
        return self._facts("tile_times.json")

    @property
    def kernels(self) -> Facts:
        """Return the attention kernel that SDPA ran here (`machine.kernels`)."""
        return self._facts("attention.json")

    @property
    def disks(self) -> Facts:
        """Return the speeds of the disks with weights (`machine.disk`)."""
        return self._facts("disks.json")

    def _facts(self, name: str) -> Facts:
        return Facts(self.folder and self.folder / name)
