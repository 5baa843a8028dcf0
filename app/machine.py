"""What this program runs on, asked without torch, and where its own figures of the machine are kept."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from platformdirs import user_cache_path

from diffusers_helper.errors import InputError
from diffusers_helper.machine.local import Local
from diffusers_helper.machine.sysfs import ROOT
from diffusers_helper.planning.budget import gb_bytes
from diffusers_helper.planning.estimates import Calibration
from diffusers_helper.planning.profiles import FAMILIES, Machine, Profile, detect, profile_for

_SECONDS = 10.0


def this_machine(environ: Mapping[str, str], root: Path = ROOT) -> Machine:
    """As `profiles.detect`; of an NVIDIA card its driver's program tells the size."""
    machine = detect(environ, root)
    if machine.kind != "cuda":
        return machine
    answer = output_of("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits")
    match = re.match(r"(.+), (\d+)$", answer.splitlines()[0]) if answer else None
    return replace(machine, name=match[1], total_bytes=int(match[2]) * 1024**2) if match else machine


def this_profile(environ: Mapping[str, str]) -> Profile:
    """The profile in force, but for what was measured here since.

    Raises:
        InputError: for a value in the environment that cannot be used.
    """
    return profile_for(this_machine(environ), environ)


def this_local(environ: Mapping[str, str]) -> Local:
    """Where this program keeps what it has found out about the machine."""
    return Local(dict(environ), user_cache_path("longtake", appauthor=False))


def named_machine(card: str) -> Machine:
    """A card that is not here, as "FAMILY:GB".

    Raises:
        InputError: for anything else.
    """
    family, _, size = card.partition(":")
    try:
        total = gb_bytes(float(size))
    except (ValueError, OverflowError):
        total = 0
    if family not in FAMILIES or not 0 < total < gb_bytes(10_000):
        raise InputError(
            f"card is {card[:60]!r}; expected FAMILY:GB such as gfx1100:24, with a family of "
            f"{', '.join(FAMILIES)}.",
            "Correct it, or leave it out for this machine.",
        )
    kind = "cpu" if family == "cpu" else "cuda" if family == "cuda" else "rocm"
    arch = {"gfx103x": "gfx1030", "cdna": "gfx942"}.get(family, family if kind == "rocm" else "")
    return Machine(kind, arch, f"{family} with {size} GB", total, is_apu=family == "gfx1151")


def calibration_file() -> Path:
    """Where `benchmarks/calibrate_memory.py --save` writes."""
    return user_cache_path("longtake", appauthor=False) / "memory.json"


def read_calibration(machine: Machine) -> Calibration:
    """What was measured on this machine, if anything was.

    Raises:
        InputError: if the file is of no use.
    """
    return Calibration.read(calibration_file(), machine.card)


def output_of(*command: str, environ: Mapping[str, str] | None = None, seconds: float = _SECONDS) -> str:
    """What a program prints, "" if there is no such program, it fails, or takes too long."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=seconds, check=True,
            stdin=subprocess.DEVNULL, env=environ,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
