"""The packages beside torch that FramePack needs, and which of them a Python lacks."""

import importlib.metadata
import re
import sys
from collections.abc import Mapping
from functools import cache

from diffusers_helper.attention.backends import COMPILED

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

KITCHEN = "comfy-kitchen"  # optional; requirements-kernels.txt pins the version that was tried
_KITCHEN_VERSIONS = ">=0.2.40,<0.3"


@cache
def version_of(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def rocm_of_torch() -> tuple[int, ...]:
    """Find the version of ROCm that torch was built for, such as (7, 2); () for other builds."""
    return _numbers(version_of("torch").partition("+rocm")[2])


def unfit(versions: Mapping[str, str], needed: Mapping[str, str]) -> list[str]:
    return [name for name, bounds in needed.items() if not _fits(versions[name], bounds)]


def package_problem(versions: Mapping[str, str], needed: Mapping[str, str]) -> str:
    unfit_names = unfit(versions, needed)
    outdated = [
        f"it has {name} {versions[name]}, where {needed[name]} is expected"
        for name in unfit_names
        if versions[name]
    ]
    missing = [name for name in unfit_names if not versions[name]]
    return "; ".join([*outdated, *([f"it lacks {', '.join(missing)}"] if missing else [])])


def kitchen_problem() -> str:
    """Say why comfy-kitchen cannot be used, as far as its version tells; "" if it can."""
    return package_problem({KITCHEN: version_of(KITCHEN)}, {KITCHEN: _KITCHEN_VERSIONS})


def kernels_version(kernels: str) -> str:
    """Name kernels with their package and its version, as jobs and recipes do."""
    package = "torch" if kernels == COMPILED else KITCHEN
    return f"{kernels} kernels of {package} {version_of(package)}"


def install_command(versions: Mapping[str, str], needed: Mapping[str, str]) -> str:
    packages = " ".join(f'"{name}{needed[name]}"' for name in unfit(versions, needed))
    return f'"{sys.executable}" -m pip install {packages}'  # every shell knows these quotes


def _fits(version: str, bounds: str) -> bool:
    numbers = _numbers(version)
    return all(
        numbers < _numbers(bound) if bound.startswith("<") else numbers >= _numbers(bound)
        for bound in bounds.split(",")
    )


def _numbers(version: str) -> tuple[int, ...]:
    release = re.match(r"[<>=]*([\d.]*\d)", version)
    return tuple(map(int, release[1].split("."))) if release else ()
