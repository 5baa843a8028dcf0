"""The checkpoints of a job: files with its encodings and with the latents of its finished sections.

Each file has a checksum and the origin of its content. A section's noise depends only on the request's seed
and the section's number, so these files contain all the state that the next section needs.
"""

import json
import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, contiguous_format, uint8

from diffusers_helper import __version__
from diffusers_helper.conditions.timeline import (
    all_prompts,
    drafted_prompts,
    lora_weights_of,
    prompts_of,
    seed_of,
)
from diffusers_helper.errors import LongtakeError, short_repr
from diffusers_helper.families.family import Family
from diffusers_helper.files import read_file, sha256_of, write_atomic
from diffusers_helper.library_errors import is_storage_trouble
from diffusers_helper.machine.packages import version_of
from diffusers_helper.memory.accounting import to_host
from diffusers_helper.provenance.job_folder import JobFolder
from diffusers_helper.provenance.lineage import Lineage, later_settings, merged_spans, setting_names
from diffusers_helper.request import SETTINGS, GenerationRequest
from diffusers_helper.untrusted.limited_json import plain_json, plain_texts

_log = logging.getLogger(__name__)
_MAX_BYTES = 2**30  # of a file
_LATENTS_KEY, _CARRIED_KEY = "latents", "carried"
_MADE_AGAIN = "the encodings are made again"
SAVE_SECONDS = 120.0  # between two states of a section, of which one step may take a minute
# Version 0.1 did not record these settings, so its files are accepted with any values of them.
_VAE = setting_names("vae")
_PIXELS = ("prompt", "seed", "steps", "sampler", "mode", "guidance", "cfg", "cfg_rescale", "model")
Tensors = dict[str, Tensor]


class Origins:
    def __init__(
        self,
        request: GenerationRequest,
        lineage: Lineage,
        pictures: Mapping[str, str],
        family: Family,
        **facts: str,
    ) -> None:
        """Collect what all sections share; `facts` follow from request and model, such as the frame size."""
        self._request = request
        self._lineage = lineage
        self._family = family
        # A branch's request has the VAE's settings that were in effect in its parent. The parent's files have
        # those of its request, which may have left them to the plan, so they are not compared.
        vae = {} if lineage.kept else {name: str(getattr(request, name)) for name in _VAE}
        self._shared = {**pictures, **vae, **facts}
        if request.pictures:
            timed_pictures = [[picture.time, picture.crop] for picture in request.timed_pictures]
            self._shared["pictures"] = json.dumps(timed_pictures)
        # The paths among the inputs are left out, since the content of the files is recorded.
        inputs = later_settings(request, "input").items()
        self._shared |= {name: str(value) for name, value in inputs if SETTINGS[name].is_number}

    def of_section(self, number: int) -> dict[str, str]:
        request = self._lineage.request_for(number, self._request)
        names = (*_PIXELS, "negative") if len(request.prompts) > 1 else _PIXELS
        origin = {name: str(getattr(request, name)) for name in names} | self._shared
        prompts = prompts_of(number, request, self._family)
        origin["seed"] = str(seed_of(number, request, self._family))
        origin["prompt"] = prompts[0][0] if len(prompts) == 1 else json.dumps(prompts)
        if weights := lora_weights_of(number, request, self._family):
            origin["lora_weights"] = json.dumps(weights)
        if drafts := drafted_prompts(number, request, self._family):
            origin["drafted"] = json.dumps(drafts)
        later_values = later_settings(request, "section", "video")
        later_values.pop("prompt_blend", None)  # the prompts' shares contain its effect
        origin |= {name: str(value) for name, value in later_values.items()}
        if request.depends_on_length:
            origin["sections"] = str(len(self._family.plain_sections(request)))
        spans = tuple(span for span in self._lineage.spans if span.last < number)
        if earlier_spans := merged_spans(spans, request):
            origin["earlier"] = json.dumps([span.to_dict() for span in earlier_spans], sort_keys=True)
        return origin

    def of_encodings(self) -> dict[str, str]:
        prompts = json.dumps(all_prompts(self._request, self._lineage, self._family))
        seed = str(self._lineage.root(self._request).seed)  # determines the picture's latent
        return {"texts": prompts, "seed": seed, "model": self._request.model} | self._shared


