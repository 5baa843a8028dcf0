"""The record of one job, the states that it goes through, and what a user may do in each of them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from diffusers_helper.conditions.picture_file import size_of as picture_size
from diffusers_helper.errors import InputError, LongtakeError
from diffusers_helper.models.registry import find_model
from diffusers_helper.provenance.job_folder import JobFolder
from diffusers_helper.request import GenerationRequest

JobState = Literal[
    "queued", "running", "waiting", "paused", "interrupted", "finished", "failed", "cancelled"
]  # fmt: skip
Action = Literal[
    "watch", "edit", "pause", "resume", "retry", "stop_after_section", "cancel", "reorder", "remove",
    "duplicate", "branch", "change", "wait",
]  # fmt: skip
# The actions that the maker of a job carries out; a job with "wait" is paused after each of its sections.
Command = Literal["cancel", "pause", "stop_after_section", "change", "wait"]
COMMANDS: tuple[Command, ...] = ("cancel", "pause", "stop_after_section", "change", "wait")

# The states that may follow each state. A job that has lost its card is queued again. A waiting job has met a
# temporary problem, such as a full disk; an interrupted one has lost the program that was making it. Both
# continue by themselves; a paused job, and one that has failed or was cancelled, continues when a user asks.
TRANSITIONS: dict[JobState, tuple[JobState, ...]] = {
    "queued": ("running", "paused", "cancelled", "failed"),
    "running": ("queued", "waiting", "paused", "interrupted", "finished", "failed", "cancelled"),
    "waiting": ("queued", "running", "paused", "interrupted", "finished", "failed", "cancelled"),
    "paused": ("queued", "failed", "cancelled"),
    "interrupted": ("queued", "paused", "failed", "cancelled"),
    "finished": (),
    "failed": ("queued",),
    "cancelled": ("queued",),
}
OVER: tuple[JobState, ...] = ("finished", "failed", "cancelled")
BEGUN: tuple[JobState, ...] = ("running", "waiting")

_STEERED: tuple[Action, ...] = ("change", "wait")
_MADE: tuple[Action, ...] = (
    "watch", "pause", "stop_after_section", "cancel", "duplicate", "branch", *_STEERED,
)  # fmt: skip
_HALTED: tuple[Action, ...] = ("cancel", "reorder", "remove", "duplicate", "branch", *_STEERED)
_ENDED: tuple[Action, ...] = ("resume", "retry", "remove", "duplicate", "branch", "change")
ALLOWED: dict[JobState, tuple[Action, ...]] = {
    "queued": ("edit", "pause", *_HALTED),
    "running": _MADE,
    "waiting": _MADE,
    "paused": ("edit", "resume", *_HALTED),
    "interrupted": ("pause", "resume", *_HALTED),
    "finished": ("remove", "duplicate", "branch"),
    "failed": _ENDED,
    "cancelled": _ENDED,
}
MOVABLE: tuple[JobState, ...] = tuple(state for state, actions in ALLOWED.items() if "reorder" in actions)
_GENERATED: tuple[Action, ...] = ("edit", "branch", "change")  # of a job that generates, and does not finish
# These need the job's settings, which a damaged folder may have lost.
_READING: tuple[Action, ...] = ("edit", "resume", "retry", "duplicate", "branch", "change")


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """A snapshot of a job; ask the service again for a newer one.

    Attributes:
        position: The job's position in the queue, at first its time of submission; the smallest comes first.
        created, started, ended: Times in seconds since the epoch; None if they have not happened yet. At the
            end of each pause, `started` moves on by its length.
        video: The file that can be watched: the whole video, or its finished part.
        message, remedy: Why a job has failed, waits or was interrupted, and what a user can do about it.
            A queued job has them while its model is not on this machine.
        card: The card that makes it, or has made it; a clause for each later one says from which section on.
        favourite: Whether a user marked it, so it is never removed automatically.
        parent, kept: The job that it was branched from, if any, and how many sections it has from there.
        damage: What the job lacks: its "request", or its whole "folder"; "" if it lacks nothing.
    """

    id: str
    state: JobState
    request: GenerationRequest
    folder: Path
    created: float
    position: float = 0.0
    started: float | None = None
    ended: float | None = None
    video: Path | None = None
    frames: int = 0
    message: str = ""
    remedy: str = ""
    card: str = ""
    favourite: bool = False
    damage: str = ""
    parent: str = ""
    kept: int = 0

    @property
    def is_over(self) -> bool:
        return self.state in OVER

    @property
    def waits(self) -> bool:
        """Whether the job is queued and cannot begin yet, for want of its model or its folder."""
        return self.state == "queued" and bool(self.message)


def allows(job: Job, action: Action) -> bool:
    if action == "edit" and job.started is not None:  # its sections would not fit to other settings
        return False
    if job.request.finish and action in _GENERATED:
        return False
    return action in ALLOWED[job.state] and not (job.damage and action in _READING)


class NoSuchJob(InputError):
    def __init__(self, job_id: str) -> None:
        super().__init__(
            f"There is no job {job_id[:60]!r} in this outputs folder.",
            "Look for it in the list of jobs, or name another folder as `outputs`.",
        )


class NotAllowed(InputError):
    def __init__(self, job: Job, expected: str, remedy: str = "") -> None:
        super().__init__(f"Job {job.id} is {job.state}; expected {expected}.", remedy)
        self.job = job


def check_generated(job: Job) -> None:
    """Raise InputError for a finishing, which has no sections of a model."""
    if job.request.finish:
        raise InputError(
            f"Job {job.id} finishes a video; expected one that generates it.", "Finish the video anew."
        )


class LostJob(LongtakeError):
    """The error for a job that this program was making until another one took it over."""

    def __init__(self, job_id: str) -> None:
        super().__init__(f"Job {job_id} is not this program's any more.", "Look at the job, and try again.")


def video_of(job: Job) -> Path:
    if job.video is None or not job.video.exists():
        raise NotAllowed(job, "one with a video", "Wait for its first section.")
    return job.video


def size_of(job: Job) -> tuple[int, int]:
    if job.request.finishing:
        return job.request.finishing.result.width, job.request.finishing.result.height
    try:
        info = find_model(job.request.model, allow_folder=True)
        picture = None
        if not job.request.is_from_words:
            width, height = picture_size(JobFolder(job.folder).input)
            picture = height, width
    except (InputError, OSError):  # the model's folder, or the job's, was removed by hand
        return 0, 0
    height, width = info.shape_of(job.request, picture)
    return width, height
