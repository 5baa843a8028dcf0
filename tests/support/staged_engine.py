"""An engine without a model, which a test drives event by event."""

import json
import os
import threading
from collections.abc import Iterator, Mapping
from itertools import takewhile
from types import MappingProxyType
from typing import Any

from PIL import Image

from app.cards import VideoCard
from app.jobs.job import Job
from app.jobs.making.engine_client import EngineDied, Trial
from diffusers_helper.events import (
    Cancelled,
    Event,
    Failed,
    Finished,
    JobStarted,
    SectionFinished,
    Stage,
    StageStarted,
    StepDone,
)  # fmt: skip
from diffusers_helper.families.packing import plan_sections
from diffusers_helper.provenance.job_folder import JobFolder
from tests.support.clips import cut, scene, writer
from tests.support.reported_jobs import slow_start

STEPS = 2
_POLL_SECONDS = 0.05
PEAK = 3 * 2**30
# The memory that the engine reports: the cap and the reserve, and each stage's planned and measured peak.
CAP, RESERVE = 20 * 2**30, 2**30
PLANNED = {"text": 3 * 2**30, "sample": 6 * 2**30, "decode": 7 * 2**30}
MEASURED = {"text": 2 * 2**30, "sample": 5 * 2**30, "decode": 13 * 2**29}
STREAMED = 11 * 2**29
FAILING_PROMPT, FAILING_LATE_PROMPT = "fail", "fail in section 2"
MESSAGE, REMEDY = "The <b>stage</b> collapsed.", "Build another & start again."


def memory_record(sections: int) -> dict[str, Any]:
    """Return a record of memory after so many sections, in which each use of a network takes one second."""
    uses = [("text", None), *((name, n) for n in range(1, sections + 1) for name in ("sample", "decode"))]
    stages = [
        {
            "stage": name, "model": name, "section": number, "begin": float(at), "end": at + 1.0,
            "predicted_bytes": PLANNED[name], "measured_bytes": MEASURED[name], "resident_bytes": 2**30,
            "streamed_bytes": STREAMED if name == "sample" else 0, "is_complete": True,
        }
        for at, (name, number) in enumerate(uses)
    ]  # fmt: skip
    return {
        "peak_device_bytes": MEASURED["decode"], "cap_bytes": CAP, "bytes_streamed": sections * STREAMED,
        "retries": 0, "vae_tile_px": 256, "preserved_bytes": 18 * 2**30, "reserve_bytes": RESERVE,
        "plan_peak_bytes": PLANNED["decode"] + RESERVE, "keep_all_resident": False, "stages": stages,
    }  # fmt: skip


def _began(stage: Stage, section: int, seconds: float, to_video: float, **about: Any) -> StageStarted:
    return StageStarted(
        **about, stage=stage, section=section, expected_seconds=seconds, seconds_to_video=to_video
    )


