"""The connection that keeps an open page up to date."""

from __future__ import annotations

import math
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import gradio as gr

from app.jobs.service import JobService
from app.ui.form import markup as view
from app.ui.form.controls import RequestForm
from app.ui.live.broadcast import Broadcast
from app.ui.scripts import on_load
from app.ui.waiting import Limiter, Slot, is_listening

# A further page takes the place of the one opened first, which subscribes again after a while.
MOST_PAGES = 100
_MESSAGES_BEHIND = 5
# A page advances these by itself. Each message costs it milliseconds, so these alone are only a sign of life.
_MOVING = ("beat", "elapsed", "quiet", "left")
_BEAT_SECONDS = 2.5


def connect_updates(page: gr.Blocks, service: JobService, result: LiveResult, request: RequestForm) -> None:
    """Give every open page its own subscription, and another one when it asks for it."""
    broadcast, room = Broadcast(service), Limiter(MOST_PAGES, newcomer_goes=False)

    async def updates(asked: gr.Request) -> AsyncGenerator[tuple[Any, ...], None]:
        with room.place(lambda: is_listening(page, asked, behind=_MESSAGES_BEHIND)) as place:
            async with aclosing(subscribe(broadcast, place)) as changes:
                async for change in changes:
                    yield change

    # Gradio recognises the request by the argument's type, but in this module annotations are text.
    updates.__annotations__["asked"] = gr.Request
    outputs = [result.view, request.start, request.end]
    quiet: dict[str, Any] = {
        "show_progress": "hidden",
        "concurrency_limit": None,
        "api_visibility": "private",
    }
    first = page.load(updates, None, outputs, **quiet)
    result.view.submit(updates, None, outputs, cancels=[first], trigger_mode="multiple", **quiet)


async def subscribe(broadcast: Broadcast, place: Slot) -> AsyncGenerator[tuple[Any, ...], None]:
    """Keep one page up to date for as long as it listens, by sending only what has changed.

    Yields:
        The live view, and the buttons to start and to end.
    """
    before: tuple[Any, ...] = (None,) * 3
    sent = -math.inf
    async with aclosing(broadcast.updates()) as updates:
        async for update in updates:
            if place.is_lost.is_set() or place.is_deserted():
                return
            if update is None:
                continue
            news = {name: value for name, value in update.shown.items() if name not in _MOVING}
            now = news, view.start_label(update.open_jobs), update.open_jobs > 0
            is_new = now != before
            if not is_new and time.monotonic() - sent < _BEAT_SECONDS:
                continue
            moved = {name: value for name, value in update.shown.items() if name in _MOVING}
            buttons = zip(
                now[1:], before[1:], (gr.Button(now[1]), gr.Button(interactive=now[2])), strict=True
            )
            yield (
                update.shown if is_new else moved,
                *(gr.skip() if new == old else button for new, old, button in buttons),
            )
            before, sent = now, time.monotonic()


_HERE = Path(__file__).parent


class LiveResult:
    """The component that shows video, preview, sections, progress and figures.

    Its value is what `scene.show` returns. The markup never changes: scripts put the values into it, so the
    focus, the scroll position and the layout stay as they are.
    """

    def __init__(self) -> None:
        self.view = gr.HTML(
            {"job": "", "state": "idle", "beat": 0},
            html_template=(_HERE / "live.html").read_text(encoding="utf-8"),
            js_on_load=on_load("live/live.js"),
            apply_default_css=False,
            elem_classes="lt-live",
        )
