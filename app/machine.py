"""The machine that this program runs on, described without torch, and the folder of its measurements."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

from platformdirs import user_cache_path, user_data_path

from diffusers_helper.errors import InputError
from diffusers_helper.machine.local import Local
from diffusers_helper.machine.sysfs import INTEGRATED, ROOT, Gpu, rocminfo_gpus
from diffusers_helper.models.added import ADDED_MODELS, FILE_NAME
from diffusers_helper.planning.profiles import FAMILIES, Machine, Profile, detect, profile_in_force
from diffusers_helper.units import gb_bytes

_SECONDS = 10.0
_ROOT = str(Path(__file__).resolve().parents[1])


def this_machine(environ: Mapping[str, str], root: Path = ROOT) -> Machine:
    """Return the machine on which the engine will compute, with what only a card's own program knows."""
    machine = detect(environ, root, _rocminfo_gpus() if (root / "dev/dxg").exists() else None)
    seen = environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0]
    match = re.match(r"(.+), (\d+)$", _nvidia_card(seen)) if machine.kind == "cuda" else None
    return replace(machine, name=match[1], total_bytes=int(match[2]) * 1024**2) if match else machine


@cache
def _rocminfo_gpus() -> list[Gpu]:
    """Return the AMD cards of a WSL, where the kernel has no files about them."""
    return rocminfo_gpus(output_of("rocminfo"))


@cache
def _nvidia_card(name: str) -> str:
    chosen = ("--id", name) if name else ()
    query = ("--query-gpu=name,memory.total", "--format=csv,noheader,nounits")
    answer = output_of("nvidia-smi", *chosen, *query)
    return answer.partition("\n")[0]


def this_profile(environ: Mapping[str, str]) -> Profile:
    """Return the profile in force on this machine."""
    return profile_in_force(this_machine(environ), this_local(environ))


def this_local(environ: Mapping[str, str]) -> Local:
    """Return this machine's settings: its environment variables and the folder of its measurements."""
    return Local(dict(environ), cache_folder())


def cache_folder() -> Path:
    """Return Longtake's folder in the user's cache, which holds facts that can be measured again."""
    return user_folder(user_cache_path, "caches", "XDG_CACHE_HOME")


def user_folder(find: Callable[..., Path], purpose: str, variable: str) -> Path:
    """Return one of Longtake's folders of this user, whether or not it exists.

    Args:
        find: A function of `platformdirs`.
        variable: The variable with which a user names another place.

    Raises:
        InputError: If there is no home folder, for example for a user without a name in a container.
    """
    try:
        return find("longtake", appauthor=False)
    except RuntimeError as error:
        raise InputError(
            f"HOME is not set, and this user has no home folder; expected one for {purpose}.",
            f"Set HOME or {variable} to a folder that can be written.",
        ) from error


def know_added_models() -> None:
    """Make the models that a user has added known in this process, from the user's data folder."""
    try:
        ADDED_MODELS.file = user_data_path("longtake", appauthor=False) / FILE_NAME
    except RuntimeError:  # no home folder, as for a user without a name in a container
        ADDED_MODELS.file = None


def bytes_named(text: str) -> int:
    """Return the bytes that a text with a number of GB names; 0 if it is no such number."""
    try:
        return gb_bytes(float(text))
    except (ValueError, OverflowError):
        return 0


def named_machine(card: str) -> Machine:
    """Return a machine with the card that a text such as "gfx1100:24" (family and GB) describes.

    Raises:
        InputError: If the text does not describe a card.
    """
    family, _, size = card.partition(":")
    total = bytes_named(size)
    if family not in FAMILIES or not 0 < total < gb_bytes(10_000):
        raise InputError(
            f"card is {card[:60]!r}; expected FAMILY:GB such as gfx1100:24, with a family of "
            f"{', '.join(FAMILIES)}.",
            "Correct it, or leave it out for this machine.",
        )
    kind = "cpu" if family == "cpu" else "cuda" if family == "cuda" else "rocm"
    arch = {"gfx103x": "gfx1030", "cdna": "gfx942"}.get(family, family if kind == "rocm" else "")
    return Machine(kind, arch, f"{family} with {size} GB", total, is_apu=arch in INTEGRATED)


def module_command(module: str, environ: Mapping[str, str]) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the command, and its environment, that runs one of Longtake's modules as a separate process."""
    path = os.pathsep.join(filter(None, (_ROOT, environ.get("PYTHONPATH"))))
    # -P prevents Python from importing a folder named `app` in the current folder.
    return (sys.executable, "-P", "-m", module), {**environ, "PYTHONPATH": path}


def output_of(*command: str, environ: Mapping[str, str] | None = None, seconds: float = _SECONDS) -> str:
    """Return the output of a program, or "" if it does not exist, fails or takes too long."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=seconds, check=True,
            stdin=subprocess.DEVNULL, env=environ,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
