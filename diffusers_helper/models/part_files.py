"""The files of a model's parts, in a local folder or in a copy of a hub repository at one revision."""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError
from huggingface_hub.utils import tqdm
from safetensors import safe_open

from diffusers_helper.cancel import CancelToken
from diffusers_helper.errors import LongtakeError, first_line
from diffusers_helper.files import sha256_of
from diffusers_helper.models.hub_cache import is_complete
from diffusers_helper.models.registry import PartSource

_log = logging.getLogger(__name__)

# The number and size of the samples of each file that make up a fingerprint.
_SAMPLES, _SAMPLE_BYTES = 16, 65536
# Configurations, vocabularies and weights; other files are left out, since they may be pickles.
_WANTED = ("*.json", "*.safetensors", "*.txt")


def find_part(
    source: PartSource, cancel: CancelToken, on_bytes: Callable[[int], None] = lambda count: None
) -> Path:
    """Return the folder with one part's files, after downloading those of a hub repository that are missing.

    Args:
        source: The source of the part.
        cancel: The token that ends a download.
        on_bytes: A function that is called with the number of bytes downloaded so far.

    Raises:
        GenerationCancelled: If the job was cancelled during a download.
        LongtakeError: If the folder does not exist, or the files cannot be downloaded.
    """
    location = Path(source.location)
    if location.is_absolute() or location.is_dir():
        folder = location / source.subfolder
        if not folder.is_dir():
            raise LongtakeError(
                f"There is no folder {folder}; expected a part of the model.", "Check the model's folder."
            )
        return folder
    prefix = f"{source.subfolder}/" if source.subfolder else ""
    wanted = [prefix + pattern for pattern in _WANTED]
    with contextlib.suppress(LocalEntryNotFoundError):
        # A revision never changes, so a complete copy needs no request to the hub.
        folder = _snapshot(source, wanted, local_files_only=True)
        if is_complete(folder):
            return folder

    class Progress(tqdm):
        """The hub's progress bar, through which a cancel reaches its download threads."""

        def __init__(self, *arguments: Any, **options: Any) -> None:
            # The hub has one bar for files, and others for bytes, each of which receives all bytes. This
            # class counts for itself, since a hidden bar does not.
            self._counts_bytes, self._bytes = options.get("unit") == "B", options.get("initial") or 0
            super().__init__(*arguments, **options)

        def update(self, n: float | None = 1) -> bool | None:
            cancel.check()
            if self._counts_bytes:
                self._bytes += int(n or 0)
                on_bytes(self._bytes)
            return super().update(n)

    _log.info("downloading %s%s", prefix, source.location)
    try:
        folder, reason = _snapshot(source, wanted, tqdm_class=Progress), "files are missing"
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        folder, reason = None, first_line(error)
    if folder is None or not is_complete(folder):
        raise LongtakeError(
            f"{source.location} is incomplete on this machine and cannot be downloaded ({reason}).",
            "Check the network connection and start again; what was downloaded is kept.",
            code="download",
        )
    return folder


def _snapshot(source: PartSource, wanted: list[str], **options: Any) -> Path:
    folder = snapshot_download(source.location, revision=source.revision, allow_patterns=wanted, **options)
    return Path(folder) / source.subfolder


def stored_dtype(folder: Path) -> torch.dtype:
    """Return the floating-point type in which most of a part's weights are stored.

    Raises:
        FileNotFoundError: If the folder has no safetensors file.
        ValueError: If the weights are not floating-point numbers.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise FileNotFoundError(f"{folder} has no safetensors file")
    with safe_open(files[0], "pt") as weights:
        counts = Counter(weights.get_slice(key).get_dtype() for key in weights.keys())  # noqa: SIM118
    kinds = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
    most = max(counts, key=lambda kind: (kind in kinds, counts[kind]))
    if most not in kinds:
        raise ValueError(f"{files[0].name} stores {most}; expected F32, F16 or BF16")
    return kinds[most]


def fingerprint(folder: Path) -> str:
    """Return a checksum of weights, from the names and sizes of their files and samples of the content.

    Reading all of a large model would take minutes, and an accidental change is very likely to show in a
    sample or in a size.
    """
    return sha256_of(part for path in sorted(folder.glob("*.safetensors")) for part in _samples(path))


def _samples(path: Path) -> Iterator[bytes]:
    size = path.stat().st_size
    yield f"{path.name} {size} ".encode()
    with path.open("rb") as file:
        for place in range(_SAMPLES):
            file.seek(size * place // _SAMPLES)
            yield file.read(_SAMPLE_BYTES)
