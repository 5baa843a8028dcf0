"""The events of a running job: one stream of plain data that page, command line, API and store all read.

Events cross the engine's pipe and the disk as JSON objects, never as pickles.
"""

from __future__ import annotations

import re
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any, ClassVar, Literal

from diffusers_helper.errors import FailureCode

# In the order of a first section; the last three are repeated for each section.
Stage = Literal["load", "text", "vae_encode", "vision", "sample", "decode", "write"]


@dataclass(frozen=True, slots=True)
class StageFacts:
    """The words for a stage, and the time that it is taken to need.

    Attributes:
        running: The activity of the job in this stage, as in "while encoding the prompt".
        network: The stage's name in plans and records of memory; "" where no network computes.
        weight: Its time in denoising steps, per step or per decoded frame, as long as none was measured.
    """

    running: str
    network: str = ""
    weight: float = 0.0

    @property
    def title(self) -> str:
        """Return the same words for the beginning of a line."""
        return self.running[0].upper() + self.running[1:]


# Plans and records of memory name the second text encoder too, which is part of the stage "text" in events.
STAGES: dict[str, StageFacts] = {
    "load": StageFacts("loading the model"),
    "text": StageFacts("encoding the prompt", "Text encoder"),
    "text_2": StageFacts("encoding the prompt", "Second text encoder"),
    "vae_encode": StageFacts("encoding the picture", "Picture encoder"),
    "vision": StageFacts("looking at the picture", "Vision encoder"),
    "sample": StageFacts("denoising", "Denoising", weight=1.0),
    "decode": StageFacts("decoding", "Decoding", weight=0.05),
    "write": StageFacts("writing the video"),
}
# Version 0.1 announced a stage without work before this one.
_FORMER_STAGES = {"image": "vae_encode"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """The common part of all events.

    Attributes:
        job: The job's id.
        time: Seconds since the job started to run.
    """

    is_final: ClassVar[bool] = False
    job: str
    time: float


@dataclass(frozen=True, kw_only=True, slots=True)
class JobStarted(Event):
    """The start of a job's work. `frames` is the length that the video will have."""

    sections: int
    frames: int
    width: int
    height: int


@dataclass(frozen=True, kw_only=True, slots=True)
class StageStarted(Event):
    """The start of a stage. `section` counts from 1 in order of making; None before the first."""

    stage: Stage
    section: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Downloading(Event):
    """The progress of the download of a model that was not on this machine, about once a second."""

    done_bytes: int
    total_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class StepDone(Event):
    """The end of a denoising step. `preview`: absolute path of a small picture of the section so far."""

    section: int
    step: int
    steps: int
    preview: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class PieceDone(Event):
    """The end of one of several pieces of the VAE's work in a stage."""

    stage: Stage
    section: int | None
    piece: int
    pieces: int


@dataclass(frozen=True, kw_only=True, slots=True)
class SectionFinished(Event):
    """The end of a section, which can be watched from now on.

    Attributes:
        video: Absolute path of the playable video so far, which has `frames` frames.
        added_in_front: Frames that stand before those of the previous version; 0 in forward mode.
        thumbnail: Absolute path of a small picture from the middle of the section.
    """

    section: int
    sections: int
    video: str
    frames: int
    added_in_front: int = 0
    thumbnail: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Warned(Event):
    """A sentence that a person should know; the job goes on."""

    message: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Finished(Event):
    """The end of a job whose video is complete.

    Attributes:
        seconds: Wall time.
        peak_host_bytes: The most main memory that the engine has held since it was started; 0 if unknown.
        peak_device_bytes: The most that tensors took on the device at one time.
        retries: The number of times that a smaller plan was tried.
        vae_tile_px: The side of the VAE's tiles; None where it used none.
        advice: A sentence on settings that would have been better, where measurements support one.
    """

    is_final: ClassVar[bool] = True
    video: str
    frames: int
    seconds: float
    peak_host_bytes: int = 0
    peak_device_bytes: int = 0
    cap_bytes: int = 0
    bytes_streamed: int = 0
    retries: int = 0
    vae_tile_px: int | None = None
    advice: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cancelled(Event):
    """The end of a job by a person. `video` is what there is so far; None if no section was finished."""

    is_final: ClassVar[bool] = True
    video: str | None
    frames: int
    peak_host_bytes: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Failed(Event):
    """The end of a job that cannot go on. `message` and `remedy` are for a person, `detail` is technical.

    As in `errors`, settings are named in back quotes. `setting` is the one at fault, or empty.
    """

    is_final: ClassVar[bool] = True
    message: str
    remedy: str
    detail: str = ""
    code: FailureCode = "error"
    setting: str = ""
    video: str | None = None
    frames: int = 0


def event_name(kind: type[Event]) -> str:
    """Return the name of a kind of event in JSON: `SectionFinished` is `section_finished`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower()


_KINDS: dict[str, type[Event]] = {
    event_name(kind): kind
    for kind in (
        JobStarted, StageStarted, Downloading, StepDone, PieceDone, SectionFinished, Warned, Finished,
        Cancelled, Failed,
    )
}  # fmt: skip


def to_dict(event: Event) -> dict[str, Any]:
    """Return an event as a JSON object with `event`, `job` and `time` first."""
    data = asdict(event)
    return {"event": event_name(type(event)), "job": data.pop("job"), "time": data.pop("time"), **data}


def from_dict(data: dict[str, Any]) -> Event:
    """Return the event that `to_dict` wrote, without the fields that this version does not know.

    Raises:
        ValueError: If the object is not a known event, or lacks one of its fields.
    """
    name = data.get("event")
    kind = _KINDS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise ValueError(f"event is {name!r}; expected one of {', '.join(_KINDS)}.")
    missing = [field.name for field in fields(kind) if field.default is MISSING and field.name not in data]
    if missing:
        raise ValueError(f"{name} lacks {', '.join(missing)}.")
    known = {field.name: data[field.name] for field in fields(kind) if field.name in data}
    if known.get("stage") in _FORMER_STAGES:
        known["stage"] = _FORMER_STAGES[known["stage"]]
    return kind(**known)
