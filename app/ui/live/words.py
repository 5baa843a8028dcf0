"""The words for a watched job, which say what happens now, what it waits for, and what was set."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from app.ui.live.job import LiveJob
from diffusers_helper.events import STAGES, Stage
from diffusers_helper.models.registry import ModelInfo
from diffusers_helper.packing import FPS
from diffusers_helper.request import SETTINGS, GenerationRequest
from diffusers_helper.units import count_text, duration, gb_text

_OVER = {
    "finished": "Finished", "cancelled": "Ended", "failed": "Failed", "interrupted": "Interrupted",
    "waiting": "Waiting for the disk or the folder", "paused": "Paused",
}  # fmt: skip


def headline(live: LiveJob, jobs_first: int) -> str:
    """Return what happens now, or how the job ended; `jobs_first` jobs come before a waiting one."""
    if live.job.state in _OVER:
        return _OVER[live.job.state]
    if live.job.state == "queued":
        first = f" ({count_text(jobs_first, 'job')} first)" if jobs_first else ""
        return f"Waiting for its turn{first}"
    if live.download:
        done, total = map(gb_text, live.download)
        return f"Downloading the model: {done} of {total} GB"
    if not live.section:
        return _title(live.stage)
    section = f"ection {live.section} of {live.sections}"
    if live.section == live.sections_done:
        return f"S{section} is finished"
    if live.stage == "decode":
        return f"Decoding s{section}"
    if live.stage == "write":
        return f"Writing s{section}"
    return f"S{section}, step {live.step} of {live.steps}"


def doing(live: LiveJob) -> str:
    """Return what happens to the section in the making, as it is spoken."""
    if live.stage == "write":
        return "being written"
    if live.in_tail:
        return f"decoding, part {live.piece} of {live.pieces}" if live.pieces else "decoding"
    return f"step {live.step} of {live.steps}" if live.step else "running"


def ending(live: LiveJob) -> str:
    """Return what the job still waits for after it was cancelled."""
    if live.stage == "decode":
        return "Ending: the part being decoded is finished first"
    if live.stage == "write":
        return "Ending: the section being written is finished first"
    if live.stage == "sample":
        return "Ending: the step being computed is finished first"
    return "Ending: the work at hand is finished first"


def remark(live: LiveJob) -> str:
    """Return the few words that stand beside the headline."""
    if live.state == "queued":
        return "It starts by itself; this tab may be closed."
    if live.state in ("waiting", "paused", "interrupted"):
        return f"{live.job.message} {live.job.remedy}"
    if live.job.is_over:
        return _outcome(live)
    if not live.section:
        return f"Model, prompt and picture come first, then section 1 of {live.sections}."
    if live.is_guess:
        return "The first video measures the pace."
    if live.job.request.mode == "inverted" and live.sections > 1:
        if not live.sections_done:
            return "From end to start, which keeps the picture from drifting."
        if live.section == live.sections:
            return "The end exists; the beginning is being made now."
        return "The video grows towards its beginning."
    return "The video grows at its end." if live.sections > 1 else ""


def _outcome(live: LiveJob) -> str:
    if live.video is None:
        return "No section was finished, so there is no video."
    made = f"{live.video_frames / FPS:.2f} s, {live.video_frames} frames"
    return made if live.state == "finished" else f"What was made until then is kept: {made}."


def usual(live: LiveJob) -> tuple[str, float]:
    """Return what the engine is doing, and its usual silence in words and in seconds."""
    if live.in_tail:
        if live.timing.has_tail:
            tail = live.timing.tail(live.section)
            return f"decoding a section usually takes {duration(tail)}", tail
        return "the first decode of a job may take minutes", 120.0
    step = live.timing.step
    if live.section and step is not None:
        return f"a step usually takes {duration(step)}", step
    if live.section:
        return "the first step may take a minute", 60.0
    return "loading a model may take minutes", 120.0


def stage_seconds(live: LiveJob) -> list[tuple[str, float]]:
    """Return the durations of the stages in the order in which they came, without those that took no time."""
    return [(_title(stage), seconds) for stage, seconds in live.stages.items() if seconds >= 0.05]


def _title(stage: Stage | None) -> str:
    return STAGES[stage].title if stage else "Starting the engine"


def settings(request: GenerationRequest, info: ModelInfo | None) -> list[tuple[str, str]]:
    """Return the job's settings by their labels, without those that were left to the machine."""
    values = asdict(request) | {
        "model": info.title if info else Path(request.model).name,
        "resolution": request.resolution or (info.side if info else None),
    }
    shown = {name: value for name, value in values.items() if name != "image" and value is not None}
    # The VAE's settings are told where they are a person's own.
    shown = {
        name: value for name, value in shown.items()
        if not name.startswith("vae_") or value != SETTINGS[name].default
    }  # fmt: skip
    return [(SETTINGS[name].short_label, SETTINGS[name].shown(value)) for name, value in shown.items()]
