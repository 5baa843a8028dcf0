"""The texts for a watched job: what happens now, what it waits for, and its settings."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from app.jobs.job import Command, JobState
from app.jobs.storage.commands import PAUSED
from app.jobs.view import WORDS, shown_settings, title_of
from app.ui.live.progress import Cell, LiveJob
from diffusers_helper.errors import InputError
from diffusers_helper.events import STAGES, Stage
from diffusers_helper.families.packing import Mode
from diffusers_helper.files import read_file
from diffusers_helper.models.registry import find_model
from diffusers_helper.request import PICTURES, SETTINGS, GenerationRequest
from diffusers_helper.units import about, count_text, duration, gb_text

_MIN_GUESS_SECONDS = 60.0
_MAX_TITLE = 120  # characters
_NEAR = 0.9  # the share of the cap from which a peak is near it
_MAX_RECORD_BYTES = 4_000_000
_MIN_EXPECTED_SECONDS = 7.5  # below this, an estimate says only "a few seconds"
_WORK: dict[Stage | None, str] = {
    "sample": "the step being computed", "decode": "the part being decoded",
    "write": "the section being written", "finish": "the frame being finished",
}  # fmt: skip
# The settings whose values are a user's own words
_WRITTEN = {name for name, setting in SETTINGS.items() if not setting.is_number and not setting.choices} - {
    "model"
}
_STOPS: dict[Command, str] = {"cancel": "Ending", "pause": "Pausing"}


def headline(live: LiveJob) -> str:
    if state_headline := WORDS[live.job.state].headline:
        return state_headline
    for command, word in _STOPS.items():
        if command in live.commands:
            return f"{word}: {_WORK.get(live.stage, 'the current work')} is finished first"
    if live.job.state == "queued" and live.queue_is_paused:
        return "Waiting until the queue is resumed"
    if live.job.waits:
        return "Waiting"
    if live.job.state == "queued":
        first = f" ({count_text(live.jobs_first, 'job')} first)" if live.jobs_first else ""
        return f"Waiting for its turn{first}"
    return work(live)


def work(live: LiveJob) -> str:
    if live.reading:
        done, total = map(gb_text, live.reading)
        return f"Reading the model: {done} of {total} GB"
    if not live.in_section:
        return f"{_title(live.stage)}: {live.piece} of {live.pieces}" if live.pieces else _title(live.stage)
    number, total = live.section, live.sections
    if number == live.sections_done:
        return f"Section {number} of {total} is finished"
    if live.stage == "decode":
        part = f", part {live.piece} of {live.pieces}" if live.pieces else ""
        return f"Decoding section {number} of {total}{part}"
    if live.stage == "write":
        return f"Writing section {number} of {total}"
    if _prepares_kernels(live):
        return "First step, with a one-time set-up"
    if live.stage == "finish":
        return f"Section {number} of {total}, frame {live.step} of {live.steps}"
    return f"Section {number} of {total}, step {live.step} of {live.steps}"


def _prepares_kernels(live: LiveJob) -> bool:
    return live.pace is None and live.stage == "sample" and not (live.sections_made or live.step)


def shown_estimate(live: LiveJob) -> float | None:
    """Estimate the seconds of a stage before there is something to watch, 0 for unknown; None for steps."""
    if (
        live.sections_made
        or live.job.is_over
        or (live.stage in ("sample", "finish") and not _prepares_kernels(live))
    ):
        return None
    return live.expected if live.expected >= _MIN_EXPECTED_SECONDS and live.stage != "sample" else 0.0


def first_video(live: LiveJob, elapsed: float) -> str:
    seconds = live.seconds_to_video(elapsed)
    if seconds is None or live.pace or (live.is_guess and not live.timing.expected_tail):
        return ""
    when = f"in {about(seconds)}" if seconds > 0 else "later than expected"
    return f"{'first part' if live.sections > 1 else 'video'} {when}"


def line(live: LiveJob, elapsed: float) -> str:
    expected = shown_estimate(live)
    seconds = round(live.stage_seconds(elapsed))
    phrases = [work(live)]
    if expected is not None and not (live.reading or live.pieces):
        phrases.append(f"{seconds} s" if seconds < 10 else duration(seconds))
        phrases[-1] += f" of {about(expected)}" if expected > seconds else ""
    if expected and expected <= seconds:
        phrases.append("longer than expected")
    seconds_left = trusted_seconds_left(live, live.seconds_left(elapsed))
    phrases.append(first_video(live, elapsed) or (f"{about(seconds_left)} left" if seconds_left else ""))
    return " · ".join(filter(None, phrases))


def announcement(live: LiveJob, headline: str, seconds_left: float | None) -> dict[str, str]:
    state = live.job.state
    now = headline if seconds_left is None else f"{headline}, {about(seconds_left)} left"
    title = title_of(live.job)
    kinds: dict[JobState, str] = {"finished": "Also finished", "failed": "Another one failed"}
    return {
        "kind": kinds.get(state, "Newest" if WORDS[state].ending else "Next"),
        "prompt": title if len(title) <= _MAX_TITLE else f"{title[:_MAX_TITLE]}…",
        "now": {"queued": "It begins in a moment.", "running": now}.get(state, ""),
        "label": "Watch it" if state == "running" else "Show it",
    }


def made_with(live: LiveJob) -> list[tuple[str, str]]:
    rows = [("Size", f"{live.width} × {live.height}, {live.plan.fps:.5g} fps")] if live.width else []
    return [*rows, ("Made on", live.job.card)] if live.job.card else rows


def section_activity(live: LiveJob) -> str:
    if live.stage == "write":
        return "being written"
    if live.in_tail:
        return f"decoding, part {live.piece} of {live.pieces}" if live.pieces else "decoding"
    return f"step {live.step} of {live.steps}" if live.step else "being made"


def what_comes_next(cell: Cell, mode: Mode, sections: int) -> str:
    scope = ""
    if cell.number < sections:
        scope = " and for all before that" if mode == "inverted" else " and for all after that"
    return (
        f"New words are used from {cell.start:.1f} to {cell.end:.1f} s{scope}. What is made keeps its words."
    )


def remark(live: LiveJob) -> str:
    if live.job.waits:
        return f"{live.job.message} {live.job.remedy}".strip()
    if live.job.state == "queued":
        return f"{'You' if live.queue_is_paused else 'It starts by itself; you'} may close this tab."
    if live.job.state in ("waiting", "paused", "interrupted"):
        reason = f"{live.job.message} {live.job.remedy}".strip()
        return "" if reason == PAUSED["message"] else reason
    if "stop_after_section" in live.commands:
        return "It ends after the current section."
    if live.job.is_over:
        return _outcome(live)
    if not live.section:
        section = f"section {live.sections_made + 1} of {live.sections}"
        sentences = []
        if shown_estimate(live) is None and not live.job.request.finish:
            sentences.append(f"Model, prompt and picture come first, then {section}.")
        if live.awake:
            sentences.append("The computer stays awake meanwhile.")
        return " ".join(sentences)
    if shown_estimate(live) is not None:
        return ""  # its time is the remark
    if finishing := live.job.request.finishing:
        return finishing.summary
    if live.is_guess:
        return "This first video shows how fast the machine is."
    if live.job.request.mode == "inverted" and live.sections > 1:
        return "The video grows towards its beginning."
    return "The video grows at its end." if live.sections > 1 else ""


def _outcome(live: LiveJob) -> str:
    if live.video is None:
        return "No section was finished, so there is no video."
    if live.job.request.one_frame:
        return "One picture"
    length = f"{live.video_frames / live.plan.fps:.2f} s, {count_text(live.video_frames, 'frame')}"
    return length if live.job.state == "finished" else f"The part made until then is kept: {length}."


def usual_duration(live: LiveJob) -> tuple[str, float]:
    """Describe the engine's current work with its usual duration, and give the duration in seconds."""
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