class StagedEngine:
    """An engine that makes videos of `tests.support.clips.scene`, and whose events wait for `go`.

    Attributes:
        size: The width and the height of the videos that begin from now on.
        foreseen: The seconds that are foreseen for each stage of a first job on a slow card (`slow_start`);
            0 for a job on a machine that is known.
    """

    restarts = False
    size: tuple[int, int] = (96, 64)
    foreseen = 0.0
    used_bytes = 3 * 2**30

    def __init__(self, **variables: str) -> None:
        self.card = VideoCard.from_environment({**os.environ, **variables})
        self._changed = threading.Condition()
        self._permits = 0
        self._cancelled: set[str] = set()
        self._holds_cancel = False
        self._killed = False

    def hold_cancel(self) -> None:
        """Keep cancelled jobs from ending before `release_cancel`, as if a step took long."""
        self._holds_cancel = True

    def release_cancel(self) -> None:
        with self._changed:
            self._holds_cancel = False
            self._changed.notify_all()

    def go(self, events: int = 1) -> None:
        """Let so many further events happen."""
        with self._changed:
            self._permits += events
            self._changed.notify_all()

    def start(self) -> None: ...

    def close(self) -> None: ...

    def kill(self) -> None:
        """Make the current run raise EngineDied, as at the end of the program."""
        with self._changed:
            self._killed = True
            self._changed.notify_all()

    def cancel(self, job_id: str) -> None:
        with self._changed:
            self._cancelled.add(job_id)
            self._changed.notify_all()

    def run(
        self, job: Job, *, blocklist: Mapping[Trial, str] = MappingProxyType({})
    ) -> Iterator[Event | None]:
        self._killed = False
        try:
            yield from self._run(job)
        finally:
            self._cancelled.discard(job.id)

    def _run(self, job: Job) -> Iterator[Event | None]:
        shown: SectionFinished | None = None
        for event in self._script(job):
            while (may_go_on := self._may_go_on(job.id)) is None:
                yield None
            if not may_go_on:
                video, frames = (shown.video, shown.frames) if shown else (None, 0)
                yield Cancelled(job=job.id, time=0.0, video=video, frames=frames)
                return
            shown = event if isinstance(event, SectionFinished) else shown
            yield event

    def _may_go_on(self, job_id: str) -> bool | None:
        """Return whether the next event may happen instead of the job's end; None if neither is due yet."""
        with self._changed:
            is_due = lambda: self._permits > 0 or self._ends(job_id) or self._killed  # noqa: E731
            if not self._changed.wait_for(is_due, _POLL_SECONDS):
                return None
            if self._killed:
                raise EngineDied
            if self._ends(job_id):
                return False
            self._permits -= 1
            return True

    def _ends(self, job_id: str) -> bool:
        return job_id in self._cancelled and not self._holds_cancel

    def _script(self, job: Job) -> Iterator[Event]:
        plan = plan_sections(job.request.seconds, mode=job.request.mode)
        width, height = self.size
        parts = cut(scene(plan.total_frames, height, width), plan)
        video = writer(job.folder, job.request.mode, width=width, height=height)
        about: dict[str, Any] = {"job": job.id, "time": 0.0}
        count = len(plan)
        each = self.foreseen
        if each:
            yield from takewhile(lambda event: getattr(event, "stage", "") != "sample", slow_start(job, each))
        else:
            yield JobStarted(**about, sections=count, frames=plan.total_frames, width=width, height=height)
            yield StageStarted(**about, stage="text")
        shown = video.frames
        for number, (final, pending) in enumerate(parts, 1):
            if number <= video.sections:  # made by an earlier engine
                continue
            yield _began("sample", number, each, 2 * each, **about)
            for step in range(1, STEPS + 1):
                preview = job.folder / f"preview-{number}-{step}.png"
                Image.new("RGB", (width // 2, height // 2), (200, 90 * step, 60)).save(preview)
                yield StepDone(**about, section=number, step=step, steps=STEPS, preview=str(preview))
            if (job.request.prompt, number) in ((FAILING_PROMPT, 1), (FAILING_LATE_PROMPT, 2)):
                so_far: dict[str, Any] = {"video": str(video.latest), "frames": shown} if shown else {}
                yield Failed(**about, message=MESSAGE, remedy=REMEDY, detail="Traceback: secret.py", **so_far)
                return
            yield _began("decode", number, each, each, **about)
            path = str(video.add_section(final, pending))
            front = video.frames - shown if job.request.mode == "inverted" and shown else 0
            shown = video.frames
            picture = final if final is not None and len(final) else pending
            thumbnail = JobFolder(job.folder).thumbs / f"{number:04}.webp"
            thumbnail.parent.mkdir(exist_ok=True)
            sections = JobFolder(job.folder).sections
            sections.mkdir(exist_ok=True)
            (sections / f"{number:04}.safetensors").write_bytes(b"latents")
            JobFolder(job.folder).memory.write_text(json.dumps(memory_record(number)))
            Image.fromarray(picture[len(picture) // 2]).save(thumbnail)
            yield SectionFinished(
                **about, section=number, sections=count, video=str(path), frames=shown, added_in_front=front,
                thumbnail=str(thumbnail),
            )  # fmt: skip
        end = str(video.finish())
        memory: dict[str, Any] = {"peak_device_bytes": MEASURED["decode"], "cap_bytes": CAP}
        yield Finished(**about, video=end, frames=shown, seconds=1.0, peak_host_bytes=PEAK, **memory)
