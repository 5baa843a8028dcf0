"""The texts for a watched job: what happens now, what it waits for, and its settings."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict
from pathlib import Path

from app.jobs.job import Command, JobState
from app.jobs.view import WORDS, title_of
from app.ui.live.progress import Cell, LiveJob
from diffusers_helper.errors import InputError
from diffusers_helper.events import STAGES, Stage
from diffusers_helper.families.packing import Mode
from diffusers_helper.models.registry import family_of, find_model
from diffusers_helper.request import PICTURES, SETTINGS, GenerationRequest
from diffusers_helper.units import about, count_text, duration, gb_text

_LEAST_GUESS = 60.0  # seconds
_MOST_ANNOUNCED = 120  # characters of a prompt
_LEAST_EXPECTED = 7.5  # seconds, below which an estimate says only "a few seconds"
_STOPS: dict[Command, str] = {"cancel": "Ending", "pause": "Pausing"}


def headline(
    live: LiveJob, jobs_first: int, commands: Collection[Command] = (), *, held: bool = False
) -> str:
    """Return what happens now, or how the job ended; `jobs_first` come before one that waits."""
    if known := WORDS[live.job.state].headline:
        return known
    for command, word in _STOPS.items():
        if command in commands:
            return f"{word}: {_at_hand(live)} is finished first"
    if live.job.state == "queued" and held:
        return "Waiting until the queue is resumed"
    if live.job.waits:
        return "Waiting for its model"
    if live.job.state == "queued":
        first = f" ({count_text(jobs_first, 'job')} first)" if jobs_first else ""
        return f"Waiting for its turn{first}"
    return work(live)


def work(live: LiveJob) -> str:
    """Return what the engine does now, and how much of it is done where that can be counted."""
    if live.reading:
        done, total = map(gb_text, live.reading)
        return f"Reading the model: {done} of {total} GB"
    if not live.in_section:
        return f"{_title(live.stage)}: {live.piece} of {live.pieces}" if live.pieces else _title(live.stage)
    section = f"ection {live.section} of {live.sections}"
    if live.section == live.sections_done:
        return f"S{section} is finished"
    if live.stage == "decode":
        return f"Decoding s{section}{f', part {live.piece} of {live.pieces}' if live.pieces else ''}"
    if live.stage == "write":
        return f"Writing s{section}"
    if _prepares_kernels(live):
        return "First step: one-time kernel setup"
    return f"S{section}, step {live.step} of {live.steps}"


def _prepares_kernels(live: LiveJob) -> bool:
    return live.pace is None and live.stage == "sample" and not (live.sections_made or live.step)


def timed(live: LiveJob) -> float | None:
    """Return an estimate in seconds of the stage whose time is told, 0 for unknown; None if none is told.

    It is told until there is something to watch, but for steps, each of which is a sign of life.
    """
    if live.sections_made or live.job.is_over or (live.stage == "sample" and not _prepares_kernels(live)):
        return None
    return live.expected if live.expected >= _LEAST_EXPECTED and live.stage != "sample" else 0.0


def first_video(live: LiveJob, elapsed: float) -> str:
    """Return when there will be something to watch; "" if that is unknown, or if the whole time is known."""
    seconds = live.seconds_to_video(elapsed)
    if seconds is None or live.pace or (live.is_guess and not live.timing.expected_tail):
        return ""
    when = f"in {about(seconds)}" if seconds > 0 else "later than expected"
    return f"{'first part' if live.sections > 1 else 'video'} {when}"


def line(live: LiveJob, elapsed: float) -> str:
    """Return one line on what happens now, how much of it is done, and the time left, for a terminal."""
    expected, spent = timed(live), round(live.stage_seconds(elapsed))
    parts = [work(live)]
    if expected is not None and not (live.reading or live.pieces):
        parts.append(f"{spent} s" if spent < 10 else duration(spent))
        parts[-1] += f" of {about(expected)}" if expected > spent else ""
    if expected and expected <= spent:
        parts.append("longer than expected")
    left = trusted(live, live.seconds_left(elapsed))
    parts.append(first_video(live, elapsed) or (f"{about(left)} left" if left else ""))
    return " · ".join(filter(None, parts))


def announcement(live: LiveJob, headline: str, left: float | None) -> dict[str, str]:
    """Return how a job is announced beside another one on the stage: its kind, what it does, and a button."""
    state, now = live.job.state, headline if left is None else f"{headline}, {about(left)} left"
    words = title_of(live.job)
    kinds: dict[JobState, str] = {"finished": "Also finished", "failed": "Another one failed"}
    return {
        "kind": kinds.get(state, "Newest" if WORDS[state].ending else "Next"),
        "prompt": words if len(words) <= _MOST_ANNOUNCED else f"{words[:_MOST_ANNOUNCED]}…",
        "now": {"queued": "It begins in a moment.", "running": now}.get(state, ""),
        "label": "Watch it" if state == "running" else "Show it",
    }


def took(live: LiveJob, elapsed: float) -> str:
    """Return how long a job that is not running has been made; empty if it has not begun."""
    if live.job.state == "running" or not elapsed:
        return ""
    return f"took {duration(elapsed)}" if live.job.is_over else f"{duration(elapsed)} so far"


def made_with(live: LiveJob) -> list[tuple[str, str]]:
    """Return the settings that users compare between videos, by their names."""
    request = live.job.request
    guidance: float = getattr(request, family_of(request.model).guided_by)
    found = [("Seed", str(request.seed)), ("Steps, guidance", f"{request.steps}, {guidance:g}")]
    size = f"{live.width} × {live.height}, {live.plan.fps} fps"
    found += [("Size", size)] if live.width else []
    return [*found, ("Made on", live.job.card)] if live.job.card else found


def doing(live: LiveJob) -> str:
    """Return a phrase for the current work on the section, for screen readers."""
    if live.stage == "write":
        return "being written"
    if live.in_tail:
        return f"decoding, part {live.piece} of {live.pieces}" if live.pieces else "decoding"
    return f"step {live.step} of {live.steps}" if live.step else "running"


def _at_hand(live: LiveJob) -> str:
    at_hand: dict[Stage | None, str] = {
        "decode": "the part being decoded", "write": "the section being written",
        "sample": "the step being computed",
    }  # fmt: skip
    return at_hand.get(live.stage, "the current work")


def next_section(live: LiveJob) -> Cell | None:
    """Return the first section, in the order of making, that is not begun; None if there is none."""
    begun = live.sections_made + (live.job.state == "running" and live.section > live.sections_made)
    return next((cell for cell in live.cells if cell.number == begun + 1), None)


def what_comes_next(cell: Cell, mode: Mode, sections: int) -> str:
    """Return the sentence that says where other words are used, if this is the next section to make."""
    more = "before" if mode == "inverted" else "after"
    rest = f" and for all {more} that" if cell.number < sections else ""
    return (
        f"New words are used from {cell.begin:.1f} to {cell.end:.1f} s{rest}. What is made keeps its words."
    )


def remark(
    live: LiveJob, commands: Collection[Command] = (), *,
    awake: bool = False, held: bool = False,
) -> str:  # fmt: skip
    """Return the short text beside the headline; `awake` and `held` are those of `Scene`."""
    if live.job.waits:
        return f"{live.job.message} {live.job.remedy}".strip()
    if live.job.state == "queued":
        return "You may close this tab." if held else "It starts by itself; you may close this tab."
    if live.job.state in ("waiting", "paused", "interrupted"):
        return f"{live.job.message} {live.job.remedy}"
    if "stop_after_section" in commands:
        return "It ends after the current section."
    if live.job.is_over:
        return _outcome(live)
    if not live.section:
        section = f"section {live.sections_made + 1} of {live.sections}"
        first = f"Model, prompt and picture come first, then {section}." if timed(live) is None else ""
        return f"{first} The computer stays awake meanwhile.".strip() if awake else first
    if timed(live) is not None:
        return ""  # its time is the remark
    if live.is_guess:
        return "This first video shows how fast the machine is."
    if live.job.request.mode == "inverted" and live.sections > 1:
        if not live.sections_done:
            return "It is made from end to start, which keeps the picture from drifting."
        if live.section == live.sections:
            return "The end exists; the beginning is being made now."
        return "The video grows towards its beginning."
    return "The video grows at its end." if live.sections > 1 else ""


def _outcome(live: LiveJob) -> str:
    if live.video is None:
        return "No section was finished, so there is no video."
    made = f"{live.video_frames / live.plan.fps:.2f} s, {count_text(live.video_frames, 'frame')}"
    return made if live.job.state == "finished" else f"The part made until then is kept: {made}."


def usual(live: LiveJob) -> tuple[str, float]:
    """Return a phrase for the engine's current work and its usual duration, and the duration in seconds."""
    if live.in_tail:
        if live.timing.has_tail:
            tail = live.timing.tail(live.section)
            return f"decoding a section usually takes {duration(tail)}", tail
        return "the first decode of a job may take minutes", 120.0
    step = live.timing.step
    if live.in_section and (step is None or _prepares_kernels(live)):
        return "kernels are being searched or compiled, which happens once", 120.0
    if live.in_section and step is not None:
        return f"a step usually takes {duration(step)}", step
    return f"{STAGES[live.stage or 'load'].running} may take minutes", max(120.0, live.expected)


