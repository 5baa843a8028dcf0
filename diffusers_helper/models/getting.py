"""The download of everything that is missing of a model, after a look at the sizes that the hub lists."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from huggingface_hub import constants
from huggingface_hub.utils import logging

from diffusers_helper.cancel import CancelToken
from diffusers_helper.models.downloads import NotHere, absence_of, bytes_in
from diffusers_helper.models.fetch import get_part, listed_files
from diffusers_helper.models.hub_cache import part_folder
from diffusers_helper.models.registry import ModelInfo
from diffusers_helper.weights.recognition import PARTS

# The hub's library writes pieces of 10 MB. Smaller ones show a slow download as moving, and cost less when it
# is broken off.
_PIECE_BYTES = 1024**2


def get_model(info: ModelInfo, cancel: CancelToken, report: Callable[[int, int], None]) -> None:
    """Download what is missing of a model.

    Args:
        info: The model.
        cancel: The token that ends the download.
        tell: A function that is called, from any thread, with the bytes of the whole model that are here and
            those in all.

    Raises:
        NotHere: If the disk has no room for the sizes that the hub lists.
        GenerationCancelled: If the download was cancelled.
        LongtakeError: If the files cannot be downloaded.
    """
    absence = absence_of(info)
    if absence is None:
        return
    logging.set_verbosity_error()  # otherwise the hub's library writes about each try
    constants.DOWNLOAD_CHUNK_SIZE = min(constants.DOWNLOAD_CHUNK_SIZE, _PIECE_BYTES)
    listed = {part: listed_files(info.parts[part]) for part in absence.part_bytes}
    sizes = {part: sum(file.size for file in files) for part, files in listed.items()}
    exact = replace(absence, part_bytes=sizes)
    if not exact.has_room:
        raise NotHere(exact)
    complete = sum(bytes_in(part_folder(info.parts[part])) for part in PARTS if part not in sizes)
    here = {part: min(absence.here_bytes.get(part, 0), size) for part, size in sizes.items()}
    total = complete + sum(sizes.values())
    for part, files in listed.items():

        def received(count: int, part: str = part) -> None:
            here[part] = count
            report(complete + sum(here.values()), total)

        get_part(info.parts[part], cancel, received, files)
        received(sizes[part])
