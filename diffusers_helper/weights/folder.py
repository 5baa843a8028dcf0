"""The folder with a user's own weights, and what lies in it."""

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from diffusers_helper.files import named_folder, visible_files
from diffusers_helper.weights.inspection import STANDARD_NAMES, is_shard
from diffusers_helper.weights.reading import INDEX, SUFFIXES, names_weights

VARIABLE = "LONGTAKE_WEIGHTS"


def weights_folder(environ: Mapping[str, str]) -> Path:
    return named_folder(environ, VARIABLE, "weights")


def weights_names(folder: Path) -> list[str]:
    """List the weights in a folder by relative paths: single files, indices, and folders of diffusers."""
    return sorted(set(_names(folder)), key=lambda name: (name.lower(), name))


def _names(folder: Path) -> Iterator[str]:
    for place, files in visible_files(folder):
        here = place.relative_to(folder)
        weights = [name for name in files if names_weights(name, (*SUFFIXES, INDEX))]
        names = [here.as_posix()] if here.parts and _is_part(files, weights) else []
        names = names or [(here / name).as_posix() for name in weights if not is_shard(Path(name))]
        yield from (name for name in names if name.isprintable())


def _is_part(files: Collection[str], weights: Collection[str]) -> bool:
    lower = [name.lower() for name in weights]
    plain = [name for name in lower if name.endswith(".safetensors")]
    is_clear = len(plain) == 1 or any(name in STANDARD_NAMES or name.endswith(INDEX) for name in lower)
    return "config.json" in files and bool(plain) and is_clear
