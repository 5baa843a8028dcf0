"""A person's own networks for enlarging: the files that the word `weights` names, and their checksums."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from diffusers_helper.errors import InputError
from diffusers_helper.files import SAFETENSORS, file_sha256, named_folder, weight_names

OWN = r"[^\s,:@]+(@[0-9a-f]{8})?"
"""The pattern of the name of a file, behind which a job has the beginning of its checksum."""
BUILT_IN = "animevideov3", "x4plus"
_SUFFIXES = (SAFETENSORS, ".pth", ".pt", ".ckpt", ".bin")


def upscale_folder(environ: Mapping[str, str]) -> Path:
    return named_folder(environ, "LONGTAKE_UPSCALE_MODELS", "upscale_models")


def find_upscale_model(weights: str, folders: Sequence[Path]) -> tuple[Path, str]:
    """Find the file that a word names, and return its path and the word with its checksum."""
    name, _, expected = weights.partition("@")
    files = {file: folder / file for folder in reversed(folders) for file in weight_names(folder, _SUFFIXES)}
    path = next((files[name + suffix] for suffix in ("", *_SUFFIXES) if name + suffix in files), None)
    if path is None:
        others = ", ".join((*BUILT_IN, *(file for file in files if file.lower().endswith(SAFETENSORS))))
        remedy = "Put a safetensors file there, without a space in its name."
        problem = f"The folder upscale_models has no network {name}; there are {others}."
        raise InputError(problem, remedy, setting="finish")
    if path.suffix.lower() != SAFETENSORS:
        problem = f"{path.name} could run a program when it is read, so it cannot be used."
        raise InputError(problem, "Convert it to safetensors, for example with chaiNNer.", setting="finish")
    checksum = file_sha256(path)[: len("01234567")]
    if expected not in ("", checksum):
        problem = f"{path.name} is no longer the network weights:{weights}."
        raise InputError(problem, "Put it back, or begin a new job.", setting="finish")
    return path, f"{name}@{checksum}"
