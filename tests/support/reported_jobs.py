"""Jobs that were never made: their facts, and events with known or recorded times."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from app.jobs.job import Job
from diffusers_helper.conditions.timeline import steps_of
from diffusers_helper.events import (
    Event,
    Finished,
    JobStarted,
    PieceDone,
    Reading,
    SectionFinished,
    Stage,
    StageStarted,
    StepDone,
)
from diffusers_helper.families.packing import Mode, decode_windows, plan_sections
from diffusers_helper.models.registry import info_of
from diffusers_helper.request import GenerationRequest

STEPS = 25


def job_of(
    mode: Mode = "inverted", seconds: float = 6.0, steps: int = STEPS, model: str = "demo", **changes: Any
) -> Job:
    request = GenerationRequest(
        image="/o/j/input.png", prompt="a <b>ball</b>", mode=mode, seconds=seconds, steps=steps, model=model
    )
    facts = {"id": "20261121-081530-3f9a", "state": "running", "folder": Path("/o/20261121-081530-3f9a")}
    return Job(**{**facts, "request": request, "created": 1000.0, "started": 1000.0, **changes})


def history(
    job: Job, *, load: float, first: float, step: float, latent: float, write: float = 0.0
) -> list[Event]:
    """Return the events of a job in which everything takes a known time, in seconds.

    `first` is the time of a section's first step, `step` of each other one; `latent` of decoding a frame.
    """
    info = info_of(job.request.model)
    plan, steps = info.family.sections(job.request), steps_of(job.request, info)
    events: list[Event] = []
    now = 0.0

    def say(kind: type[Event], **fields: Any) -> None:
        events.append(kind(job=job.id, time=now, **fields))

    say(JobStarted, sections=len(plan), frames=plan.total_frames, width=96, height=64)
    say(StageStarted, stage="load")
    now += load
    for section, windows in zip(plan, decode_windows(plan, job.request.vae_chunk), strict=True):
        number = section.number
        say(StageStarted, stage="sample", section=number)
        for done in range(1, steps[number - 1] + 1):
            now += first if done == 1 else step
            say(StepDone, section=number, step=done, steps=steps[number - 1])
        say(StageStarted, stage="decode", section=number)
        for piece, latents in enumerate(windows, 1):
            now += latent * latents
            say(PieceDone, stage="decode", section=number, piece=piece, pieces=len(windows))
        say(StageStarted, stage="write", section=number)
        now += write * sum(windows)
        video = f"/o/{job.id}/video-{number:04}.mp4"
        front = 36 if job.request.mode == "inverted" and number > 1 else 0
        say(
            SectionFinished, section=number, sections=len(plan), video=video, frames=section.total_frames,
            added_in_front=front, thumbnail=f"/o/{job.id}/thumbs/{number:04}.webp",
        )  # fmt: skip
    say(Finished, video=f"/o/{job.id}/video.mp4", frames=plan.total_frames, seconds=now)
    return events


def slow_start(job: Job, each: float = 60.0) -> list[Event]:
    """Return the events of a slow card's first job up to its first section, before which all takes long.

    Args:
        each: The seconds of each stage, as foreseen. The first step takes as long once more, unforeseen.
    """
    plan, gb = info_of(job.request.model).family.sections(job.request), 2**30
    events: list[Event] = []
    now, coming = 0.0, 6 * each

    def begin(stage: Stage, section: int | None = None) -> None:
        nonlocal coming
        facts: dict[str, Any] = {"expected_seconds": each, "seconds_to_video": coming if events else 0.0}
        events.append(StageStarted(job=job.id, time=now, stage=stage, section=section, **facts))
        coming -= each if len(events) > 1 else 0.0

    def pieces(stage: Stage, count: int, section: int | None = None) -> None:
        nonlocal now
        for piece in range(1, count + 1):
            now += each / count
            facts: dict[str, Any] = {"section": section, "piece": piece, "pieces": count}
            events.append(PieceDone(job=job.id, time=now, stage=stage, **facts))

    begin("attention")  # it is tried for the plan, before which the job is not announced
    pieces("attention", 4)
    frames = plan.total_frames
    events.append(JobStarted(job=job.id, time=now, sections=len(plan), frames=frames, width=96, height=64))
    begin("load")
    for done in range(1, 11):
        now += each / 10
        events.append(Reading(job=job.id, time=now, done_bytes=4 * done * gb, total_bytes=40 * gb))
    begin("text")
    now += each
    begin("convolutions")
    pieces("convolutions", 12)
    begin("vae_encode")
    now += each
    begin("sample", 1)
    for step in range(1, STEPS + 1):
        now += each if step == 1 else each / (STEPS - 1)
        events.append(StepDone(job=job.id, time=now, section=1, step=step, steps=STEPS))
    begin("decode", 1)
    pieces("decode", 3, 1)
    events.append(SectionFinished(job=job.id, time=now, section=1, sections=len(plan), video="v", frames=33))
    return events


def later(events: list[Event], seconds: float, index: int) -> list[Event]:
    """Return the events, with those from an index on delayed by so many seconds."""
    return [replace(event, time=event.time + seconds * (at >= index)) for at, event in enumerate(events)]


def recorded(name: str) -> tuple[Job, list[Event]]:
    """Return a job of the demo model and its events, with times recorded on one idle processor.

    Args:
        name: The length in seconds and the order, such as `10 inverted`.
    """
    seconds, mode = name.split()
    job = job_of(mode, float(seconds))  # pyright: ignore[reportArgumentType]
    job = replace(job, request=replace(job.request, steps=8))
    plan = plan_sections(job.request.seconds, mode=job.request.mode)

    def event(kind: str, time: float, *facts: Any) -> Event:
        about: dict[str, Any] = {"job": job.id, "time": time}
        if kind == "job":
            frames = plan.total_frames
            return JobStarted(**about, sections=len(plan), frames=frames, width=128, height=128)
        if kind == "stage":
            return StageStarted(**about, stage=facts[0], section=facts[1])
        if kind == "step":
            return StepDone(**about, section=facts[0], step=facts[1], steps=8)
        if kind == "piece":
            return PieceDone(**about, stage="decode", section=facts[0], piece=facts[1], pieces=facts[2])
        if kind == "section":
            return SectionFinished(**about, section=facts[0], sections=len(plan), video="v", frames=33)
        return Finished(**about, video="v", frames=plan.total_frames, seconds=time)

    runs = json.loads(Path(__file__).with_name("recorded_runs.json").read_text())
    return job, [event(*row) for row in runs[name]]
