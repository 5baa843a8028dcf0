"""The weights in a user's own folder, which the page inspects and adds, and knows by name alone."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any

from app.redact import plain_paths
from diffusers_helper.errors import InputError, first_line, short_repr
from diffusers_helper.files import named_folder
from diffusers_helper.models.added import name_for
from diffusers_helper.units import size_text
from diffusers_helper.weights.folders import weight_files
from diffusers_helper.weights.inspection import INDEX, USUAL, Inspection, inspect_weights, is_shard
from diffusers_helper.weights.reading import SUFFIXES
from diffusers_helper.weights.recognition import PART_MODELS

VARIABLE = "LONGTAKE_WEIGHTS"
_MOST_LISTED, _MOST_FOLDERS, _MOST_SIGNS = 400, 2000, 1000


def weights_folder(environ: Mapping[str, str]) -> Path:
    """Return the folder that the environment names, or `weights` in the current folder. It need not exist.

    Raises:
        InputError: If there is no such home folder.
    """
    return named_folder(environ, VARIABLE, "weights")


def weights_names(folder: Path) -> list[str]:
    """Return what the folder and its folders hold, sorted, by paths relative to it.

    These are single files with weights, indices of several files, and folders in diffusers' layout.
    """
    return sorted(set(_names(folder)), key=lambda name: (name.lower(), name))


def _names(folder: Path) -> Iterator[str]:
    seen: set[tuple[int, int]] = set()  # a link may lead to a folder that contains it
    for place, folders, files in os.walk(folder, followlinks=True):
        found = os.stat(place)
        if (found.st_dev, found.st_ino) in seen or len(seen) == _MOST_FOLDERS:
            folders.clear()
            continue
        seen.add((found.st_dev, found.st_ino))
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        here = Path(place).relative_to(folder)
        weights = [name for name in files if name.endswith((*SUFFIXES, INDEX))]
        weights = [name for name in weights if Path(place, name).is_file()]
        names = [here.as_posix()] if here.parts and _is_part(files, weights) else []
        names = names or [(here / name).as_posix() for name in weights if not is_shard(Path(name))]
        yield from (name for name in names if name.isprintable())


def _is_part(files: Collection[str], weights: Collection[str]) -> bool:
    """Return whether a folder with these files is a network in diffusers' layout."""
    plain = [name for name in weights if name.endswith(".safetensors")]
    is_clear = len(plain) == 1 or any(name in USUAL or name.endswith(INDEX) for name in weights)
    return "config.json" in files and bool(plain) and is_clear


def listed_files(folder: Path, taken: Collection[str]) -> dict[str, Any]:
    """Return what can be chosen from the folder: first what can be a part, then the rest with its problems.

    Args:
        folder: The folder.
        taken: The names of the models that there are, which are not suggested for a new one.
    """
    names = weights_names(folder)
    files = [_entry(folder, name) | {"model": name_for(_stem(name), taken)} for name in names[:_MOST_LISTED]]
    return {
        "folder": folder.name, "variable": VARIABLE, "files": sorted(files, key=lambda one: not one["part"]),
        "more": max(0, len(names) - _MOST_LISTED),
    }  # fmt: skip


def facts_of(folder: Path, name: str) -> dict[str, Any]:
    """Return what `python -m app inspect` tells about an entry of the folder, without paths.

    Raises:
        InputError: If the folder has no such entry, or it cannot be read.
    """
    (path,) = paths_of(folder, [name])
    facts = asdict(inspected(path))
    del facts["path"]  # Gradio's client takes an object with a path for a file to download
    return facts | {"file": name, "problems": [plain_paths(problem) for problem in facts["problems"]]}


def paths_of(folder: Path, names: Collection[str]) -> list[Path]:
    """Return the paths of entries of the folder.

    Raises:
        InputError: If the folder has no such entry, which no path outside of it is.
    """
    known = set(weights_names(folder))
    for name in names:
        if name not in known:
            raise InputError(
                f"{short_repr(name)} is not in the folder for weights; expected one of its files.",
                "Look again, and choose another one.",
            )
    return [folder / name for name in names]


def inspected(path: Path) -> Inspection:
    """Return the facts about an entry, which are read again only if its files have changed.

    Raises:
        InputError: If it cannot be read.
    """
    try:
        place = path.parent if path.name.endswith(INDEX) else path
        files = sorted(place.iterdir())[:_MOST_SIGNS] if place.is_dir() else [place]
        found = _remembered(path, tuple(_sign(file) for file in files if file.exists()))
    except OSError as error:
        raise InputError(
            f"{path.name} cannot be read ({error.strerror or first_line(error)}).",
            "Check its rights, or choose another one.",
        ) from error
    if isinstance(found, InputError):
        raise found
    return found


def _sign(file: Path) -> tuple[str, int, int, int]:
    found = file.stat()
    return file.name, found.st_mtime_ns, found.st_size, found.st_ino


@lru_cache(maxsize=2 * _MOST_LISTED)
def _remembered(path: Path, signs: tuple[tuple[str, int, int, int], ...]) -> Inspection | InputError:
    """Return the facts about an entry, or why it cannot be read; another file has other `signs`."""
    try:
        return inspect_weights(path)
    except InputError as error:
        return error


def _entry(folder: Path, name: str) -> dict[str, Any]:
    """Return the facts about one entry: the part that it can be, or "" and a problem."""
    path = folder / name
    try:
        facts = inspected(path)
    except InputError as error:
        return {"name": name, "part": "", "words": "", "problem": error.message}
    models = facts.model.split(" + ")
    part = next((part for part, model in PART_MODELS.items() if model in models), "")
    problem = plain_paths(next(iter(facts.problems), ""))
    if facts.model == "LoRA":
        problem = "This is a LoRA, which belongs into the folder for LoRAs and is chosen for each video."
    if not problem and not part:
        problem = f"{facts.model or 'This file'} cannot be a part of FramePack."
    if not problem and path.name.endswith(INDEX):
        problem = "Shards can only be used from a folder that has their config.json, too."
    if not problem and path.is_dir() and not weight_files(path):
        problem = "In a folder, only safetensors files can be used."
    return {"name": name, "part": "" if problem else part, "words": _words(facts), "problem": problem}


def _stem(name: str) -> str:
    """Return the last part of a name without the endings of files with weights."""
    last = Path(name).name.removesuffix(INDEX)
    return Path(last).stem if last.endswith(SUFFIXES) else last


def _words(facts: Inspection) -> str:
    model = " ".join(filter(None, (facts.model, facts.variant)))
    return ", ".join(filter(None, (model, facts.kinds, size_text(facts.file_bytes))))
