"""Where the files of a model's parts lie: a local folder, or a copy of a hub repository at one revision."""

from __future__ import annotations

import contextlib
import hashlib
import logging
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError
from huggingface_hub.utils import tqdm
from safetensors import safe_open

from diffusers_helper.cancel import CancelToken
from diffusers_helper.errors import LongtakeError
from diffusers_helper.models.hub_cache import is_complete
from diffusers_helper.models.registry import PartSource

_log = logging.getLogger(__name__)

# What is read of each file to tell weights apart.
_SAMPLES, _SAMPLE_BYTES = 16, 65536
# Configurations, vocabularies and weights; never pickles, which other files of a repository may be.
_WANTED = ("*.json", "*.safetensors", "*.txt")


def find_part(source: PartSource, cancel: CancelToken) -> Path:
    """The folder with one part's files; downloads what a hub repository has and this machine has not.

    Raises:
        GenerationCancelled: within a download.
        LongtakeError: if there is no such folder, or the files cannot be had.
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
        # A revision never changes: what is here whole needs no question to the hub.
        folder = _snapshot(source, wanted, local_files_only=True)
        if is_complete(folder):
            return folder

    class Progress(tqdm):
        """The hub's progress bar, through which a cancel reaches its download threads."""

        def update(self, n: float | None = 1) -> bool | None:
            cancel.check()
            return super().update(n)

    _log.info("downloading %s%s", prefix, source.location)
    try:
        folder, reason = _snapshot(source, wanted, tqdm_class=Progress), "files are missing"
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        folder, reason = None, (str(error).strip().splitlines() or [type(error).__name__])[0]
    if folder is None or not is_complete(folder):
        raise LongtakeError(
            f"{source.location} is not whole on this machine and cannot be downloaded ({reason[:200]}).",
            "Check the network connection and start again; what was downloaded is kept.",
        )
    return folder


def _snapshot(source: PartSource, wanted: list[str], **options: Any) -> Path:
    folder = snapshot_download(source.location, revision=source.revision, allow_patterns=wanted, **options)
    return Path(folder) / source.subfolder


def stored_dtype(folder: Path) -> torch.dtype:
    """The floating-point type that most of a part's weights are stored in.

    Raises:
        FileNotFoundError: if the folder has no safetensors file.
        ValueError: if its weights are not floating-point.
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
    """Tells weights apart by the names and sizes of their files and samples of their content.

    Reading all of a large model would take minutes; a change that leaves all samples as they are is not made
    by accident.
    """
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.safetensors")):
        size = path.stat().st_size
        digest.update(f"{path.name} {size} ".encode())
        with path.open("rb") as file:
            for place in range(_SAMPLES):
                file.seek(size * place // _SAMPLES)
                digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()
