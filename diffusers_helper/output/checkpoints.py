"""What a job has computed, on disk: encodings and finished sections' latents, with origin and checksum.

A section's noise depends on nothing but the request's seed and the section's number (`seeds`), so these are
all the state that the next section needs.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from PIL import Image
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, uint8

from diffusers_helper import __version__
from diffusers_helper.errors import LongtakeError, short_repr
from diffusers_helper.files import write_atomic
from diffusers_helper.output.job_folder import JobFolder
from diffusers_helper.request import GenerationRequest

_log = logging.getLogger(__name__)
_KEY = "latents"
_PIXELS = ("prompt", "seed", "steps", "sampler", "mode", "guidance", "cfg", "cfg_rescale", "model")


def origin_of(request: GenerationRequest, picture: Image.Image, **others: str) -> dict[str, str]:
    """All that determines a request's latents, by name.

    Args:
        picture: the start picture, upright and opaque.
        others: what follows from request and model together, such as the frame size.
    """
    names = (*_PIXELS, "negative") if request.cfg > 1 else _PIXELS
    origin = {name: str(getattr(request, name)) for name in names}
    pixels = hashlib.sha256(f"{picture.mode} {picture.size} ".encode() + picture.tobytes()).hexdigest()
    return origin | {"picture": pixels} | others


@dataclass(frozen=True, slots=True)
class Saved:
    """What a folder held.

    Attributes:
        sections: latents (1, 16, W, h, w) by the section's number, from 1 on without a gap.
        doubts: sentences for a person, about files that were left out or made by other versions.
    """

    sections: dict[int, Tensor]
    doubts: tuple[str, ...] = ()


class Checkpoints:
    """One job's: `sections/0001.safetensors` and on, in order of making, and `encodings.safetensors`."""

    def __init__(self, folder: JobFolder, origin: Mapping[str, str]) -> None:
        self._folder, self._origin = folder, dict(origin)

    def save(self, number: int, window: Tensor) -> None:
        """Keeps the latents of a section; on return they are on the disk, whole."""
        self._folder.sections.mkdir(parents=True, exist_ok=True)
        self._write(_file(self._folder.sections, number), {_KEY: window})

    def save_encodings(self, tensors: Mapping[str, Tensor]) -> None:
        """Keeps what prompt and picture became, by names of the caller's."""
        self._write(self._folder.encodings, tensors)

    def load_encodings(self, source: JobFolder) -> dict[str, Tensor]:
        """What was kept in this or another job's folder.

        Returns: nothing if there is nothing, or it is damaged, or made from something else or by other
            versions: then it is made anew.
        """
        if not source.encodings.is_file():
            return {}
        try:
            tensors, metadata = _read(source.encodings)
            is_ours = json.loads(metadata["origin"]) == self._origin
        except (OSError, SafetensorError, ValueError, KeyError) as error:
            _log.warning("%s: %s; it is made anew", source.encodings, error)
            return {}
        return tensors if is_ours and json.loads(metadata["versions"]) == _versions() else {}

    def _write(self, file: Path, tensors: Mapping[str, Tensor]) -> None:
        whole = {name: tensor.contiguous() for name, tensor in tensors.items()}
        facts = {"origin": json.dumps(self._origin), "versions": json.dumps(_versions())}
        write_atomic(file, save(whole, {**facts, "checksum": _checksum(facts, whole)}))

    def load(self, source: Path, shape: tuple[int, ...]) -> Saved:
        """What the folder `source`, this one or another job's, holds for this job.

        A file that is damaged ends the series: that section and those after it are made again.

        Args:
            shape: of a section's latents.

        Raises:
            LongtakeError: if the sections were made from something else than this job's.
        """
        sections: dict[int, Tensor] = {}
        others: set[str] = set()
        while (file := _file(source, len(sections) + 1)).is_file():
            try:
                tensors, metadata = _read(file)
                window = tensors[_KEY]
            except (OSError, SafetensorError, ValueError, KeyError) as error:
                _log.warning("%s: %s", file, error)
                number = len(sections) + 1
                doubt = f"The kept latents of section {number} are damaged; it is made again."
                return Saved(sections, (doubt,))
            self._check_origin(file, json.loads(metadata["origin"]))
            if tuple(window.shape) != shape:
                raise LongtakeError(
                    f"{file} holds latents of shape {tuple(window.shape)}; expected {shape}.",
                    "Delete the folder's sections to make them again.",
                )
            versions: dict[str, str] = json.loads(metadata["versions"])
            others |= {f"{name} {made}" for name, made in versions.items() if _versions().get(name) != made}
            sections[len(sections) + 1] = window
        if not others:
            return Saved(sections)
        doubt = (
            f"The first sections were made with {', '.join(sorted(others))}; the rest may differ slightly."
        )
        return Saved(sections, (doubt,))

    def _check_origin(self, file: Path, found: dict[str, str]) -> None:
        for name in sorted({*found, *self._origin}):
            if found.get(name) != self._origin.get(name):
                raise LongtakeError(
                    f"{file} was made with {name} {short_repr(found.get(name))}; "
                    f"expected {short_repr(self._origin.get(name))}.",
                    "Resume with the request that the job was started with, or start a new job.",
                )


def _file(folder: Path, number: int) -> Path:
    return folder / f"{number:04}.safetensors"


def _read(file: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Raises ValueError, KeyError or what safetensors raises if the content is not what was saved."""
    with safe_open(file, "pt") as opened:
        metadata = opened.metadata() or {}
        tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    facts = {name: metadata[name] for name in ("origin", "versions")}
    if metadata["checksum"] != _checksum(facts, tensors):
        raise ValueError("the checksum does not match")
    return tensors, metadata


def _checksum(facts: Mapping[str, str], tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    for name in sorted(tensors):
        digest.update(tensors[name].flatten().view(uint8).numpy().tobytes())
    return digest.hexdigest()


def _versions() -> dict[str, str]:
    packages = ("torch", "diffusers", "transformers")
    return {"longtake": __version__, **{name: importlib.metadata.version(name) for name in packages}}
