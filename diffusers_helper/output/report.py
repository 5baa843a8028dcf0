"""The sender of a running job's events."""

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
    """`expected` are the seconds that each stage will take: "load" in all, the others for one section."""

    def __init__(
        self, folder: JobFolder, plan: SectionPlan, on_event: Callable[[events.Event], None],
        expected: Mapping[str, float] = MappingProxyType({}),
    ) -> None:  # fmt: skip
        self._job = folder.job
        self._thumbnail = folder.thumb
        self._plan = plan
        self._on_event = on_event
        self._start_time = time.monotonic()
        self._num_frames = 0
        self._stage = ""
        self._stage_start = 0.0
        self._stage_index = 0
        self._expected = dict(expected)
        self._skipped_by_section: dict[int, int] = {}
        self._last_step_time = 0.0
        self.step_seconds = list[float]()  # between the ends of two steps of a section

    def _report(self, kind: Callable[..., events.Event], **fields: Any) -> None:
        self._on_event(kind(job=self._job, time=self._seconds, **fields))

    @property
    def _seconds(self) -> float:
        return time.monotonic() - self._start_time

    @property
    def skipped(self) -> int:
        return sum(self._skipped_by_section.values())

    def started(
        self, video: GrowingVideo, expected: Mapping[str, float] = MappingProxyType({}), attention: str = "",
        kernels: str = "",
    ) -> None:  # fmt: skip
        self._video = video
        height, width = video.shape
        self._expected = dict(expected)
        self._report(
            events.JobStarted, width=width, height=height, sections=len(self._plan),
            frames=self._plan.total_frames, attention=attention, kernels=kernels,
        )  # fmt: skip

    def warned(self, message: str) -> None:
        self._report(events.Warned, message=message)

    def stage(self, stage: events.Stage, section: int | None = None) -> None:
        self._report(events.StageStarted, stage=stage, section=section, **self._estimate(stage, section))
        self._stage = stage

    def _estimate(self, stage: events.Stage, section: int | None) -> dict[str, float]:
        now = self._seconds
        expected = self._expected
        if self._stage == "load":  # it comes again for each network
            expected["load"] = max(0.0, expected.get("load", 0.0) - (now - self._stage_start))
        self._stage_start = now
        if stage != "load" and (stage != "write" or section):  # a video to continue is written first of all
            stage_index = _ORDER.index(stage)
            # Stages without a section may come between later ones.
            self._stage_index = stage_index if section else max(stage_index, self._stage_index)
        coming_stages = {stage, *_ORDER[self._stage_index + 1 :], *(() if section else ("load",))}
        seconds_to_video = 0.0
        if "sample" in expected:  # otherwise most of the sum would be missing
            seconds_to_video = sum(expected.get(name, 0.0) for name in coming_stages)
        return {
            "expected_seconds": round(expected.get(stage, 0.0), 1),
            "seconds_to_video": round(seconds_to_video, 1),
        }

    def reading(self, done_bytes: int, total_bytes: int) -> None:
        if self._stage != "load":
            self.stage("load")
        self._report(events.Reading, done_bytes=done_bytes, total_bytes=total_bytes)

    def trying(self, stage: events.Stage, done: int, total: int) -> None:
        if done:
            self.piece(stage, None, done, total)
        else:
            self.stage(stage)

    def step(self, section: Section, step: int, steps: int, preview: Path | None, skipped: int) -> None:
        self._skipped_by_section[section.number] = skipped
        if step > 1:
            self.step_seconds.append(self._seconds - self._last_step_time)
        self._last_step_time = self._seconds
        self._report(
            events.StepDone, section=section.number, step=step, steps=steps,
            preview=str(preview) if preview else None, skipped=skipped,
        )  # fmt: skip

    def piece(self, stage: events.Stage, section: int | None, piece: int, pieces: int) -> None:
        if pieces > 1:
            self._report(events.PieceDone, stage=stage, section=section, piece=piece, pieces=pieces)

    def decoded(self, section: Section, frames: Tensor) -> None:
        write_thumbnail(self._thumbnail(section.number), section, frames, self._plan.mode)

    def section(self, section: Section) -> None:
        frames = self._video.frames
        previous_frames = self._num_frames
        is_in_front = self._plan.mode == "inverted" and previous_frames > 0 and not section.is_closing
        self._num_frames = frames
        self._report(
            events.SectionFinished,
            section=section.number,
            sections=len(self._plan),
            video=str(self._video.latest),
            frames=frames,
            added_in_front=frames - previous_frames if is_in_front else 0,
            thumbnail=str(self._thumbnail(section.number)),
        )

    def finished(self, usage: Mapping[str, Any]) -> Path:
        video = self._video.finish()
        self._end(events.Finished, video, seconds=self._seconds, steps_skipped=self.skipped, **usage)
        return video

    def cancelled(self) -> None:
        self._end(events.Cancelled, self._video.finish() if self._video.latest else None)

    def _end(self, kind: Callable[..., events.Event], video: Path | None, **fields: Any) -> None:
        video_path = None if video is None else str(video)
        frames = self._video.frames
        self._report(kind, video=video_path, frames=frames, peak_host_bytes=peak_host_bytes(), **fields)
