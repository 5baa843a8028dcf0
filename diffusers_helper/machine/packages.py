"""The packages beside torch that FramePack needs, and which of them a Python lacks."""

from __future__ import annotations

import importlib.metadata
import re
import sys
from collections.abc import Mapping
from functools import cache

# What the nodes for ComfyUI ask for. ComfyUI installs some of these itself, in versions that may be too old.
FRAMEPACK = {
    "diffusers": ">=0.37.1,<0.43",
    "transformers": ">=5.6,<6",
    "accelerate": ">=1.0",
    "huggingface_hub": ">=1.5",
    "safetensors": ">=0.5",
    "gguf": ">=0.10,<0.20",
    "tokenizers": ">=0.22",
    "av": ">=18",
    "imageio": ">=2.37",
}


@cache
def version_of(name: str) -> str:
    """Return the version of an installed package, or "" if it is missing."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def version_numbers(name: str) -> tuple[int, ...]:
    """Return the numbers of a package's version, such as (2, 13, 0); () if it is missing."""
    return _numbers(version_of(name))


def rocm_of_torch() -> tuple[int, ...]:
    """Return the version of ROCm that torch was built for, such as (7, 2); () for other builds."""
    return _numbers(version_of("torch").partition("+rocm")[2])


def unfit(versions: Mapping[str, str], needed: Mapping[str, str]) -> list[str]:
    """Return the names of the packages that are missing or have another version than is needed."""
    return [name for name, bounds in needed.items() if not _fits(versions[name], bounds)]


def missing_words(versions: Mapping[str, str], needed: Mapping[str, str]) -> str:
    """Return what is wrong with packages, such as "it lacks av, gguf", or "" if nothing is."""
    wrong = unfit(versions, needed)
    others = [
        f"it has {name} {versions[name]}, where {needed[name]} is expected"
        for name in wrong
        if versions[name]
    ]
    missing = [name for name in wrong if not versions[name]]
    return "; ".join([*others, *([f"it lacks {', '.join(missing)}"] if missing else [])])


def install_command(versions: Mapping[str, str], needed: Mapping[str, str]) -> str:
    """Return the command that installs what is missing into the Python that runs this."""
    packages = " ".join(f'"{name}{needed[name]}"' for name in unfit(versions, needed))
    return f'"{sys.executable}" -m pip install {packages}'  # every shell knows these quotes


def _fits(version: str, wanted: str) -> bool:
    """Return whether a version lies within bounds such as ">=5.0,<6"; "" does not."""
    found = _numbers(version)
    return all(
        found < _numbers(bound) if bound.startswith("<") else found >= _numbers(bound)
        for bound in wanted.split(",")
    )


def _numbers(version: str) -> tuple[int, ...]:
    release = re.match(r"[<>=]*([\d.]*\d)", version)
    return tuple(map(int, release[1].split("."))) if release else ()
