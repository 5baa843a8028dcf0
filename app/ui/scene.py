"""From a watched job to what the page shows of it."""

from __future__ import annotations

import base64
import mimetypes
from collections.abc import Iterable
from html import escape
from pathlib import Path
from urllib.parse import quote

from app.ui.live import LiveJob
from app.ui.view import error_box
from diffusers_helper.errors import LongtakeError
from diffusers_helper.job_folder import JobFolder
from diffusers_helper.packing import FPS

_MAX_PREVIEW_BYTES = 500_000


def file_url(path: str | Path) -> str:
    """Address of a file in the outputs folder, relative to the page."""
    return f"gradio_api/file={quote(str(path))}"


def clock(seconds: float) -> str:
    """`0:07`, `12:30`, `1:02:03`."""
    minutes, rest = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def player(live: LiveJob | None) -> dict[str, object]:
    """The value of the page's player: the newest version, and where in it the old beginning lies."""
    if live is None:
        return {"job": "", "url": "", "poster": "", "front": 0}
    picture = JobFolder(live.job.folder).input
    return {
        "job": live.job.id,
        "url": "" if live.video is None else file_url(live.video),
        "poster": file_url(picture),
        "front": round(live.seconds_in_front, 4),
    }


def preview(live: LiveJob | None) -> str:
    """The section in the making, as it looks so far."""
    data = None if live is None or live.preview is None else _inline(Path(live.preview))
    if live is None or data is None:
        return ""
    return (
        f'<figure class="lt-latent" data-section="{live.section}" data-step="{live.step}">'
        f'<img src="{data}" alt="Rough preview of the section being made">'
        f"<figcaption>Being made: section {live.section}</figcaption></figure>"
    )


def _inline(path: Path) -> str | None:
    try:
        data = path.read_bytes()
    except OSError:  # replaced or removed by now; the next step brings another
        return None
    kind = mimetypes.guess_type(path.name)[0]
    if not kind or not kind.startswith("image/") or len(data) > _MAX_PREVIEW_BYTES:
        return None
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def status(live: LiveJob | None, now: float) -> str:
    """What happens, how far it is, and how long it still takes.

    Args:
        now: seconds since the epoch.
    """
    if live is None:
        return (
            '<div class="lt-status" data-state="idle"><p class="lt-hint">Choose a picture, write what should '
            "happen, press Start Generation. The video grows here, section by section.</p></div>"
        )
    elapsed = max(0.0, (live.job.ended or now) - live.job.started) if live.job.started else 0.0
    facts = {
        "state": live.state, "job": live.job.id, "section": live.section, "sections": live.sections,
        "step": live.step, "frames": live.video_frames, "percent": f"{live.percent:.0f}",
    }  # fmt: skip
    attributes = "".join(f' data-{name}="{escape(str(value))}"' for name, value in facts.items())
    return f'<div class="lt-status"{attributes}>{"".join(_status_parts(live, elapsed))}</div>'


def _status_parts(live: LiveJob, elapsed: float) -> Iterable[str]:
    running = live.state == "running"
    yield (
        f'<div class="lt-line"><b class="lt-headline" aria-live="polite">{escape(live.headline)}</b>'
        f'<span class="lt-eta">{_time_text(live, elapsed)}</span></div>'
    )
    if running:
        yield (
            f'<div class="lt-line"><progress max="100" value="{live.percent:.1f}" '
            f'aria-label="Overall progress"></progress>'
            f'<span class="lt-percent">{live.percent:.0f} %</span></div>'
        )
    if running and live.job.request.mode == "inverted" and live.sections > 1:
        yield '<p class="lt-hint">The end is made first, the beginning last.</p>'
    if live.state == "failed":
        yield error_box(LongtakeError(live.job.message, live.job.remedy))
    yield from (f'<div class="lt-box">{escape(message)}</div>' for message in live.warnings)
    yield _result_line(live)
    yield f'<p class="lt-hint lt-prompt">{escape(_shortened(live.job.request.prompt))}</p>'


def _time_text(live: LiveJob, elapsed: float) -> str:
    if live.state == "queued":
        return ""
    if live.state != "running":
        return f"took {clock(elapsed)}"
    left = live.seconds_left(elapsed)
    so_far = f"{clock(elapsed)} so far"
    return so_far if left is None else f"about {clock(left)} left · {so_far}"


def _result_line(live: LiveJob) -> str:
    if live.video is None:
        nothing = live.job.is_over
        return '<p class="lt-hint">No section was finished, so there is no video.</p>' if nothing else ""
    length = f"{live.video_frames / FPS:.2f} s, {live.video_frames} frames"
    whole = live.state == "finished"
    label = f"Download ({length})" if whole else f"Download what there is ({length})"
    url = escape(file_url(live.video))
    return (
        f'<p class="lt-line"><a class="lt-download" href="{url}" download>{label}</a>'
        f'<span class="lt-hint">Job {escape(live.job.id)}</span></p>'
    )


def _shortened(text: str, limit: int = 200) -> str:
    text = " ".join(text.split())
    return text if len(text) <= limit else f"{text[:limit]}…"
