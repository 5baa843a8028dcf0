"""What a program knows of the machine it runs on and hands to the library, which asks no environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from diffusers_helper.machine.facts import Facts


@dataclass(frozen=True, slots=True)
class Local:
    """Settings of this machine rather than of a job.

    Attributes:
        environ: environment variables; `profiles` tells which are read.
        folder: where measurements of this machine and plans that were too large are kept; None for nowhere.
    """

    environ: Mapping[str, str] = field(default_factory=dict[str, str])
    folder: Path | None = None

    @property
    def calibration(self) -> Path | None:
        """Measured over estimated memory, by `benchmarks/calibrate_memory.py`."""
        return self.folder and self.folder / "memory.json"

    @property
    def learned(self) -> Facts:
        """Which plans took too much memory (`memory.recovery`)."""
        return self._facts("smaller_plans.json")

    @property
    def kernels(self) -> Facts:
        """Which attention kernel SDPA ran here (`attention`)."""
        return self._facts("attention.json")

    @property
    def disks(self) -> Facts:
        """How fast the disks with weights are read (`disk`)."""
        return self._facts("disks.json")

    def _facts(self, name: str) -> Facts:
        return Facts(self.folder and self.folder / name)
