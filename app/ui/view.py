"""From texts and requests to markup. Whatever a person or a file wrote is escaped here."""

from __future__ import annotations

from html import escape

from diffusers_helper.errors import LongtakeError
from diffusers_helper.packing import Mode, plan_sections
from diffusers_helper.registry import ModelInfo

_ORDINALS = ["first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth"]


def ordinal(number: int) -> str:
    return _ORDINALS[number - 1] if number <= len(_ORDINALS) else f"number {number}"


def length_text(seconds: float, mode: Mode) -> str:
    """What length will really come out, as whole sections are made."""
    try:
        plan = plan_sections(seconds, mode=mode)
    except (TypeError, ValueError):
        return ""
    sections = f"{len(plan)} section{'s' if len(plan) > 1 else ''}"
    return f"Comes out as <b>{plan.seconds:.2f} s</b>: {plan.total_frames} frames in {sections}."


def error_box(error: LongtakeError) -> str:
    message, remedy = escape(error.message), escape(error.remedy)
    return f'<div class="lt-box lt-error" role="alert"><b>{message}</b> {remedy}</div>'


def note_box(text: str) -> str:
    return f'<div class="lt-box" role="status">{escape(text)}</div>'


def banner(info: ModelInfo) -> str:
    """For a model with a vocabulary: what it is and which words it knows. Empty for any other."""
    if not info.vocabulary:
        return ""
    groups = "".join(
        f"<dt>{escape(group)}</dt><dd>{escape(', '.join(words))}</dd>"
        for group, words in info.vocabulary.items()
    )
    return (
        '<details class="lt-box lt-demo"><summary><b>This is the demo model.</b> It is small, runs on any '
        f"machine, and knows a few dozen words. <u>Which ones?</u></summary><dl>{groups}</dl></details>"
    )


def unknown_words(info: ModelInfo, prompt: str) -> str:
    """A line that names the prompt's words that the model ignores; empty if there are none."""
    words = info.unknown_words(prompt if isinstance(prompt, str) else "")
    if not words:
        return ""
    shown = ", ".join(f"<mark>{escape(word[:40])}</mark>" for word in words[:12])
    more = f" and {len(words) - 12} more" if len(words) > 12 else ""
    return f'<p class="lt-hint" role="status">Not known to the demo model, so ignored: {shown}{more}.</p>'


def start_label(jobs_before: int) -> str:
    """What will happen if Start is pressed now."""
    return "Start Generation" + (f" (queued {ordinal(jobs_before + 1)})" if jobs_before else "")
