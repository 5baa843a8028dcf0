"""The markup for notices, hints and examples. All texts that come from a user or a file are escaped."""

from __future__ import annotations

import base64
import re
import time
from collections.abc import Iterable, Sequence
from functools import cache
from html import escape
from pathlib import Path

from app.ui.errors import page_error, page_words
from diffusers_helper.errors import LongtakeError
from diffusers_helper.models.downloads import Absence, NotHere
from diffusers_helper.models.registry import ModelInfo
from diffusers_helper.units import gb_text

_EXAMPLES = Path(__file__).resolve().parents[3] / "assets" / "examples"
_TAKES_DAYS = "This machine has no GPU, so a video of this model would take days."
_PASSING_SECONDS = 8
_NEWS_SECONDS = 0.3  # an update may be this old when it is sent


def options(choices: Iterable[tuple[str, str]], chosen: str = "") -> str:
    """Return the options of a list of choices, which are pairs of a value and a text."""
    return "".join(
        f'<option value="{escape(value)}"{" selected" if value == chosen else ""}>{escape(text)}</option>'
        for value, text in choices
    )


def hint(text: str) -> str:
    """Return a line of explanation as markup, or "" without a text."""
    return f'<p class="lt-hint">{escape(text)}</p>' if text else ""


def refusal_line(error: LongtakeError, before: str = "", *, is_alert: bool = False) -> str:
    """Return an error as a line of markup, perhaps after some words."""
    role = ' role="alert"' if is_alert else ""
    return f'<p class="lt-refusal"{role}>{before}{escape(" ".join(page_error(error)))}</p>'


def error_box(error: LongtakeError) -> str:
    """Return an error as markup, which disappears when the setting at fault, or else any setting, changes."""
    message, remedy = map(escape, page_error(error))
    about = f' data-setting="{escape(error.setting)}"' if error.setting else ""
    return f'<div class="lt-box lt-error" role="alert" data-refused{about}><b>{message}</b> {remedy}</div>'


def download_question(error: NotHere, *, takes_days: bool) -> str:
    """Return the question whether a model may be downloaded, as markup with two buttons for the script."""
    size = gb_text(error.absence.total_bytes)
    warning = f" {_TAKES_DAYS}" if takes_days else ""
    return (
        f'<div class="lt-box" role="alertdialog" aria-label="Download the model?" data-setting="model">'
        f"<b>{escape(error.absence.title)} is not on this machine</b>: {error.absence.sizes}. The video "
        f"begins when the download is complete; others are made meanwhile.{warning}"
        f'<p class="lt-answers"><button type="button" data-answer="yes">Download {size} GB and start</button>'
        '<button type="button" data-answer="no">Not now</button></p></div>'
    )


def model_note(info: ModelInfo, absence: Absence | None, *, takes_days: bool) -> str:
    """Return a hint to read before a model is used here, as markup, or "" if there is nothing to say."""
    reported = [escape(info.licence)] if info.licence else []
    if absence is not None:
        asks = (
            f'Download it under <a href="#models/{escape(info.name)}">Models</a>, or start the video: '
            "you are asked first."
        )
        if not absence.has_room:
            asks = "That is not enough: free some space, or set HF_HOME to a folder on a larger disk."
        reported.append(f"<b>{escape(info.title)} is not on this machine</b>: {absence.sizes}. {asks}")
    if takes_days:
        reported.append(_TAKES_DAYS)
    return f'<p class="lt-hint">{" ".join(reported)}</p>' if reported else ""


def passing_note(text: str, *, saved: bool = False) -> str:
    """Return a notice as markup, which disappears by itself; a `saved` one ends the editing of a job."""
    mark = " data-saved" if saved else ""
    return f'<div class="lt-box" role="status" data-seconds="{_PASSING_SECONDS}"{mark}>{escape(text)}</div>'


def restored_note(name: str, notices: Sequence[str]) -> str:
    """Return a notice about settings from `name` as markup, which stays if some could not be restored."""
    if not notices:
        return passing_note(f"These are the settings of {name}.") if name else ""
    reported = "".join(f"<li>{escape(page_words(one))}</li>" for one in notices)
    found = f"<b>These are the settings of {escape(name)}</b>, except for this:" if name else ""
    return (
        f'<div class="lt-box" role="status">{found}'
        f'<ul class="lt-notices">{reported}</ul>'
        '<p class="lt-answers"><button type="button" data-answer="no">Close</button></p></div>'
    )


def job_note(text: str, job_id: str, before: int = 0) -> str:
    """Return a notice as markup, which disappears once its job is over or fewer than `before` are ahead."""
    cause = (
        f'data-job="{escape(job_id)}" data-before="{before}" data-since="{time.time() + _NEWS_SECONDS:.1f}"'
    )
    return f'<div class="lt-box" role="status" {cause}>{escape(text)}</div>'


def parts_of(info: ModelInfo) -> dict[str, str]:
    """Return the parts of the page that depend on the model alone, by their ids."""
    quick = "".join(f'<button type="button">{escape(prompt)}</button>' for prompt in info.examples)
    return {"examples": quick, "demo-box": demo_box(info), "try-it": offer(info)}


def demo_box(info: ModelInfo) -> str:
    """Return a box about a model with a vocabulary, which a user may close, or "" for other models."""
    if not info.vocabulary:
        return ""
    groups = "".join(
        f"<dt>{escape(group)}</dt><dd>{escape(', '.join(words))}</dd>"
        for group, words in info.vocabulary.items()
    )
    return (
        '<section class="lt-demo" aria-label="Demo model"><details>'
        "<summary><b>This is the demo model.</b> It is small, runs on any machine, and knows "
        f"a few dozen words: show them.</summary><dl>{groups}</dl></details>"
        '<button type="button" class="lt-quiet-button lt-demo-close">Close</button></section>'
    )


def offer(info: ModelInfo) -> str:
    """Return a model's examples as large cards for the stage, or "" if there are none."""
    cards = "".join(_card(index, prompt) for index, prompt in enumerate(info.examples[:3]))
    if not cards:
        return ""
    return (
        '<section class="lt-offer" aria-label="Examples"><h2>Click an example to make its video</h2>'
        f'<div class="lt-cards">{cards}</div>'
        '<p class="lt-hint">Or choose a picture of your own, write what should happen, and press Start '
        "Generation. The video grows here, section by section.</p></section>"
    )


def example_file(prompt: str) -> Path | None:
    """Return the file of a prompt's picture, such as `assets/examples/the-camera-zooms-in.png`."""
    path = _EXAMPLES / f"{re.sub('[^a-z0-9]+', '-', prompt.lower()).strip('-')}.png"
    return path if path.is_file() else None


@cache
def _example_media(prompt: str) -> tuple[str, str]:
    """Return the data URLs of a prompt's picture, or "", and of its video, or else the picture again."""
    picture = example_file(prompt)
    if picture is None:
        return "", ""
    still, card = data_url(picture.read_bytes(), "image/png"), picture.with_suffix(".webp")
    return still, data_url(card.read_bytes(), "image/webp") if card.is_file() else still


def data_url(content: bytes, kind: str) -> str:
    """Return an address that holds the content itself, of a kind such as `image/webp`."""
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def _card(index: int, prompt: str) -> str:
    still, moving = _example_media(prompt)
    # The second one moves. It is shown, and costs something, only while the card is pointed at or focused.
    image = "".join(f'<img src="{one}" alt="" width="256" height="256">' for one in (still, moving))
    return (
        f'<button type="button" data-example="{index}" aria-label="Make this video now: {escape(prompt)}">'
        f"{image if still else ''}<span>{escape(prompt)}</span></button>"
    )