def trusted(live: LiveJob, seconds: float | None) -> float | None:
    """Return the seconds left, or None for a guess so short that it would soon prove wrong."""
    return None if seconds is None or (live.is_guess and seconds < _LEAST_GUESS) else seconds


def stage_seconds(live: LiveJob) -> list[tuple[str, float]]:
    """Return the durations of the stages in order of first occurrence, without those that took no time."""
    return [(_title(stage), seconds) for stage, seconds in live.stages.items() if seconds >= 0.05]


def _title(stage: Stage | None) -> str:
    return STAGES[stage].title if stage else "Starting the engine"


def settings(request: GenerationRequest) -> list[tuple[str, str]]:
    """Return the job's settings by their labels, without those that were left to the machine."""
    try:
        info = find_model(request.model, allow_folder=True)
    except InputError:  # the folder is gone
        info = None
    values = asdict(request) | {
        "model": info.title if info else Path(request.model).name,
        "resolution": request.resolution or (info.side if info else None),
    }
    shown = {name: value for name, value in values.items() if name not in PICTURES and value is not None}
    # The VAE's settings are listed only if they differ from the defaults.
    shown = {
        name: value for name, value in shown.items()
        if not name.startswith("vae_") or value != SETTINGS[name].default
    }  # fmt: skip
    return [(SETTINGS[name].short_label, SETTINGS[name].shown(value)) for name, value in shown.items()]
