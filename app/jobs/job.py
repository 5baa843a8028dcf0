"""The record of one job, and the states that it goes through."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from diffusers_helper.request import GenerationRequest

JobState = Literal["queued", "running", "waiting", "interrupted", "finished", "failed", "cancelled"]

# The states that may follow each state. A waiting job has met passing trouble, such as a full disk; an
# interrupted one has lost the program that was making it. Both continue by themselves; failed and cancelled
# jobs continue when a person asks for it.
TRANSITIONS: dict[JobState, tuple[JobState, ...]] = {
    "queued": ("running", "cancelled", "failed"),
    "running": ("waiting", "interrupted", "finished", "failed", "cancelled"),
    "waiting": ("running", "interrupted", "finished", "failed", "cancelled"),
    "interrupted": ("queued", "failed", "cancelled"),
    "finished": (),
    "failed": ("queued",),
    "cancelled": ("queued",),
}
OVER: tuple[JobState, ...] = ("finished", "failed", "cancelled")
BEGUN: tuple[JobState, ...] = ("running", "waiting")
RESUMABLE: tuple[JobState, ...] = ("interrupted", "failed", "cancelled")


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """A snapshot of a job; ask the service again for a newer one.

    Attributes:
        folder: The job's own folder in the outputs folder; its name is the id.
        place: The job's place in the queue, at first its time of submission; the smallest comes first.
        owner: The name of the process that makes the job, or will make it.
        created, started, ended: Seconds since the epoch; None for those that have not happened yet.
        video: The file that can be watched: the whole video, or the part that is finished.
        message, remedy: Why a job has failed, waits or was interrupted, and what a person can do about it.
    """

    id: str
    state: JobState
    request: GenerationRequest
    folder: Path
    created: float
    place: float = 0.0
    owner: str = ""
    started: float | None = None
    ended: float | None = None
    video: Path | None = None
    frames: int = 0
    message: str = ""
    remedy: str = ""

    @property
    def is_over(self) -> bool:
        """Return whether the job has ended; a person may still have it resumed."""
        return self.state in OVER

    @property
    def is_resumable(self) -> bool:
        """Return whether the job can be put back into the queue."""
        return self.state in RESUMABLE
