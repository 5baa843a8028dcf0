"""The checkpoints of a job, which are its encodings and the latents of its finished sections, as files.

Each file has a checksum and the origin of its content. A section's noise depends only on the request's seed
and the section's number, so these files contain all the state that the next section needs.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, contiguous_format, uint8

from diffusers_helper import __version__
from diffusers_helper.conditions.timeline import drafted_words, seed_of, texts_of, weights_of, words_of
from diffusers_helper.errors import LongtakeError, short_repr
from diffusers_helper.families.family import Family
from diffusers_helper.files import sha256_of, write_atomic
from diffusers_helper.machine.packages import version_of
from diffusers_helper.provenance.job_folder import JobFolder
from diffusers_helper.provenance.lineage import Lineage, joined, names_of, recorded_later
from diffusers_helper.request import SETTINGS, GenerationRequest
from diffusers_helper.strangers.limited_json import plain_texts

_log = logging.getLogger(__name__)
_KEY = "latents"
# Version 0.1 did not record these settings, so its files are accepted with any values of them.
_VAE = names_of("vae")
_PIXELS = ("prompt", "seed", "steps", "sampler", "mode", "guidance", "cfg", "cfg_rescale", "model")
Tensors = dict[str, Tensor]


class Origins:
    """The origins of a job's encodings and sections: the facts that determine them, by name."""

    def __init__(
        self,
        request: GenerationRequest,
        lineage: Lineage,
        pictures: Mapping[str, str],
        family: Family,
        **others: str,
    ) -> None:
        """Collect the facts that are the same for all sections.

        Args:
            pictures: The origins of the pictures; see `conditions.pictures`.
            others: Further facts that follow from request and model, such as the frame size.
        """
        self._request, self._lineage, self._family = request, lineage, family
        # A branch's request has the VAE's settings that were in effect in its parent. The parent's files have
        # those of its request, which may have left them to the plan, so they are not compared.
        vae = {} if lineage.kept else {name: str(getattr(request, name)) for name in _VAE}
        self._shared = {**pictures, **vae, **others}
        if request.pictures:
            self._shared["pictures"] = json.dumps([[one.time, one.crop] for one in request.placed])
        # The paths among the inputs are recorded by the content of the files.
        crops = recorded_later(request, "input").items()
        self._shared |= {name: str(value) for name, value in crops if SETTINGS[name].is_number}

    def of_section(self, number: int) -> dict[str, str]:
        request = self._lineage.request_for(number, self._request)
        names = (*_PIXELS, "negative") if len(request.texts) > 1 else _PIXELS
        origin = {name: str(getattr(request, name)) for name in names} | self._shared
        where = number, request, self._family
        words, origin["seed"] = words_of(*where), str(seed_of(*where))
        origin["prompt"] = words[0][0] if len(words) == 1 else json.dumps(words)
        if weights := weights_of(*where):
            origin["lora_weights"] = json.dumps(weights)
        if drafted := drafted_words(*where):
            origin["drafted"] = json.dumps(drafted)
        later = recorded_later(request, "section", "video")
        later.pop("prompt_blend", None)  # the words contain its effect
        origin |= {name: str(value) for name, value in later.items()}
        if request.depends_on_length:
            origin["sections"] = str(len(self._family.plan(request.seconds, request.mode)))
        if before := joined(self._lineage.before(number), request):
            origin["earlier"] = json.dumps([span.to_dict() for span in before], sort_keys=True)
        return origin

    def of_encodings(self) -> dict[str, str]:
        texts = json.dumps(texts_of(self._request, self._lineage, self._family))
        seed = str(self._lineage.root(self._request).seed)  # determines the picture's latent
        return {"texts": texts, "seed": seed, "model": self._request.model} | self._shared


