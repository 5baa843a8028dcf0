"""The files of one network, tokenizer or processor in its folder: which there are, and whether all are."""

from __future__ import annotations

import re
from pathlib import Path

from diffusers_helper.strangers.limited_json import MOST_BYTES

_PARTIAL = ".part"
_LISTED = re.compile(rb':\s*"([^"\\]{1,255}\.safetensors)"')
_SHARD = re.compile(r"-\d{5}-of-\d{5}\.safetensors$")


def weight_files(place: Path) -> list[Path]:
    """Return the files with the weights of a network, given its folder or its single file."""
    return sorted(place.glob("*.safetensors")) if place.is_dir() else [place]


def is_complete(folder: Path) -> bool:
    """Return whether a part has its configuration and all files of its weights or vocabulary."""
    return folder.is_file() or (has_all_files(folder) and not partial_files(folder))


def has_all_files(folder: Path) -> bool:
    """Return whether a part's folder has all its files, even if a program has one of them open."""
    if (folder / "config.json").is_file():
        weights = {file.name for file in folder.glob("*.safetensors") if file.is_file()}
        for index in folder.glob("*.safetensors.index.json"):
            return _listed(index) <= weights
        return bool(weights) and not any(map(_SHARD.search, weights))
    if (folder / "tokenizer_config.json").is_file():
        names = {file.name for file in folder.iterdir()}
        return "tokenizer.json" in names or {"vocab.json", "merges.txt"} <= names
    return any((folder / name).is_file() for name in ("preprocessor_config.json", "scheduler_config.json"))


def _listed(index: Path) -> set[str]:
    """Return the names of the files with weights that an index lists; an odd one if it cannot be read.

    This is asked all the time, and of files that other programs have written, so no JSON is built.
    """
    try:
        with index.open("rb") as stream:
            text = stream.read(MOST_BYTES + 1)
    except OSError:
        text = b""
    found = {match[1].decode("utf-8", "replace") for match in _LISTED.finditer(text)}
    return found if found and len(text) <= MOST_BYTES else {""}


def partial_of(target: Path) -> Path:
    """Return the name that a file has while it is being downloaded."""
    return target.with_name(f".{target.name}{_PARTIAL}")


def partial_files(folder: Path) -> list[Path]:
    """Return the unfinished downloads in a folder."""
    return sorted(folder.glob(f".*{_PARTIAL}"))
