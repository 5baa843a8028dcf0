"""The weights in a person's own folder, which the page inspects and adds, and knows by name alone."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from app.redact import without_paths
from diffusers_helper.errors import InputError, first_line, short_repr
from diffusers_helper.files import given_path
from diffusers_helper.models.formats.reading import SUFFIXES
from diffusers_helper.models.inspect import INDEX, Inspection, inspect_checkpoint, is_shard
from diffusers_helper.models.recognition import PART_MODELS
from diffusers_helper.units import size_text

VARIABLE = "LONGTAKE_WEIGHTS"
_USUAL = "weights"
_MOST_LISTED, _MOST_FOLDERS = 200, 2000


def weights_folder(environ: Mapping[str, str]) -> Path:
    """Return the folder that the environment names, or `weights` in the current folder. It need not exist.

    Raises:
        InputError: If there is no such home folder.
    """
    return given_path(environ.get(VARIABLE) or _USUAL, VARIABLE).absolute()


def weights_names(folder: Path) -> list[str]:
    """Return what the folder and its folders hold, sorted, by paths relative to it.

    These are single files with weights, indices of several files, and folders in diffusers' layout.
    """
    return sorted(_names(folder), key=str.lower)


def _names(folder: Path) -> Iterator[str]:
    for number, (place, folders, files) in enumerate(os.walk(folder, followlinks=True)):
        if number == _MOST_FOLDERS:
            return
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        here = Path(place).relative_to(folder)
        weights = [name for name in files if name.endswith((*SUFFIXES, INDEX))]
        if weights and "config.json" in files and here.parts:
            yield here.as_posix()
            continue
        yield from ((here / name).as_posix() for name in weights if not is_shard(Path(name)))


def listed_files(folder: Path) -> dict[str, Any]:
    """Return what can be chosen from the folder: the part that each entry can be, or its problem."""
    names = weights_names(folder)
    files = [_entry(folder, name) for name in names[:_MOST_LISTED]]
    return {
        "folder": folder.name, "variable": VARIABLE, "files": files,
        "more": max(0, len(names) - _MOST_LISTED),
    }  # fmt: skip


def facts_of(folder: Path, name: str) -> dict[str, Any]:
    """Return what `python -m app inspect` tells about an entry of the folder, without paths.

    Raises:
        InputError: If the folder has no such entry, or it cannot be read.
    """
    facts = _inspected(path_of(folder, name), "")
    return asdict(facts) | {"path": name, "problems": [without_paths(problem) for problem in facts.problems]}


def path_of(folder: Path, name: str) -> Path:
    """Return the path of an entry of the folder.

    Raises:
        InputError: If the folder has no such entry, which no path outside of it is.
    """
    if name not in weights_names(folder):
        raise InputError(
            f"{short_repr(name)} is not in the folder for weights; expected one of its files.",
            "Look again, and choose another one.",
        )
    return folder / name


def _inspected(path: Path, place: str) -> Inspection:
    try:
        return inspect_checkpoint(path, place)
    except OSError as error:
        raise InputError(
            f"{path.name} cannot be read ({error.strerror or first_line(error)}).",
            "Check its rights, or choose another one.",
        ) from error


def _entry(folder: Path, name: str) -> dict[str, Any]:
    """Return the facts about one entry: the part that it can be, or "" and a problem."""
    path = folder / name
    try:
        facts = _inspected(path, "")
        models = facts.model.split(" + ")
        part = next((part for part, model in PART_MODELS.items() if model in models), "")
        if part and not facts.problems:
            facts = _inspected(path, part)
    except InputError as error:
        return {"name": name, "part": "", "words": "", "problem": error.message}
    problem = without_paths(facts.problems[0]) if facts.problems else ""
    if not part and not problem:
        problem = f"{facts.model or 'It'} cannot be a part of FramePack."
    return {"name": name, "part": "" if problem else part, "words": _words(facts), "problem": problem}


def _words(facts: Inspection) -> str:
    kinds = facts.quantised or ", ".join(facts.dtypes)
    model = " ".join(filter(None, (facts.model, facts.variant)))
    return ", ".join(filter(None, (model, kinds, size_text(facts.file_bytes))))
