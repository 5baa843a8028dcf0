"""What a job tells the world while it runs: the events, in the order a reader may rely on."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from diffusers_helper.events import (
    Cancelled,
    Event,
    Finished,
    JobStarted,
    PieceDone,
    SectionFinished,
    Stage,
    StageStarted,
    StepDone,
    Warned,
)
from diffusers_helper.output.video import GrowingVideo
from diffusers_helper.packing import Section, SectionPlan


class Report:
    """Makes events out of what happens, with the job's id and the time since it started."""

    def __init__(
        self, job: str, plan: SectionPlan, video: GrowingVideo, on_event: Callable[[Event], None]
    ) -> None:
        self._job, self._plan, self._video, self._on_event = job, plan, video, on_event
        self._start = time.monotonic()
        self._frames_before = 0

    @property
    def _time(self) -> float:
        return time.monotonic() - self._start

    def started(self, width: int, height: int) -> None:
        sections, frames = len(self._plan), self._plan.total_frames
        self._on_event(
            JobStarted(
                job=self._job, time=self._time, sections=sections, frames=frames, width=width, height=height
            )
        )

    def warned(self, message: str) -> None:
        self._on_event(Warned(job=self._job, time=self._time, message=message))

    def stage(self, stage: Stage, section: Section | None = None) -> None:
        number = section.number if section else None
        self._on_event(StageStarted(job=self._job, time=self._time, stage=stage, section=number))

    def step(self, section: Section, step: int, steps: int, preview: Path | None) -> None:
        picture = str(preview) if preview else None
        self._on_event(
            StepDone(
                job=self._job,
                time=self._time,
                section=section.number,
                step=step,
                steps=steps,
                preview=picture,
            )
        )

    def piece(self, stage: Stage, section: Section | None, piece: int, pieces: int) -> None:
        """Nothing is said of a work that is one piece."""
        if pieces > 1:
            number = section.number if section else None
            self._on_event(
                PieceDone(
                    job=self._job, time=self._time, stage=stage, section=number, piece=piece, pieces=pieces
                )
            )

    def section(self, section: Section, thumbnail: Path) -> None:
        """A section can be watched in the video's latest version."""
        frames = self._video.frames
        in_front = (
            frames - self._frames_before if self._plan.mode == "inverted" and self._frames_before else 0
        )
        self._frames_before = frames
        self._on_event(
            SectionFinished(
                job=self._job,
                time=self._time,
                section=section.number,
                sections=len(self._plan),
                video=str(self._video.latest),
                frames=frames,
                added_in_front=in_front,
                thumbnail=str(thumbnail),
            )
        )

    def finished(self, usage: Mapping[str, Any]) -> Path:
        """The video gets its lasting name, which is returned. `usage`: Finished's figures of memory."""
        video = self._video.finish()
        seconds = self._time
        self._on_event(
            Finished(
                job=self._job,
                time=seconds,
                video=str(video),
                frames=self._video.frames,
                seconds=seconds,
                peak_host_bytes=_peak_host_bytes(),
                **usage,
            )
        )
        return video

    def cancelled(self) -> None:
        """What there is of the video gets its lasting name."""
        video = str(self._video.finish()) if self._video.latest else None
        self._on_event(
            Cancelled(
                job=self._job,
                time=self._time,
                video=video,
                frames=self._video.frames,
                peak_host_bytes=_peak_host_bytes(),
            )
        )


def _peak_host_bytes() -> int:
    """Of this process, since it was started."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
