"""The events of a running job, a stream of plain data that the page, the command line and the API read.

On the engine's pipe and on the disk, events are JSON objects and never pickles.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, fields
from functools import cache
from math import inf
from typing import Any, ClassVar, Literal, get_origin, get_type_hints

from diffusers_helper.errors import FailureCode, short_repr

# The stages in the order in which they run; the last three are repeated for each section. "attention" and
# "convolutions" run only on a GPU, for a card and shapes that are new to this machine.
Stage = Literal[
    "attention", "load", "text", "convolutions", "vae_encode", "vision", "sample", "decode", "write"
]


@dataclass(frozen=True, slots=True)
class StageFacts:
    """The texts for a stage, and a first estimate of its duration.

    Attributes:
        running: A phrase for the activity in this stage, as in "while encoding the prompt".
        network: The stage's label in plans and records of memory; "" if no network computes.
        weight: The assumed time per step or decoded frame, in denoising steps, until it is measured.
    """

    running: str
    network: str = ""
    weight: float = 0.0

    @property
    def title(self) -> str:
        return self.running[0].upper() + self.running[1:]


# Plans and records of memory also have the stage "text_2", which belongs to the stage "text" in events.
STAGES: dict[str, StageFacts] = {
    "attention": StageFacts("trying attention kernels"),
    "load": StageFacts("loading the model"),
    "text": StageFacts("encoding the prompt", "Text encoder"),
    "text_2": StageFacts("encoding the prompt", "Second text encoder"),
    "convolutions": StageFacts("choosing convolutions"),
    "vae_encode": StageFacts("encoding the picture", "Picture encoder"),
    "vision": StageFacts("analysing the picture", "Vision encoder"),
    "sample": StageFacts("denoising", "Denoising", weight=1.0),
    "sample_low": StageFacts("denoising", "Denoising at low noise"),
    "decode": StageFacts("decoding", "Decoding", weight=0.05),
    "write": StageFacts("writing the video"),
}
# The stages that run once for a card and for shapes, whose times say nothing about later jobs
TRIALS: tuple[Stage, ...] = ("attention", "convolutions")
_STAGE_NAMES = {**{name: name for name in STAGES}, "image": "vae_encode"}  # version 0.1 wrote "image"


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """The base class of all events, with the seconds since the job started to run."""

    is_final: ClassVar[bool] = False
    job: str
    time: float


@dataclass(frozen=True, kw_only=True, slots=True)
class JobStarted(Event):
    """The start of a job's work, with its attention backend; "" in events of earlier versions."""

    sections: int
    frames: int
    width: int
    height: int
    attention: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class StageStarted(Event):
    """The start of a stage. `section` counts from 1 in order of making; None before the first.

    Attributes:
        expected_seconds: How long the stage will probably take, by measurements or estimates; 0 if unknown.
            For "load" it covers all readings that are left.
        seconds_to_video: The same until the end of the section, or of the first one, which can then be seen.
    """

    stage: Stage
    section: int | None = None
    expected_seconds: float = 0.0
    seconds_to_video: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading(Event):
    """The progress of a reading of weights in the stage "load", which is reported about once per second.

    Before a network computes for the first time, its files are read into main memory, if it can hold them, so
    this stage may come again between others. The weights that a job rounds to int8 for the first time are
    read to find their scales. Each of these readings has a progress of its own.
    """

    done_bytes: int
    total_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class StepDone(Event):
    """The end of a denoising step. A step cache has skipped `skipped` of the section's steps so far."""

    section: int
    step: int
    steps: int
    preview: str | None = None
    skipped: int = 0

    def progress(self, section_steps: list[int]) -> tuple[int, int]:
        """Count a video's finished steps, and all its steps.

        Args:
            section_steps: The number of steps of each section, or 0 for all of them. If this section has
                another number, the later sections get it, too.
        """
        start = self.section - 1 if all(section_steps) else 0
        if section_steps[self.section - 1] != self.steps:
            section_steps[start:] = [self.steps] * (len(section_steps) - start)
        return sum(section_steps[: self.section - 1]) + self.step, sum(section_steps)