def trusted_seconds_left(live: LiveJob, seconds: float | None) -> float | None:
    """Drop a guess that is so short that it would soon prove wrong."""
    return None if seconds is None or (live.is_guess and seconds < _MIN_GUESS_SECONDS) else seconds


def stage_seconds(live: LiveJob) -> list[tuple[str, float]]:
    return [(_title(stage), seconds) for stage, seconds in live.stages.items() if seconds >= 0.05]


def _title(stage: Stage | None) -> str:
    return STAGES[stage].title if stage else "Starting the engine"


def settings(request: GenerationRequest) -> list[tuple[str, str, bool]]:
    """List the job's model, seed and what differs from the model's defaults, and which a user wrote."""
    usual = {name: setting.default for name, setting in SETTINGS.items() if name != "seed"}
    try:
        info = find_model(request.model, allow_folder=True)
        title = info.title
        usual |= {**info.default_settings, "resolution": info.side}
    except InputError:  # the folder is gone
        title = Path(request.model).name
    sizes = {"resolution": request.resolution or usual["resolution"]}
    values = shown_settings(request, asdict(request) | sizes | {"model": title})
    return [
        (setting.short_label, setting.display(value), name in _WRITTEN)
        for name, setting in SETTINGS.items()
        if name in values and name not in PICTURES and (value := values[name]) != usual.get(name)
    ]


def memory_of(file: Path) -> dict[str, Any] | None:
    """Describe a job's memory.json as plain data for the page's table; None if it cannot be read."""
    try:
        record = json.loads(read_file(file, _MAX_RECORD_BYTES))
        uses = [(stage, [use for use in record["stages"] if use["stage"] == stage]) for stage in STAGES]
        rows = [_memory_row(stage, stage_uses) for stage, stage_uses in uses if stage_uses]
        cap_bytes, peak_bytes, reserve = (
            record[f"{name}_bytes"] for name in ("cap", "peak_device", "reserve")
        )
        cap, peak = gb_text(cap_bytes), gb_text(peak_bytes)
        note = (
            f"Only tensors are counted. {gb_text(reserve)} GB of the cap are reserved for all other memory."
        )
        facts = [("Peak on the device", f"{peak} of {cap} GB")]
        if record["retries"]:
            facts.append(("Smaller plans tried", str(record["retries"])))
        is_near = peak_bytes > _NEAR * cap_bytes
    except (OSError, ValueError, KeyError, TypeError):  # there is none, or it is damaged
        return None
    say = f"peak {peak} of {cap} GB"
    return {"facts": facts, "say": say, "isNear": is_near, "rows": rows, "note": note if reserve else ""}


def _memory_row(stage: str, uses: list[dict[str, Any]]) -> list[str]:
    streamed = sum(use["streamed_bytes"] for use in uses)
    most = (gb_text(max(use[f"{name}_bytes"] for use in uses)) for name in ("predicted", "measured"))
    return [STAGES[stage].network, *most, gb_text(streamed) if streamed else "–"]
