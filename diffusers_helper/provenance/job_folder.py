"""The layout of `outputs/<job>/`, which holds everything about a job, and its record of crashes."""

import json
import secrets
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

from diffusers_helper.files import read_file, write_atomic
from diffusers_helper.library_errors import is_storage_trouble
from diffusers_helper.request import START_PICTURE
from diffusers_helper.untrusted.limited_json import plain_json


def new_job_id() -> str:
    """Make an id that sorts by time and is safe as a file name: `20261121-081530-3f9a`."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"


class _Entry:
    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, folder: Any, kind: type) -> Path:
        return folder.path / self._name


@dataclass(frozen=True, slots=True)
class JobFolder:
    path: Path

    input = _Entry("input.png")  # the start picture, upright, opaque and in RGB
    original = _Entry("original")  # the video that is continued, as it was given
    sound = _Entry("sound")  # a file whose sound a finished video gets, as it was given
    first = _Entry("first.png")  # the first frame of a video from words alone, once it is known
    request = _Entry("request.json")
    events = _Entry("events.jsonl")
    states = _Entry("states.jsonl")  # version 0.2: the job's states; its last line keeps that version away
    memory = _Entry("memory.json")  # the memory of each stage on the device, planned and measured
    log = _Entry("job.log")  # the engine's text log for the job; see `runner`
    vae = _Entry("vae.json")  # the settings with which the VAE has worked; see `provenance.recipe`
    lineage = _Entry("lineage.json")  # the origin of a branch's first sections; see `provenance.lineage`
    encodings = _Entry("encodings.safetensors")  # the encodings of prompt and picture
    overflow = _Entry("vae_fp32")  # exists if the VAE has overflowed; the type in which it then computes
    weight_type = _Entry("weight_type")  # the type of the weights that the job has chosen itself
    attention = _Entry("attention")  # the chosen attention backend, and the bytes of a slice
    blas = _Entry("blas")  # the library that multiplies matrices, if a trial chose one
    kernels = _Entry("kernels")  # the package that computes the blocks' element-wise work, if any does
    crash_record = _Entry("shortage.json")  # exists if engines died for lack of memory
    engine_errors = _Entry("engine_errors.txt")  # the last lines that engines wrote before they died
    report = _Entry("report.txt")  # the problem report of a job that failed on the command line
    sections = _Entry("sections")  # the latents of sections, which are numbered in order of making
    saved_steps = _Entry("sections/steps.safetensors")  # the state in the middle of a section
    segments = _Entry("segments")  # the encoded frames of sections
    sums = _Entry("segments/sums.json")  # the checksums of segments and of the last versions
    preview = _Entry("preview")
    thumbs = _Entry("thumbs")  # small pictures of sections
    captures = _Entry("captures")  # the inputs and outputs of stages, for debugging; see `output.capture`
    exports = _Entry("exports")  # the video in other formats; they may be removed
    video = _Entry("video.mp4")  # the finished video, or the part of it that a cancelled job has made

    @classmethod
    def new(cls, outputs: Path) -> Self:
        folder = cls(outputs / new_job_id())
        while folder.path.exists():  # another job of the same second has drawn the same number
            folder = cls(outputs / new_job_id())
        return folder

    def picture(self, name: str) -> Path:
        return self.input if name == START_PICTURE else self.path / f"{name}.png"

    def joined(self, number: int) -> Path:
        """Name the copy of a video that is put behind the original; these count from 1."""
        return self.path / f"{self.original.name}_{number}"

    def latents(self, number: int) -> Path:
        return self.sections / f"{number:04}.safetensors"

    def segment(self, number: int) -> Path:
        return self.segments / f"{number:04}.mp4"

    def thumb(self, number: int) -> Path:
        return self.thumbs / f"{number:04}.webp"

    @property
    def job(self) -> str:
        return self.path.name

    @property
    def checkpoints(self) -> int:
        return self.encodings.exists() + len(list(self.sections.glob("[0-9]*.safetensors")))

    @property
    def has_begun(self) -> bool:
        return self.segments.exists() or self.checkpoints > 0

    def remove_leftovers(self) -> None:
        for leftover in self.path.rglob(".*.tmp"):
            leftover.unlink(missing_ok=True)


_T = TypeVar("_T")


def read_record(file: Path, parse: Callable[[bytes], _T], default: _T) -> _T:
    """Parse a file of a job; the default if it is missing or damaged. OSError if it cannot be read now."""
    try:
        return parse(read_file(file))
    except (OSError, ValueError, TypeError) as error:
        if is_storage_trouble(error):
            raise
        return default


@dataclass(frozen=True, slots=True)
class CrashRecord:
    """The stage and error of engines that died for lack of memory, and how the plan became smaller."""

    stage: str
    text: str
    change: str = ""

    @classmethod
    def read(cls, file: Path) -> Self | None:
        return read_record(file, lambda content: cls(**plain_json(content)), None)

    def write(self, file: Path) -> None:
        write_atomic(file, json.dumps(asdict(self)).encode() + b"\n")
