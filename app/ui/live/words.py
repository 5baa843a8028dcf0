"""What a watched job is called in words: what happens now, what is waited for, what was set."""

from __future__ import annotations

from pathlib import Path

from app.ui.live.job import LiveJob
from app.ui.text import duration
from diffusers_helper.events import Stage
from diffusers_helper.models.registry import ModelInfo
from diffusers_helper.packing import FPS
from diffusers_helper.request import GenerationRequest

_BEFORE_SECTIONS: dict[Stage, str] = {
    "load": "Loading the model",
    "text": "Encoding the prompt",
    "image": "Preparing the picture",
    "vae_encode": "Encoding the picture",
    "vision": "Looking at the picture",
}
_OVER = {"finished": "Finished", "cancelled": "Ended", "failed": "Failed"}
_STAGES: dict[Stage | None, str] = {
    None: "Starting the engine",
    "load": "Loading the model",
    "text": "Encoding the prompt",
    "image": "Encoding the picture",
    "vae_encode": "Encoding the picture",
    "vision": "Encoding the picture",
    "sample": "Denoising steps",
    "decode": "Decoding",
    "write": "Writing the video",
}
_ORDERS = {"inverted": "End first", "forward": "Forward"}


def headline(live: LiveJob, jobs_first: int) -> str:
    """What happens now, or how it ended. `jobs_first` come before a job that waits."""
    if live.job.is_over:
        return _OVER[live.job.state]
    if live.job.state == "queued":
        jobs = "1 job first" if jobs_first == 1 else f"{jobs_first} jobs first"
        return f"Waiting for its turn ({jobs})" if jobs_first else "Waiting for its turn"
    if live.stage in _BEFORE_SECTIONS and not live.section:
        return _BEFORE_SECTIONS[live.stage]
    if not live.section:
        return "Starting the engine"
    section = f"ection {live.section} of {live.sections}"
    if live.section == live.sections_done:
        return f"S{section} is finished"
    if live.stage == "decode":
        part = f", part {live.piece} of {live.pieces}" if live.pieces else ""
        return f"Decoding s{section}{part}"
    if live.stage == "write":
        return f"Writing s{section}"
    return f"S{section}, step {live.step} of {live.steps}"


def ending(live: LiveJob) -> str:
    """After a cancel: what is waited for."""
    if live.stage == "decode":
        return "Ending: the part being decoded is finished first"
    if live.stage == "write":
        return "Ending: the section being written is finished first"
    if live.stage == "sample":
        return "Ending: the step being computed is finished first"
    return "Ending: the work at hand is finished first"


def remark(live: LiveJob) -> str:
    """A few words beside the headline."""
    if live.state == "queued":
        return "It starts by itself; this tab may be closed."
    if live.job.is_over:
        return _outcome(live)
    if live.job.request.mode == "inverted" and live.sections > 1:
        if not live.sections_done:
            return "From end to start, which keeps the picture from drifting."
        if live.section == live.sections:
            return "The end exists; the beginning is being made now."
        return "The end exists; the video grows towards its beginning."
    return "The video grows at its end." if live.sections > 1 else ""


def _outcome(live: LiveJob) -> str:
    if live.video is None:
        return "No section was finished, so there is no video."
    made = f"{live.video_frames / FPS:.2f} s, {live.video_frames} frames"
    return made if live.state == "finished" else f"What was made until then is kept: {made}."


def usual(live: LiveJob) -> tuple[str, float]:
    """What the engine is doing and how long it usually goes without a word, in words and in seconds."""
    if live.in_tail:
        _, frame = live.timing.costs()
        tail = frame * live.plan[live.section - 1].decoded_frames
        if live.timing.has_tail:
            return f"decoding a section usually takes {duration(tail)}", tail
        return "the first decode of a job may take minutes", 120.0
    step = live.timing.step
    if live.section and step is not None:
        return f"a step usually takes {duration(step)}", step
    if live.section:
        return "the first step may take a minute", 60.0
    return "loading a model may take minutes", 120.0


def stage_seconds(live: LiveJob) -> list[tuple[str, float]]:
    """Durations by kind of work, in the order in which they came; what took no time is left out."""
    totals: dict[str, float] = {}
    for stage, seconds in live.stages.items():
        totals[_STAGES[stage]] = totals.get(_STAGES[stage], 0.0) + seconds
    return [(name, seconds) for name, seconds in totals.items() if seconds >= 0.05]


def settings(request: GenerationRequest, info: ModelInfo | None) -> list[tuple[str, str]]:
    """All that was asked for, in words."""
    resolution = request.resolution or (info.side if info else None)
    rows = [
        ("Prompt", request.prompt or "none"),
        ("Negative prompt", request.negative or "none"),
        ("Model", info.title if info else Path(request.model).name),
        ("Order", _ORDERS[request.mode]),
        ("Length asked for", f"{request.seconds:g} s"),
        ("Seed", str(request.seed)),
        ("Steps per section", str(request.steps)),
        ("Sampler", {"unipc": "UniPC", "euler": "Euler"}[request.sampler]),
        ("Distilled CFG scale", f"{request.guidance:g}"),
        ("CFG scale", f"{request.cfg:g}"),
        ("CFG re-scale", f"{request.cfg_rescale:g}"),
        ("Resolution", f"{resolution} pixels" if resolution else "the model's own"),
        ("MP4 compression", str(request.crf)),
    ]
    if request.vram_cap_gb is not None:
        rows.append(("VRAM cap", f"{request.vram_cap_gb:g} GB"))
    if request.preserved_gb is not None:
        rows.append(("Preserved memory", f"{request.preserved_gb:g} GB"))
    return rows
