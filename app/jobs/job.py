"""What is known of one job."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from diffusers_helper.request import GenerationRequest

JobState = Literal["queued", "running", "finished", "cancelled", "failed"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """A snapshot; ask the service again for a newer one.

    Attributes:
        folder: the job's own folder in the outputs folder; its name is the id.
        created, started, ended: seconds since the epoch; None for what has not happened yet.
        video: what can be watched: the whole video, or the part that is finished.
        frames: number of frames of `video`.
        message, remedy: for a failed job, what happened and what to do about it.
    """

    id: str
    state: JobState
    request: GenerationRequest
    folder: Path
    created: float
    started: float | None = None
    ended: float | None = None
    video: Path | None = None
    frames: int = 0
    message: str = ""
    remedy: str = ""

    @property
    def is_over(self) -> bool:
        return self.state not in ("queued", "running")