@dataclass
class SavedSteps:
    """The state of the section that is being sampled, which is used if all `facts` are the same."""

    file: Path
    facts: Mapping[str, object]
    _next_time: float = field(default_factory=lambda: time.monotonic() + SAVE_SECONDS)

    @property
    def _origin(self) -> str:
        return sha256_of([json.dumps(self.facts, sort_keys=True).encode()])

    def read(self) -> dict[str, Tensor] | None:
        stored = intact_tensors(self.file, "the section is sampled from its beginning")
        return stored[0] if stored and stored[1].get("origin") == self._origin else None

    def keep(self, state: Mapping[str, Tensor]) -> None:
        """Store the state after a step, if the last time was long enough ago."""
        if time.monotonic() < self._next_time:
            return
        self.file.parent.mkdir(exist_ok=True)
        tensors = {name: to_host(tensor.to("cpu", copy=True)) for name, tensor in state.items()}
        write_tensors(self.file, tensors, {"origin": self._origin})
        self._next_time = time.monotonic() + SAVE_SECONDS


class Checkpoints:
    """The checkpoints of one job, with warnings about files that are damaged or of other versions."""

    def __init__(self, folder: JobFolder, origins: Origins, earlier: JobFolder | None) -> None:
        """Read those of an earlier run of this or another job. What follows a damaged section is made again.

        LongtakeError if they have another origin; OSError if a file cannot be read now.
        """
        self._folder = folder
        self._origins = origins
        self._is_in_place = earlier == folder
        self._sections: dict[int, Tensors] = {}
        self._encodings: dict[str, Tensor] = {}
        self.warnings: list[str] = []
        if earlier is not None:
            self._read_sections(earlier)
            self._read_encodings(earlier)

    def section(self, number: int, *, compute: Callable[[], Tensor]) -> Tensor:
        stored_tensors = self._sections.get(number)
        tensors = {_LATENTS_KEY: compute()} if stored_tensors is None else stored_tensors
        if stored_tensors is None or not self._is_in_place:
            self._write_section(number, tensors)
            self._folder.saved_steps.unlink(missing_ok=True)
        self._sections = {number: tensors} | {n: later for n, later in self._sections.items() if n > number}
        return tensors[_LATENTS_KEY]

    def carried(self, number: int, frames: Tensor | None = None) -> Tensor | None:
        tensors = self._sections[number]
        if _CARRIED_KEY not in tensors and frames is not None:
            tensors[_CARRIED_KEY] = frames
            self._write_section(number, tensors)
        return tensors.get(_CARRIED_KEY)

    def saved_steps(self, number: int) -> SavedSteps:
        facts = {**self._origins.of_section(number), "section": number, "versions": versions()}
        return SavedSteps(self._folder.saved_steps, facts)

    def _write_section(self, number: int, tensors: Tensors) -> None:
        self._folder.sections.mkdir(exist_ok=True)
        facts = _facts(self._origins.of_section(number)) | {"section": str(number)}
        write_tensors(self._folder.latents(number), tensors, facts)

    def encodings(self, *, compute: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
        encodings = self._encodings or compute()
        # Tensors of a file or a slice have another layout in memory, at which kernels may round differently.
        encodings = {key: tensor.clone(memory_format=contiguous_format) for key, tensor in encodings.items()}
        if not (self._encodings and self._is_in_place):
            write_tensors(self._folder.encodings, encodings, _facts(self._origins.of_encodings()))
        return encodings

    def _read_encodings(self, earlier: JobFolder) -> None:
        stored = intact_tensors(earlier.encodings, _MADE_AGAIN)
        if stored is None:
            return
        tensors, metadata = stored
        expected = self._origins.of_encodings()
        has_origin = _with_vae_settings(plain_texts(metadata["origin"]), expected) == expected
        if has_origin and plain_texts(metadata["versions"]) == versions():
            self._encodings = tensors

    def _read_sections(self, earlier: JobFolder) -> None:
        other_versions: set[str] = set()
        while (file := earlier.latents(len(self._sections) + 1)).is_file():
            number = len(self._sections) + 1
            try:
                tensors, metadata = read_tensors(file)
                if metadata.get("section", str(number)) != str(number):  # version 0.1 did not record it
                    raise ValueError(f"it is section {metadata['section']}")
                origin = plain_texts(metadata["origin"])
                file_versions = plain_texts(metadata["versions"])
            except (OSError, SafetensorError, ValueError, KeyError) as error:
                if is_storage_trouble(error):
                    raise
                _log.warning("%s: %s", file, error)
                self.warnings.append(
                    f"The kept latents of section {number} are damaged, so it is made again."
                )
                return
            _check_origin(file, origin, self._origins.of_section(number))
            other_versions |= {
                f"{name} {version}" for name, version in file_versions.items() - versions().items()
            }
            self._sections[number] = tensors
        if other_versions:
            names = ", ".join(sorted(other_versions))
            self.warnings.append(f"The first sections were made with {names}; the rest may differ slightly.")


def _facts(origin: Mapping[str, str]) -> dict[str, str]:
    return {"origin": json.dumps(origin), "versions": json.dumps(versions())}


def _with_vae_settings(origin: Mapping[str, str], expected: Mapping[str, str]) -> dict[str, str]:
    """Add the expected settings of the VAE to an origin that lacks them, and drop the others."""
    origin_settings = {name: value for name, value in origin.items() if name not in _VAE or name in expected}
    return {name: expected[name] for name in _VAE if name in expected} | origin_settings


# Facts that stand for the content of files, whose checksums tell a user nothing.
_FILE_FACTS = {"weights": "The files of its model", "lora": "A LoRA, or its weight,"}


def _check_origin(file: Path, origin: Mapping[str, str], expected: Mapping[str, str]) -> None:
    origin = _with_vae_settings(origin, expected)
    names = {*origin, *expected}
    if "sections" not in expected:
        names.discard("sections")  # version 0.1 recorded it even where it has no effect
    for name in sorted(names):
        if origin.get(name) != expected.get(name):
            if name in _FILE_FACTS:
                raise LongtakeError(
                    f"{_FILE_FACTS[name]} changed after this video was begun, for example by an update.",
                    "Make it again with the same settings. What was made of it so far stays.",
                )
            raise LongtakeError(
                f"{file} was made with {name} {short_repr(origin.get(name))}; "
                f"expected {short_repr(expected.get(name))}.",
                "Resume with the request that the job was started with, or start a new job.",
            )


def versions() -> dict[str, str]:
    packages = ("torch", "diffusers", "transformers")
    return {"longtake": __version__, **{name: version_of(name) for name in packages}}


@dataclass(frozen=True, slots=True)
class EncodingCache:
    """A folder of encodings up to a total size. The least recently used ones are removed first.

    A file's name is a checksum of all that its encodings depend on, so no prompt can be read from it.
    """

    folder: Path | None = None
    max_bytes: int = 256 * 1024**2  # a prompt of FramePack takes about 2 MB

    def get(self, facts: Callable[[], Mapping[str, str]], compute: Callable[[], Tensors]) -> Tensors:
        """The facts may change while it computes, after a device's fault."""
        if self.folder is None:
            return compute()
        file = self._file(facts())
        try:
            encodings, _ = read_tensors(file)
            os.utime(file)  # it was used last
            return encodings
        except FileNotFoundError:
            pass
        except (OSError, SafetensorError, ValueError, KeyError) as error:
            _log.warning("%s: %s; %s", file, error, _MADE_AGAIN)
        encodings = compute()
        file = self._file(facts())
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_tensors(file, encodings, {})
            self._evict()
        except OSError as error:
            _log.warning("%s cannot be written (%s)", file, error)
        return encodings

    def _file(self, facts: Mapping[str, str]) -> Path:
        assert self.folder is not None
        key = sha256_of([json.dumps({**versions(), **facts}, sort_keys=True).encode()])
        return self.folder / f"{key}.safetensors"

    def _evict(self) -> None:
        assert self.folder is not None
        total_bytes = 0
        for file in sorted(self.folder.glob("*.safetensors"), key=lambda file: -file.stat().st_mtime_ns):
            total_bytes += file.stat().st_size
            if total_bytes > self.max_bytes:
                file.unlink(missing_ok=True)


def write_tensors(file: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write tensors with metadata and a checksum to a file. On return it is complete on the disk."""
    contiguous_tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
    checksum = _checksum(metadata, contiguous_tensors)
    write_atomic(file, save(contiguous_tensors, {**metadata, "checksum": checksum}))


def intact_tensors(file: Path, consequence: str) -> tuple[dict[str, Tensor], dict[str, str]] | None:
    """Read a file as `read_tensors` does; None if it is missing, or damaged, which has a consequence."""
    if not file.is_file():
        return None
    try:
        return read_tensors(file)
    except (OSError, SafetensorError, ValueError, KeyError) as error:
        if is_storage_trouble(error):
            raise
        _log.warning("%s: %s; %s", file, error, consequence)
        return None


def read_tensors(file: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """OSError if the file cannot be read; SafetensorError, ValueError or KeyError if it is damaged."""
    content = read_file(file, _MAX_BYTES)  # the library calls a file missing that cannot be opened now
    tensors = {name: tensor.clone() for name, tensor in load(content).items()}
    header = plain_json(content[8 : 8 + int.from_bytes(content[:8], "little")])
    metadata: dict[str, str] = header["__metadata__"]
    unsigned_metadata = {name: value for name, value in metadata.items() if name != "checksum"}
    if metadata["checksum"] != _checksum(unsigned_metadata, tensors):
        raise ValueError("the checksum does not match")
    return tensors, metadata


def _checksum(metadata: Mapping[str, str], tensors: Mapping[str, Tensor]) -> str:
    contents = (tensors[name].flatten().view(uint8).numpy().tobytes() for name in sorted(tensors))
    return sha256_of(chain([json.dumps(metadata, sort_keys=True).encode()], contents))