@dataclass(frozen=True, kw_only=True, slots=True)
class PieceDone(Event):
    """The end of a piece of a stage's work: a tile of the VAE, or a kernel or shape that was tried."""

    stage: Stage
    section: int | None
    piece: int
    pieces: int


@dataclass(frozen=True, kw_only=True, slots=True)
class SectionFinished(Event):
    """The end of a section, which can be watched from now on in `video`, which has `frames` frames.

    Attributes:
        added_in_front: The number of frames that were added in front of the video; 0 in forward mode.
    """

    section: int
    sections: int
    video: str
    frames: int
    added_in_front: int = 0
    thumbnail: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Warned(Event):
    """A warning for the user about a job that continues."""

    message: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Finished(Event):
    """The end of a job whose video is complete.

    Attributes:
        peak_host_bytes: The peak of the engine's main memory since it was started; 0 if unknown.
        peak_device_bytes: The peak of the memory that tensors took on the device.
        retries: The number of times that a smaller plan was tried.
        vae_tile_px: The side of the VAE's tiles in pixels; None if it used none.
        advice: Empty. In events of earlier versions, a sentence on settings that would have been faster.
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
    steps_skipped: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Cancelled(Event):
    """The end of a job at the user's request. `video` is None if no section was finished."""

    is_final: ClassVar[bool] = True
    video: str | None
    frames: int
    peak_host_bytes: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Failed(Event):
    """The end of a job that cannot continue. `message` and `remedy` are for the user; `detail` is technical.

    As in `errors`, settings are named in back quotes. `setting` is the setting at fault, or empty.
    """

    is_final: ClassVar[bool] = True
    message: str
    remedy: str
    detail: str = ""
    code: FailureCode = "error"
    setting: str = ""
    video: str | None = None
    frames: int = 0


def event_name(event_class: type[Event]) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", event_class.__name__).lower()


_KINDS: dict[str, type[Event]] = {
    event_name(event_class): event_class
    for event_class in (
        JobStarted, StageStarted, Reading, StepDone, PieceDone, SectionFinished, Warned,
        Finished, Cancelled, Failed,
    )
}  # fmt: skip


def to_dict(event: Event) -> dict[str, Any]:
    data = asdict(event)
    return {"event": event_name(type(event)), "job": data.pop("job"), "time": data.pop("time"), **data}


_MAX_NUMBER = 1e15  # far above any count of bytes
_hints = cache(get_type_hints)


def _fits(value: object, hint: Any) -> bool:
    if isinstance(value, int | float) and (isinstance(value, bool) or not 0 <= value <= _MAX_NUMBER):
        return False
    if get_origin(hint) is Literal:
        return isinstance(value, str)
    return isinstance(value, float | int if hint is float else hint)


def from_dict(data: object) -> Event:
    """Parse the event of a dict that `to_dict` wrote. Fields that this version does not know are ignored.

    Raises:
        ValueError: If the data is not a known event, lacks one of its fields, or has a value there that no
            event can have.
    """
    content: Any = data
    try:
        event_class = _KINDS[content["event"]]
        values = {field.name: content[field.name] for field in fields(event_class) if field.name in content}
        if "stage" in values:
            values["stage"] = _STAGE_NAMES[values["stage"]]
        wrong = {name: value for name, value in values.items() if not _fits(value, _hints(event_class)[name])}
        for number_name, total_name in (("section", "sections"), ("step", "steps"), ("piece", "pieces")):
            number = values.get(number_name)
            if not wrong and number is not None and not 1 <= number <= values.get(total_name, inf):
                wrong[number_name] = number
        if wrong:
            raise ValueError(f"{content['event']} has {short_repr(wrong)}.")
        return event_class(**values)
    except (KeyError, TypeError) as error:
        raise ValueError(f"{short_repr(data)} is no event that this version knows ({error}).") from error
