"""A person's own networks for enlarging: the files that the word `weights` names, and their checksums."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from diffusers_helper.files import SAFETENSORS, file_sha256, named_folder, weight_names
from diffusers_helper.finish.step import refusal

OWN = r"[^\s,:@]+(@[0-9a-f]{8})?"
"""The pattern of the name of a file, behind which a job has the beginning of its checksum."""
BUILT_IN = "animevideov3", "x4plus"
_PICKLES = (".pth", ".pt", ".ckpt", ".bin")


def upscale_folder(environ: Mapping[str, str]) -> Path:
    return named_folder(environ, "LONGTAKE_UPSCALE_MODELS", "upscale_models")


def find_upscale_model(weights: str, folders: Sequence[Path]) -> tuple[Path, str]:
    """Find the file that a word names, and return its path and the word with its checksum."""
    name, _, expected = weights.partition("@")
    suffixes = (SAFETENSORS, *_PICKLES)
    files = {file: folder / file for folder in reversed(folders) for file in weight_names(folder, suffixes)}
    path = next((files[name + suffix] for suffix in ("", *suffixes) if name + suffix in files), None)
    if path is None:
        usable = (file for file in files if file.lower().endswith(SAFETENSORS))
        problem = f"weights:{name}, which is not in the folder upscale_models"
        remedy = "Put a safetensors file there, without a space in its name."
        raise refusal(problem, f"one of {', '.join((*BUILT_IN, *usable))}", remedy)
    if path.suffix.lower() != SAFETENSORS:
        problem = f"weights:{name}, but {path.name} could run a program when it is read"
        raise refusal(problem, "a safetensors file", "Convert it, for example with chaiNNer.")
    checksum = file_sha256(path)[: len("01234567")]
    if expected not in ("", checksum):
        problem = f"weights:{weights}, but {path.name} has changed since then"
        raise refusal(problem, "the same file", "Put it back, or begin a new job.")
    return path, f"{name}@{checksum}"
