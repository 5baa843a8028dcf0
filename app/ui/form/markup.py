"""The markup for notices, hints and examples. All texts that come from a user or a file are escaped."""

import base64
import re
from collections.abc import Iterable, Mapping, Sequence
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


def options(choices: Iterable[tuple[str, str]], selected: str = "") -> str:
    return "".join(
        f'<option value="{escape(value)}"{" selected" if value == selected else ""}>{escape(text)}</option>'
        for value, text in choices
    )


def hint(text: str) -> str:
    return f'<p class="lt-hint">{escape(text)}</p>' if text else ""


def acting_chips(texts: Mapping[str, str], before: str, video: str) -> str:
    """Mark up buttons that empty hidden fields, give `extras` the value `before`, and finish a `video`."""
    chips = "".join(
        f'<button type="button" data-setting="{name}"><span class="lt-sr">Leave out: </span>'
        f"<span>{escape(text)}</span> ×</button>"
        for name, text in texts.items()
    )
    if before:
        chips += f'<button type="button" data-before="{escape(before)}">Make what comes before it</button>'
    if video:
        chips += f'<button type="button" data-finish="{escape(video)}">Finish it</button>'
    return chips


def refusal_line(error: LongtakeError, prefix: str = "", *, is_alert: bool = False) -> str:
    role = ' role="alert"' if is_alert else ""
    return f'<p class="lt-refusal"{role}>{prefix}{escape(" ".join(page_error(error)))}</p>'


def download_question(error: NotHere, *, takes_days: bool) -> str:
    size = gb_text(error.absence.total_bytes)
    warning = f" {_TAKES_DAYS}" if takes_days else ""
    return (
        f'<div class="lt-box" role="alertdialog" aria-label="Download the model?" data-refused>'
        f"<b>{escape(error.absence.title)} is not on this machine</b>: {error.absence.sizes}. The video "
        f"begins when the download is complete; others are made meanwhile.{warning}"
        f'<p class="lt-answers"><button type="button" data-answer="yes">Download {size} GB and start</button>'
        '<button type="button" data-answer="no">Not now</button></p></div>'
    )


def model_note(info: ModelInfo, absence: Absence | None, remark: str, takes_days: bool) -> str:
    sentences = [escape(sentence) for sentence in (info.licence, remark) if sentence]
    if absence is not None:
        advice = (
            f'Download it under <a href="#models/{escape(info.name)}">Models</a>, or start the video: '
            "you are asked first."
        )
        if not absence.has_room:
            advice = "That is not enough: free some space, or set HF_HOME to a folder on a larger disk."
        sentences.append(f"<b>{escape(info.title)} is not on this machine</b>: {absence.sizes}. {advice}")
    if takes_days:
        sentences.append(_TAKES_DAYS)
    return f'<p class="lt-hint">{" ".join(sentences)}</p>' if sentences else ""


def passing_note(text: str, *, saved: bool = False) -> str:
    """Mark up a notice that disappears by itself; a `saved` one ends the editing of a job."""
    data = 'data-seconds="8" data-saved' if saved else 'data-seconds="8"'
    return f'<div class="lt-box" role="status" {data}>{escape(text)}</div>'


def restored_note(name: str, notices: Sequence[str], video: str = "") -> str:
    """Mark up a notice about settings from `name`, which stays for `notices`, and can continue a `video`."""
    if not notices and not video:
        return passing_note(f"Settings of {name} loaded.") if name else ""
    items = "".join(f"<li>{escape(page_words(notice))}</li>" for notice in notices)
    listed = f'<ul class="lt-notices">{items}</ul>' if items else ""
    title = (
        f"<b>Settings of {escape(name)} loaded</b>{', except for this:' if notices else '.'}" if name else ""
    )
    data = f'data-continue="{escape(video)}" data-name="{escape(name)}"'
    offer = f'<button type="button" {data}>Continue the video instead</button>' if video else ""
    return (
        f'<div class="lt-box" role="status">{title}{listed}'
        f'<p class="lt-answers">{offer}<button type="button" data-answer="no">Close</button></p></div>'
    )


def model_markup(info: ModelInfo) -> dict[str, str]:
    quick = "".join(f'<button type="button">{_example(prompt)}</button>' for prompt in info.examples)
    return {"examples": quick, "demo-box": demo_box(info), "try-it": example_cards(info)}


def demo_box(info: ModelInfo) -> str:
    """Build a box about a model with a vocabulary, which a user may close; "" for other models."""
    if not info.vocabulary:
        return ""
    groups = "".join(
        f'<dt>{escape(group)}</dt><dd translate="no">{escape(", ".join(entries))}</dd>'
        for group, entries in info.vocabulary.items()
    )
    return (
        '<section class="lt-demo" aria-label="Demo model"><details>'
        "<summary><b>This is the demo model.</b> It is small, runs on any machine, and knows "
        f"a few dozen words: show them.</summary><dl>{groups}</dl></details>"
        '<button type="button" class="lt-quiet-button lt-demo-close">Close</button></section>'
    )


def example_cards(info: ModelInfo) -> str:
    cards = "".join(_card(index, prompt) for index, prompt in enumerate(info.examples[:3]))
    if not cards:
        return ""
    return (
        '<section class="lt-offer" aria-label="Examples"><h2>Try it: press an example</h2>'
        f'<div class="lt-cards">{cards}</div>'
        '<p class="lt-hint">Or choose a picture of your own, write what should happen, and press Start '
        "Generation. The video grows here, section by section.</p></section>"
    )


def _example(prompt: str) -> str:
    """Build a prompt as the model reads it, with what it says in the language of another reader."""
    text = escape(prompt)
    return f'<bdi translate="no">{text}</bdi> <small class="lt-told">Example: {text}</small>'


def example_file(prompt: str) -> Path | None:
    """Find the file of a prompt's picture, such as `assets/examples/the-camera-zooms-in.png`."""
    name = re.sub("[^a-z0-9]+", "-", prompt.lower()).strip("-")
    return next(
        (path for path in (_EXAMPLES / f"{name}{kind}" for kind in (".png", ".jpg")) if path.is_file()), None
    )


@cache
def _example_media(prompt: str) -> tuple[str, str]:
    """Build the data URLs of a prompt's picture, "" without one, and of its video, or else the picture."""
    picture = example_file(prompt)
    if picture is None:
        return "", ""
    still = data_url(picture.read_bytes(), "image/png" if picture.suffix == ".png" else "image/jpeg")
    moving = picture.with_suffix(".webp")
    return still, data_url(moving.read_bytes(), "image/webp") if moving.is_file() else still


def data_url(content: bytes, media_type: str) -> str:
    return f"data:{media_type};base64,{base64.b64encode(content).decode()}"


def _card(index: int, prompt: str) -> str:
    still, moving = _example_media(prompt)
    # The second one moves. It is shown, and costs something, only while the card is pointed at or focused.
    image = "".join(f'<img src="{url}" alt="" width="256" height="256">' for url in (still, moving))
    return (
        f'<button type="button" data-example="{index}">{image if still else ""}'
        f'<span><span class="lt-sr">Make this video now: </span>{_example(prompt)}</span></button>'
    )
