"""The events of a running job, a stream of plain data that the page, the command line and the API read."""

import re
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Literal

from diffusers_helper.errors import FailureCode, short_repr

# The stages in the order in which they run; the last three are repeated for each section. "attention" and
# "convolutions" run only on a GPU, for a card and shapes that are new to this machine.
Stage = Literal[
    "attention", "load", "text", "convolutions", "vae_encode", "vision", "sample", "decode", "write",
    "finish",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class StageFacts:
    """The texts for a stage: the activity, as in "while encoding the prompt", and the label in plans.

    `weight` is the assumed time per step or decoded frame, in denoising steps, until it is measured.
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
    "finish": StageFacts("finishing the video", weight=1.0),
}
# The stages that run once for a card and for shapes, whose times say nothing about later jobs
TRIALS: tuple[Stage, ...] = ("attention", "convolutions")
_STAGE_NAMES = {**{name: name for name in STAGES}, "image": "vae_encode"}  # version 0.1 wrote "image"


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    is_final: ClassVar[bool] = False
    job: str
    time: float


@dataclass(frozen=True, kw_only=True, slots=True)
class JobStarted(Event):
    """The start of a job's work, with its attention backend and kernels; "" in events of earlier versions."""

    sections: int
    frames: int
    width: int
    height: int
    attention: str = ""
    kernels: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class StageStarted(Event):
    """The start of a stage, with the seconds that it will probably take; 0 if unknown.

    "load" covers all readings that are left. `section` counts from 1 in order of making; None before the
    first.
    """

    stage: Stage
    section: int | None = None
    expected_seconds: float = 0.0
    seconds_to_video: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading(Event):
    """The progress of a reading of weights in the stage "load", about once per second.

    A network's files are read before it first computes, and weights to find their scales for int8, so this
    stage may come again between others. Each reading has a progress of its own.
    """

    done_bytes: int
    total_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class StepDone(Event):
    section: int
    step: int
    steps: int
    preview: str | None = None
    skipped: int = 0

    def progress(self, section_steps: list[int]) -> tuple[int, int]:
        """Count finished and all steps, given each section's, 0 for unknown. Later ones get this number."""
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
    section: int
    sections: int
    video: str
    frames: int
    added_in_front: int = 0
    thumbnail: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Warned(Event):
    message: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Finished(Event):
    """`vae_tile_px` is None without tiles. `advice` is empty but in events of earlier versions."""

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
    is_final: ClassVar[bool] = True
    video: str | None
    frames: int
    peak_host_bytes: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Failed(Event):
    """The end of a job that cannot continue, with sentences for the user, and a technical `detail`."""

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


def from_dict(data: object) -> Event:
    """Parse what `to_dict` wrote, or raise ValueError. Unknown fields are ignored."""
    content: Any = data
    try:
        event_class = _KINDS[content["event"]]
        values = {field.name: content[field.name] for field in fields(event_class) if field.name in content}
        if "stage" in values:
            values["stage"] = _STAGE_NAMES[values["stage"]]
        return event_class(**values)
    except (KeyError, TypeError) as error:
        raise ValueError(f"{short_repr(data)} is no event that this version knows ({error}).") from error
