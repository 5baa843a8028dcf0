"""The machine that this program runs on, described without torch, and the folder of its measurements."""

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
    """Describe the machine on which the engine computes, with what only a card's own program knows."""
    machine = detect(environ, root, _rocminfo_gpus() if (root / "dev/dxg").exists() else None)
    device = environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0]
    match = re.match(r"(.+), (\d+)$", _nvidia_card(device)) if machine.kind == "cuda" else None
    return replace(machine, name=match[1], total_bytes=int(match[2]) * 1024**2) if match else machine


@cache
def _rocminfo_gpus() -> list[Gpu]:
    return rocminfo_gpus(output_of("rocminfo"))


@cache
def _nvidia_card(name: str) -> str:
    selection = ("--id", name) if name else ()
    query = ("--query-gpu=name,memory.total", "--format=csv,noheader,nounits")
    answer = output_of("nvidia-smi", *selection, *query)
    return answer.partition("\n")[0]


def this_profile(environ: Mapping[str, str]) -> Profile:
    return profile_in_force(this_machine(environ), this_local(environ))


def this_local(environ: Mapping[str, str]) -> Local:
    return Local(dict(environ), cache_folder())


def cache_folder() -> Path:
    return user_folder(user_cache_path, "caches", "XDG_CACHE_HOME")


def user_folder(find: Callable[..., Path], purpose: str, variable: str) -> Path:
    try:
        return find("longtake", appauthor=False)
    except RuntimeError as error:
        raise InputError(
            f"HOME is not set, and this user has no home folder; expected one for {purpose}.",
            f"Set HOME or {variable} to a folder that can be written.",
        ) from error


def load_added_models() -> None:
    try:
        ADDED_MODELS.file = user_data_path("longtake", appauthor=False) / FILE_NAME
    except RuntimeError:  # no home folder, as for a user without a name in a container
        ADDED_MODELS.file = None


def parse_gb(text: str) -> int:
    try:
        return gb_bytes(float(text))
    except (ValueError, OverflowError):
        return 0


def machine_of_card(card: str) -> Machine:
    family, _, size = card.partition(":")
    total = parse_gb(size)
    is_card = family in FAMILIES or re.fullmatch(r"gfx\d[0-9a-f]{2,4}", family)
    if not is_card or not 0 < total < gb_bytes(10_000):
        raise InputError(
            f"card is {card[:60]!r}; expected FAMILY:GB such as gfx1100:24, with the gfx name of a card or "
            f"one of {', '.join(FAMILIES)}.",
            "Correct it, or leave it out for this machine.",
        )
    kind = family if family in ("cpu", "cuda") else "rocm"
    arch = {"gfx103x": "gfx1030", "cdna": "gfx942"}.get(family, family if kind == "rocm" else "")
    return Machine(kind, arch, f"{family} with {size} GB", total, is_apu=arch in INTEGRATED)


def module_command(module: str, environ: Mapping[str, str]) -> tuple[tuple[str, ...], dict[str, str]]:
    path = os.pathsep.join(filter(None, (_ROOT, environ.get("PYTHONPATH"))))
    # -P prevents Python from importing a folder named `app` in the current folder.
    return (sys.executable, "-P", "-m", module), {**environ, "PYTHONPATH": path}


def output_of(*command: str, environ: Mapping[str, str] | None = None, seconds: float = _SECONDS) -> str:
    """Run a program and read its output; "" if it does not exist, fails or takes too long."""
    try:
        process = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=seconds, check=True,
            stdin=subprocess.DEVNULL, env=environ,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return ""
    return process.stdout.strip()
