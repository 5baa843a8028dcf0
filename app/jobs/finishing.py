"""The jobs that finish videos: how they are queued, and what will come of them."""

import os
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

from app.jobs.history import History
from app.jobs.job import Job, video_of
from app.jobs.queue import Queue
from app.jobs.storage.store import JobStore
from diffusers_helper.conditions.sources import with_sources
from diffusers_helper.finish.upscale_models import upscale_folder
from diffusers_helper.provenance.lineage import Lineage
from diffusers_helper.request import GenerationRequest
from diffusers_helper.setting import text_of
from diffusers_helper.units import about, size_text

_LAST_JOBS = 6


def finishing_request(
    source: Job | Path, steps: str, *, join: Sequence[Job | Path] = (), sound: str = "", **settings: Any
) -> GenerationRequest:
    """Make the request that does steps to a job's video or to a file, which is read here."""
    if isinstance(source, Job):
        settings = {"prompt": source.request.prompt, "seed": source.request.seed, **settings}
    video, *others = (video_of(item) if isinstance(item, Job) else item for item in (source, *join))
    files = {"video": str(video), "join": text_of(others), "sound": sound}
    return with_sources(GenerationRequest(finish=steps, **files, **settings), [upscale_folder(os.environ)])


def finishing_pace(jobs: Iterable[Job]) -> float | None:
    """Learn from finished jobs, the newest first, by what to multiply nominal times; None without any."""
    paces = (
        (job.ended - job.started) / job.request.finishing.nominal_seconds
        for job in jobs
        if job.request.finishing and job.started and job.ended
    )
    return median(recent) if (recent := [*islice(paces, _LAST_JOBS)]) else None


def forecast(store: JobStore, request: GenerationRequest) -> dict[str, Any]:
    """Tell what a finishing will make and take, roughly; `is_measured` if this machine has done such work."""
    assert request.finishing
    shape, num_bytes = request.finishing.result, request.finishing.nominal_bytes
    pace = finishing_pace(store.jobs("WHERE state = 'finished' ORDER BY place DESC LIMIT 60"))
    fps, seconds = float(shape.rate), request.finishing.nominal_seconds * (pace or 1.0)
    size = f"{shape.width}x{shape.height}, {shape.frames} frames, {shape.seconds:.2f} s at {fps:.5g} fps"
    facts = f"{size}, about {size_text(num_bytes)}, in {about(seconds)}"
    return {
        "width": shape.width, "height": shape.height, "frames": shape.frames, "fps": fps,
        "seconds": shape.seconds, "bytes": num_bytes, "work_seconds": seconds, "is_measured": bool(pace),
        "words": f"{facts}." if pace else f"{facts}, roughly.",
    }  # fmt: skip


def add_finishing(queue: Queue, request: GenerationRequest, parent: Job | Path, *, press: str = "") -> Job:
    lineage = Lineage(parent=parent.id if isinstance(parent, Job) else "")
    return queue.add(request, lineage=lineage, press=press)


def press_after(job_id: str) -> str:
    """Make the id under which a job that follows another one is queued, so that it is queued once."""
    return f"after {job_id}"


def add_following(store: JobStore, job: Job, video: Path) -> None:
    """Queue what is to follow a job, with its whole video, unless that was done before a crash."""
    press = press_after(job.id)
    steps, *later = job.request.then.splitlines()
    if not History(store).made_by(press):
        settings: dict[str, Any] = {name: getattr(job.request, name) for name in ("prompt", "seed", "crf")}
        request = finishing_request(video, steps, then=text_of(later), **settings)
        add_finishing(Queue(store), request, job, press=press)
