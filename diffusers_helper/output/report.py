"""The sender of a running job's events."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from torch import Tensor

from diffusers_helper import events
from diffusers_helper.families.packing import Section, SectionPlan
from diffusers_helper.machine.limits import peak_host_bytes
from diffusers_helper.output.previews import write_thumbnail
from diffusers_helper.output.video import GrowingVideo
from diffusers_helper.provenance.job_folder import JobFolder

_ORDER: list[str] = list(events.STAGES)


class Report:
    """The sender of one job's events, with the job's id and the time since it started.

    Args:
        expected: The seconds that each stage will probably take, those of "load" for all readings together
            and the others for one section; without the stages for which nothing is known.
    """

    def __init__(
        self, folder: JobFolder, plan: SectionPlan, on_event: Callable[[events.Event], None],
        expected: Mapping[str, float] = MappingProxyType({}),
    ) -> None:  # fmt: skip
        """Prepare to report a job, whose folder need not exist yet."""
        self._job, self._thumbnail = folder.job, folder.thumb
        self._plan, self._on_event = plan, on_event
        self._start = time.monotonic()
        self._frames_before = 0
        self._stage, self._began, self._reached = "", 0.0, 0
        self._expected = dict(expected)
        self._skipped: dict[int, int] = {}
        self._last_step = 0.0
        self.step_seconds = list[float]()  # between the ends of two steps of a section

    def _report(self, kind: Callable[..., events.Event], **facts: Any) -> None:
        self._on_event(kind(job=self._job, time=self._seconds, **facts))

    @property
    def _seconds(self) -> float:
        return time.monotonic() - self._start

    @property
    def skipped(self) -> int:
        return sum(self._skipped.values())

    def started(
        self, video: GrowingVideo, attention: str, expected: Mapping[str, float] = MappingProxyType({})
    ) -> None:
        """Report that the work on a video has started. All events but those of stages come afterwards.

        Args:
            expected: See the class.
        """
        self._video, (height, width) = video, video.shape
        self._expected = dict(expected)
        facts = {"sections": len(self._plan), "frames": self._plan.total_frames, "attention": attention}
        self._report(events.JobStarted, width=width, height=height, **facts)

    def warned(self, message: str) -> None:
        self._report(events.Warned, message=message)

    def stage(self, stage: events.Stage, section: int | None = None) -> None:
        self._report(events.StageStarted, stage=stage, section=section, **self._foresee(stage, section))
        self._stage = stage

    def _foresee(self, stage: events.Stage, section: int | None) -> dict[str, float]:
        """Return the seconds that a stage which begins now and its section will probably take."""
        now, expected = self._seconds, self._expected
        if self._stage == "load":  # it comes again for each network
            expected["load"] = max(0.0, expected.get("load", 0.0) - (now - self._began))
        self._began = now
        if stage != "load" and (stage != "write" or section):  # a video to continue is written first of all
            self._reached = _ORDER.index(stage)
        coming = {stage, *_ORDER[self._reached + 1 :], *(() if section else ("load",))}
        # Where the time of the steps is not known, most of the sum would be missing.
        whole = sum(expected.get(one, 0.0) for one in coming) if "sample" in expected else 0.0
        return {"expected_seconds": round(expected.get(stage, 0.0), 1), "seconds_to_video": round(whole, 1)}

    def reading(self, done_bytes: int, total_bytes: int) -> None:
        """Report the progress of a reading, which is the stage "load"."""
        if self._stage != "load":
            self.stage("load")
        self._report(events.Reading, done_bytes=done_bytes, total_bytes=total_bytes)

    def trying(self, stage: events.Stage, done: int, total: int) -> None:
        """Report the progress of a stage that tries so many kernels or shapes, from none of them on."""
        if done:
            self.piece(stage, None, done, total)
        else:
            self.stage(stage)

    def step(self, section: Section, step: int, steps: int, preview: Path | None, skipped: int) -> None:
        self._skipped[section.number] = skipped
        if step > 1:
            self.step_seconds.append(self._seconds - self._last_step)
        self._last_step = self._seconds
        picture = str(preview) if preview else None
        self._report(
            events.StepDone, section=section.number, step=step, steps=steps, preview=picture, skipped=skipped
        )

    def piece(self, stage: events.Stage, section: int | None, piece: int, pieces: int) -> None:
        """Report the end of one of several pieces of work."""
        if pieces > 1:
            self._report(events.PieceDone, stage=stage, section=section, piece=piece, pieces=pieces)

    def decoded(self, section: Section, frames: Tensor) -> None:
        write_thumbnail(self._thumbnail(section.number), section, frames, self._plan.mode)

    def section(self, section: Section) -> None:
        """Report that a section can be watched in the latest version of the video."""
        frames, before = self._video.frames, self._frames_before
        is_in_front = self._plan.mode == "inverted" and before > 0 and not section.is_closing
        self._frames_before = frames
        self._report(
            events.SectionFinished,
            section=section.number,
            sections=len(self._plan),
            video=str(self._video.latest),
            frames=frames,
            added_in_front=frames - before if is_in_front else 0,
            thumbnail=str(self._thumbnail(section.number)),
        )

    def finished(self, usage: Mapping[str, Any]) -> Path:
        """Give the video its final name, and report the end of the job with the figures on memory."""
        video = self._video.finish()
        self._end(events.Finished, video, seconds=self._seconds, steps_skipped=self.skipped, **usage)
        return video

    def cancelled(self) -> None:
        self._end(events.Cancelled, self._video.finish() if self._video.latest else None)

    def _end(self, kind: Callable[..., events.Event], video: Path | None, **facts: Any) -> None:
        name = None if video is None else str(video)
        frames, peak = self._video.frames, peak_host_bytes()
        self._report(kind, video=name, frames=frames, peak_host_bytes=peak, **facts)
