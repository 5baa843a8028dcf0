"""Keeps one open page up to date."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import gradio as gr

from app.jobs.service import JobService
from app.ui import scene as shown
from app.ui import view
from app.ui.request_form import RequestForm
from app.ui.result import Result
from app.ui.watch import watch


def connect_updates(page: gr.Blocks, service: JobService, result: Result, request: RequestForm) -> None:
    """Every open page gets a subscription of its own."""

    def updates() -> Iterator[tuple[Any, ...]]:
        yield from subscribe(service)

    page.load(
        updates,
        None,
        [*result.outputs, request.start, request.end, request.remove],
        show_progress="hidden",
        concurrency_limit=None,
        api_visibility="private",
    )


def subscribe(service: JobService) -> Iterator[tuple[Any, ...]]:
    """Keeps one page up to date; sends only what has changed.

    Yields: player, preview, status, start button, end button, remove button.
    """
    before: tuple[Any, ...] = (None,) * 6
    for scene in watch(service):
        now = (
            shown.player(scene.live),
            shown.preview(scene.live),
            shown.status(scene.live, time.time()),
            view.start_label(scene.open_jobs),
            scene.open_jobs > 0,
            len(scene.waiting),
        )
        made = (
            now[0],
            now[1],
            now[2],
            gr.Button(now[3]),
            gr.Button(interactive=now[4]),
            gr.Button(f"Remove Last from Queue ({now[5]} waiting)", visible=now[5] > 0),
        )
        pairs = zip(now, before, made, strict=True)
        yield tuple(gr.skip() if new == old else update for new, old, update in pairs)
        before = now
