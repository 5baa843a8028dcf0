"""A job's results on disk, with origin and checksum: its encodings, and the latents of finished sections.

A section's noise depends only on the request's seed and the section's number (`seeds`), so that these files
are all the state that the next section needs.
"""

from __future__ import annotations

import importlib.metadata
import json
import logging
from collections.abc import Callable, Mapping
from itertools import chain
from pathlib import Path

from PIL import Image
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, contiguous_format, uint8

from diffusers_helper import __version__
from diffusers_helper.errors import LongtakeError, short_repr
from diffusers_helper.files import sha256_of, write_atomic
from diffusers_helper.output.job_folder import JobFolder
from diffusers_helper.request import SETTINGS, GenerationRequest

_log = logging.getLogger(__name__)
_KEY = "latents"
# Version 0.1 did not note these; its files are of any value.
_VAE = ("vae_precision", "vae_tile", "vae_chunk")
_PIXELS = ("prompt", "seed", "steps", "sampler", "mode", "guidance", "cfg", "cfg_rescale", "model")


def origin_of(request: GenerationRequest, picture: Image.Image, **others: str) -> dict[str, str]:
    """Return all that determines a request's latents, by name.

    Args:
        others: Further facts that follow from request and model together, such as the frame size.
    """
    names = (*_PIXELS, "negative", *_VAE) if len(request.texts) > 1 else (*_PIXELS, *_VAE)
    origin = {name: str(getattr(request, name)) for name in names}
    if request.crop != SETTINGS["crop"].default:  # results of versions without this setting stay valid
        origin["crop"] = str(request.crop)
    pixels = sha256_of((f"{picture.mode} {picture.size} ".encode(), picture.tobytes()))
    return origin | {"picture": pixels} | others


class Checkpoints:
    """The results of one job: `sections/0001.safetensors` and so on, and `encodings.safetensors`.

    Attributes:
        doubts: Sentences for a person about files that were left out or made by other versions.
    """

    def __init__(
        self, folder: JobFolder, origin: Mapping[str, str], earlier: JobFolder | None, shape: tuple[int, ...]
    ) -> None:
        """Read the results that an earlier run has left for this job.

        A damaged file ends the series: its section and all later ones are made again.

        Args:
            earlier: The folder of the earlier run, of this or another job; None if there is none.

        Raises:
            LongtakeError: If the sections have another origin than this job.
        """
        self._folder, self._origin, self._shape = folder, dict(origin), shape
        self._is_in_place = earlier == folder
        self._sections: dict[int, Tensor] = {}
        self._encodings: dict[str, Tensor] = {}
        self.doubts: list[str] = []
        if earlier is not None:
            self._read_sections(earlier)
            self._read_encodings(earlier)

    def section(self, number: int, *, otherwise: Callable[[], Tensor]) -> Tensor:
        """Return a section's latents from an earlier run, or make them now and keep them."""
        left = self._sections.get(number)
        latents = otherwise() if left is None else left
        if left is None or not self._is_in_place:
            self._folder.sections.mkdir(parents=True, exist_ok=True)
            self._write(_file(self._folder.sections, number), {_KEY: latents}, section=str(number))
        return latents

    def encodings(self, *, otherwise: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
        """Return the encodings of prompt and picture from an earlier run, or make them now and keep them."""
        found = self._encodings or otherwise()
        # Kernels may round differently for numbers with another layout in memory, as in a file or a slice.
        found = {name: tensor.clone(memory_format=contiguous_format) for name, tensor in found.items()}
        if not (self._encodings and self._is_in_place):
            self._write(self._folder.encodings, found)
        return found

    def _write(self, file: Path, tensors: Mapping[str, Tensor], **others: str) -> None:
        """Write tensors; on return they are complete on the disk."""
        whole = {name: tensor.contiguous() for name, tensor in tensors.items()}
        facts = {"origin": json.dumps(self._origin), "versions": json.dumps(_versions()), **others}
        write_atomic(file, save(whole, {**facts, "checksum": _checksum(facts, whole)}))

    def _read_encodings(self, earlier: JobFolder) -> None:
        """Read encodings if they are undamaged and have the same origin and versions; make others again."""
        if not earlier.encodings.is_file():
            return
        try:
            tensors, metadata = _read(earlier.encodings)
            is_ours = self._whole(json.loads(metadata["origin"])) == self._origin
        except (OSError, SafetensorError, ValueError, KeyError) as error:
            _log.warning("%s: %s; it is made again", earlier.encodings, error)
            return
        if is_ours and json.loads(metadata["versions"]) == _versions():
            self._encodings = tensors

    def _read_sections(self, earlier: JobFolder) -> None:
        others: set[str] = set()
        while (file := _file(earlier.sections, len(self._sections) + 1)).is_file():
            number = len(self._sections) + 1
            try:
                tensors, metadata = _read(file)
                window = tensors[_KEY]
                # Version 0.1 did not note the number.
                if metadata.get("section", str(number)) != str(number):
                    raise ValueError(f"it is section {metadata['section']}")
            except (OSError, SafetensorError, ValueError, KeyError) as error:
                _log.warning("%s: %s", file, error)
                self.doubts.append(f"The kept latents of section {number} are damaged; it is made again.")
                return
            self._check_origin(file, json.loads(metadata["origin"]))
            if tuple(window.shape) != self._shape:
                raise LongtakeError(
                    f"{file} holds latents of shape {tuple(window.shape)}; expected {self._shape}.",
                    "Delete the folder's sections to make them again.",
                )
            versions: dict[str, str] = json.loads(metadata["versions"])
            others |= {f"{name} {made}" for name, made in versions.items() if _versions().get(name) != made}
            self._sections[number] = window
        if others:
            names = ", ".join(sorted(others))
            self.doubts.append(f"The first sections were made with {names}; the rest may differ slightly.")

    def _whole(self, found: dict[str, str]) -> dict[str, str]:
        """Return an origin with what an earlier version did not note as it is here."""
        return {name: self._origin[name] for name in _VAE if name in self._origin} | found

    def _check_origin(self, file: Path, found: dict[str, str]) -> None:
        found = self._whole(found)
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
    """Read tensors and metadata.

    Raises:
        OSError, SafetensorError, ValueError, KeyError: If the content differs from what was saved.
    """
    with safe_open(file, "pt") as opened:
        metadata = opened.metadata() or {}
        tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    facts = {name: value for name, value in metadata.items() if name != "checksum"}
    if metadata["checksum"] != _checksum(facts, tensors):
        raise ValueError("the checksum does not match")
    return tensors, metadata


def _checksum(facts: Mapping[str, str], tensors: Mapping[str, Tensor]) -> str:
    whole = (tensors[name].flatten().view(uint8).numpy().tobytes() for name in sorted(tensors))
    return sha256_of(chain([json.dumps(facts, sort_keys=True).encode()], whole))


def _versions() -> dict[str, str]:
    packages = ("torch", "diffusers", "transformers")
    return {"longtake": __version__, **{name: importlib.metadata.version(name) for name in packages}}
