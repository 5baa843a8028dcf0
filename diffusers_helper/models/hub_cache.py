"""The folders on this machine with the files of a model's parts, found without a request to the hub."""

from __future__ import annotations

import json
from pathlib import Path

from diffusers_helper.models.registry import PartSource


def local_folder(source: PartSource, file: str) -> Path | None:
    """Return the folder of a part that contains this file, which may be in the hub's local cache, or None."""
    folder = Path(source.location, source.subfolder)
    if (folder / file).is_file():
        return folder
    if Path(source.location).is_absolute():
        return None
    from huggingface_hub import try_to_load_from_cache  # only a hub model needs it

    path = f"{source.subfolder}/{file}".lstrip("/")
    found = try_to_load_from_cache(source.location, path, revision=source.revision)
    return Path(found).parent if isinstance(found, str) else None


def network_folder(source: PartSource) -> Path | None:
    """Return the folder with a network's files, or None if a hub model is not completely downloaded."""
    folder = Path(source.location, source.subfolder)
    if folder.is_dir():
        return folder
    found = local_folder(source, "config.json")
    return found if found and is_complete(found) else None


def is_complete(folder: Path) -> bool:
    """Return whether a part's folder has its configuration and all files of its weights or vocabulary."""
    if not folder.is_dir():
        return False
    if (folder / "config.json").is_file():
        weights = {file.name for file in folder.glob("*.safetensors")}
        for index in folder.glob("*.safetensors.index.json"):
            expected = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
            return expected <= weights
        return bool(weights)
    if (folder / "tokenizer_config.json").is_file():
        names = {file.name for file in folder.iterdir()}
        return "tokenizer.json" in names or {"vocab.json", "merges.txt"} <= names
    return (folder / "preprocessor_config.json").is_file()
