"""What a running job tells the world: one stream of plain data that page, CLI, API and store all read.

Events cross the engine's pipe and the disk as JSON objects, never as pickles.
"""

from __future__ import annotations

import re
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any, ClassVar, Literal

from diffusers_helper.errors import FailureCode

Stage = Literal[
    "load", "text", "image", "vae_encode", "vision", "sample", "decode", "write"
]  # in the order of a first section; the last three repeat per section


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """Common part. `job` is the job's id, `time` seconds since the job started to run."""

    is_final: ClassVar[bool] = False
    job: str
    time: float


@dataclass(frozen=True, kw_only=True, slots=True)
class JobStarted(Event):
    """The engine has taken the job. `frames` is the length that will come out."""

    sections: int
    frames: int
    width: int
    height: int


@dataclass(frozen=True, kw_only=True, slots=True)
class StageStarted(Event):
    """A new kind of work begins. `section` counts from 1 in order of making, None before the first."""

    stage: Stage
    section: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class StepDone(Event):
    """One denoising step is finished. `preview`: absolute path of a small picture of the section so far."""

    section: int
    step: int
    steps: int
    preview: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class PieceDone(Event):
    """The VAE has finished one of the pieces of a stage's work; told where there are several."""

    stage: Stage
    section: int | None
    piece: int
    pieces: int


@dataclass(frozen=True, kw_only=True, slots=True)
class SectionFinished(Event):
    """A section can be watched. `video`: absolute path of the playable video so far, of `frames` frames.

    `added_in_front` frames were put before what the version before showed (0 in forward mode).
    `thumbnail`: absolute path of a small picture from the middle of the section.
    """

    section: int
    sections: int
    video: str
    frames: int
    added_in_front: int = 0
    thumbnail: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Warned(Event):
    """Something a person should know; the job goes on."""

    message: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Finished(Event):
    """The whole video is there. `seconds` is wall time.

    `peak_host_bytes` is the most main memory the engine has held since it was started, 0 where not measured.
    The most that tensors took on the device at a time, and the cap that this stayed under; what was copied by
    streaming; how often a smaller plan was tried; the side of the VAE's tiles, None where it used none.
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Cancelled(Event):
    """Ended by a person. `video` is what there is so far, None if no section was finished."""

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
    """The name an event goes by in JSON: `SectionFinished` is `section_finished`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower()


_KINDS: dict[str, type[Event]] = {
    event_name(kind): kind
    for kind in (
        JobStarted, StageStarted, StepDone, PieceDone, SectionFinished, Warned, Finished, Cancelled, Failed,
    )
}  # fmt: skip


def to_dict(event: Event) -> dict[str, Any]:
    """A JSON object with `event`, `job` and `time` first."""
    data = asdict(event)
    return {"event": event_name(type(event)), "job": data.pop("job"), "time": data.pop("time"), **data}


def from_dict(data: dict[str, Any]) -> Event:
    """The event that `to_dict` wrote. Fields that this version does not know are left out.

    Raises:
        ValueError: if the object is no known event, or lacks one of its fields.
    """
    name = data.get("event")
    kind = _KINDS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise ValueError(f"event is {name!r}; expected one of {', '.join(_KINDS)}.")
    missing = [field.name for field in fields(kind) if field.default is MISSING and field.name not in data]
    if missing:
        raise ValueError(f"{name} lacks {', '.join(missing)}.")
    known = {field.name for field in fields(kind)}
    return kind(**{name: value for name, value in data.items() if name in known})