class Checkpoints:
    """The checkpoints of one job: `sections/0001.safetensors` and so on, and `encodings.safetensors`.

    Attributes:
        doubts: Sentences for the user about files that are damaged or were made by other versions.
    """

    def __init__(self, folder: JobFolder, origins: Origins, earlier: JobFolder | None) -> None:
        """Read the checkpoints of an earlier run of this or another job, if there is one.

        The section of a damaged file and all later ones are made again.

        Raises:
            LongtakeError: If the sections have another origin than this job.
        """
        self._folder, self._origins = folder, origins
        self._is_in_place = earlier == folder
        self._sections: dict[int, Tensor] = {}
        self._encodings: dict[str, Tensor] = {}
        self.doubts: list[str] = []
        if earlier is not None:
            self._read_sections(earlier)
            self._read_encodings(earlier)

    def section(self, number: int, *, otherwise: Callable[[], Tensor]) -> Tensor:
        """Return a section's latents from an earlier run, or make them with `otherwise` and store them."""
        left = self._sections.get(number)
        latents = otherwise() if left is None else left
        if left is None or not self._is_in_place:
            self._folder.sections.mkdir(exist_ok=True)
            origin = self._origins.of_section(number)
            self._write(self._folder.latents(number), {_KEY: latents}, origin, section=str(number))
        return latents

    def encodings(self, *, otherwise: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
        """Return the encodings from an earlier run, or make them with `otherwise` and store them."""
        found = self._encodings or otherwise()
        # Kernels may round differently if a tensor has another layout in memory, as in a file or a slice.
        found = {name: tensor.clone(memory_format=contiguous_format) for name, tensor in found.items()}
        if not (self._encodings and self._is_in_place):
            self._write(self._folder.encodings, found, self._origins.of_encodings())
        return found

    @staticmethod
    def _write(file: Path, tensors: Mapping[str, Tensor], origin: Mapping[str, str], **others: str) -> None:
        facts = {"origin": json.dumps(origin), "versions": json.dumps(versions()), **others}
        write_tensors(file, tensors, facts)

    def _read_encodings(self, earlier: JobFolder) -> None:
        if not earlier.encodings.is_file():
            return
        try:
            tensors, metadata = read_tensors(earlier.encodings)
            expected = self._origins.of_encodings()
            is_ours = _whole(plain_texts(metadata["origin"]), expected) == expected
            is_ours = is_ours and plain_texts(metadata["versions"]) == versions()
        except (OSError, SafetensorError, ValueError, KeyError) as error:
            _log.warning("%s: %s; the encodings are made again", earlier.encodings, error)
            return
        if is_ours:
            self._encodings = tensors

    def _read_sections(self, earlier: JobFolder) -> None:
        others: set[str] = set()
        while (file := earlier.latents(len(self._sections) + 1)).is_file():
            number = len(self._sections) + 1
            try:
                tensors, metadata = read_tensors(file)
                window = tensors[_KEY]
                if metadata.get("section", str(number)) != str(number):  # version 0.1 did not record it
                    raise ValueError(f"it is section {metadata['section']}")
                origin, made_with = plain_texts(metadata["origin"]), plain_texts(metadata["versions"])
            except (OSError, SafetensorError, ValueError, KeyError) as error:
                _log.warning("%s: %s", file, error)
                self.doubts.append(f"The kept latents of section {number} are damaged, so it is made again.")
                return
            _check_origin(file, origin, self._origins.of_section(number))
            others |= {f"{name} {made}" for name, made in made_with.items() if versions().get(name) != made}
            self._sections[number] = window
        if others:
            names = ", ".join(sorted(others))
            self.doubts.append(f"The first sections were made with {names}; the rest may differ slightly.")


def _whole(found: Mapping[str, str], expected: Mapping[str, str]) -> dict[str, str]:
    """Return an origin with expected settings of the VAE that it lacks, and without those not expected."""
    noted = {name: value for name, value in found.items() if name not in _VAE or name in expected}
    return {name: expected[name] for name in _VAE if name in expected} | noted


# Facts that stand for the content of files, whose checksums tell a user nothing.
_FILES = {"weights": "The files of its model", "lora": "A LoRA, or its weight,"}


def _check_origin(file: Path, found: Mapping[str, str], expected: Mapping[str, str]) -> None:
    found = _whole(found, expected)
    names = {*found, *expected}
    if "sections" not in expected:
        names.discard("sections")  # version 0.1 recorded it even where it has no effect
    for name in sorted(names):
        if found.get(name) != expected.get(name):
            if name in _FILES:
                raise LongtakeError(
                    f"{_FILES[name]} changed after this video was begun, for example by an update.",
                    "Make it again with the same settings. What was made of it so far stays.",
                )
            raise LongtakeError(
                f"{file} was made with {name} {short_repr(found.get(name))}; "
                f"expected {short_repr(expected.get(name))}.",
                "Resume with the request that the job was started with, or start a new job.",
            )


def write_tensors(file: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, str]) -> None:
    """Write tensors with metadata and a checksum to a file. On return it is complete on the disk."""
    whole = {name: tensor.contiguous() for name, tensor in tensors.items()}
    write_atomic(file, save(whole, {**facts, "checksum": _checksum(facts, whole)}))


def read_tensors(file: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read the tensors and the metadata of a file.

    Raises:
        OSError: If the file cannot be read.
        SafetensorError, ValueError, KeyError: If the file is damaged.
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


def versions() -> dict[str, str]:
    """Return the versions of Longtake and of the libraries that compute latents, by name."""
    packages = ("torch", "diffusers", "transformers")
    return {"longtake": __version__, **{name: version_of(name) for name in packages}}


@dataclass(frozen=True, slots=True)
class EncodingCache:
    """A folder of encodings, up to a total size, beyond which those that were not used for longest go.

    A file's name is a checksum of all that its encodings depend on, so no prompt can be read from it.

    Without a folder, nothing is kept.
    """

    folder: Path | None = None
    most_bytes: int = 256 * 1024**2  # a prompt of FramePack takes about 2 MB

    def get(self, facts: Callable[[], Mapping[str, str]], otherwise: Callable[[], Tensors]) -> Tensors:
        """Return the encodings that depend on these facts, or make them with `otherwise` and keep them.

        Args:
            facts: Returns all facts that change a bit of the result. The ways to compute it may have changed
                when it is made, for example after a fault of the device.
        """
        if self.folder is None:
            return otherwise()
        file = self._file(facts())
        try:
            found, _ = read_tensors(file)
            os.utime(file)  # it is the one that was used last
            return found
        except FileNotFoundError:
            pass
        except (OSError, SafetensorError, ValueError, KeyError) as error:
            _log.warning("%s: %s; the encodings are made again", file, error)
        found, file = otherwise(), self._file(facts())
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_tensors(file, found, {})
            self._tidy()
        except OSError as error:
            _log.warning("%s cannot be written (%s)", file, error)
        return found

    def _file(self, facts: Mapping[str, str]) -> Path:
        assert self.folder is not None
        key = sha256_of([json.dumps({**versions(), **facts}, sort_keys=True).encode()])
        return self.folder / f"{key}.safetensors"

    def _tidy(self) -> None:
        assert self.folder is not None
        kept = 0
        for file in sorted(self.folder.glob("*.safetensors"), key=lambda file: -file.stat().st_mtime_ns):
            kept += file.stat().st_size
            if kept > self.most_bytes:
                file.unlink(missing_ok=True)
