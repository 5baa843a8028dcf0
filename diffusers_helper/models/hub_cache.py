"""The folders on this machine with the files of a model's parts, found without a request to the hub."""

from __future__ import annotations

from pathlib import Path

from diffusers_helper.errors import LongtakeError
from diffusers_helper.models.registry import ModelInfo, PartSource
from diffusers_helper.weights.folders import is_complete


def repository_folder(source: PartSource) -> Path:
    """Return the folder of a hub repository in the hub's local cache, whether it exists or not."""
    from huggingface_hub import constants  # only a hub model needs it

    return Path(constants.HF_HUB_CACHE, "models--" + source.location.replace("/", "--"))


def part_folder(source: PartSource) -> Path:
    """Return the folder of a part's files, or its single file, whether they exist or not."""
    if source.revision is None:
        return Path(source.location, source.subfolder)
    return repository_folder(source) / "snapshots" / source.revision / source.subfolder


def local_folder(source: PartSource, file: str) -> Path | None:
    """Return the folder of a part if it contains this file, or None."""
    folder = part_folder(source)
    return folder if (folder / file).is_file() else None


def small_decoder_file(info: ModelInfo) -> Path | None:
    """Return the file of the decoder for a model's previews, whether it exists or not; None without one."""
    source, decoder = info.small_decoder, info.family.small_decoder
    return part_folder(source) / decoder.path if source and decoder else None


def network_folder(source: PartSource) -> Path | None:
    """Return the folder with a network's files, or its single file; None for one that is not downloaded."""
    folder = part_folder(source)
    return folder if is_complete(folder) or (source.revision is None and folder.is_dir()) else None


def part_here(source: PartSource) -> Path:
    """Return the folder with one part's files, without a request to the hub.

    Raises:
        LongtakeError: If the folder does not exist, or the files of a hub repository are not all here.
    """
    folder = part_folder(source)
    if source.revision is None:
        if not folder.is_dir():
            raise LongtakeError(
                f"There is no folder {folder}; expected a part of the model.", "Check the model's folder."
            )
    elif not is_complete(folder):
        raise LongtakeError(
            f"{source.location} is not completely on this machine.",
            "Download the model on the page under Models, or with python -m app models get.",
            code="download",
        )
    return folder
