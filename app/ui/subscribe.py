"""Keeps one open page up to date."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import gradio as gr

from app.jobs.service import JobService
from app.ui import view
from app.ui.watch import watch


def subscribe(service: JobService) -> Iterator[tuple[Any, ...]]:
    """Keeps one page up to date; sends only what has changed.

    Yields: player, preview, status, start button, end button, remove button.
    """
    before: tuple[Any, ...] = (None,) * 6
    for scene in watch(service):
        now = (
            view.player(scene.live),
            view.preview(scene.live),
            view.status(scene.live, time.time()),
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
