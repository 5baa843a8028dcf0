"""Keeps one open page up to date."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import gradio as gr

from app.jobs.service import JobService
from app.report_text import report_text
from app.ui.form import markup as view
from app.ui.form.controls import RequestForm
from app.ui.live import scene
from app.ui.live.watch import watch
from diffusers_helper.errors import InputError
from diffusers_helper.models.registry import ModelInfo
from diffusers_helper.models.registry import find_model as find_registered


def connect_updates(page: gr.Blocks, service: JobService, result: Result, request: RequestForm) -> None:
    """Every open page gets a subscription of its own, and another one when it asks for it."""

    def updates() -> Iterator[tuple[Any, ...]]:
        yield from subscribe(service)

    outputs = [result.view, request.start, request.end, request.remove]
    quiet: dict[str, Any] = {
        "show_progress": "hidden",
        "concurrency_limit": None,
        "api_visibility": "private",
    }
    first = page.load(updates, None, outputs, **quiet)
    result.view.submit(updates, None, outputs, cancels=[first], trigger_mode="multiple", **quiet)


def subscribe(service: JobService) -> Iterator[tuple[Any, ...]]:
    """Keeps one page up to date; sends only what has changed, and that it still sends.

    Yields: live view, start button, end button, remove button.
    """

    @cache
    def find_model(name: str) -> ModelInfo | None:
        try:
            return find_registered(name, allow_folder=True)
        except InputError:  # a folder that is gone
            return None

    @cache
    def report(job_id: str) -> str:
        return report_text(service, job_id)

    before: tuple[Any, ...] = (None,) * 4
    for seen in watch(service):
        now = (
            scene.show(seen, time.time(), find_model=find_model, report=report),
            view.start_label(seen.open_jobs),
            seen.open_jobs > 0,
            len(seen.waiting),
        )
        made = (
            now[0],
            gr.Button(now[1]),
            gr.Button(interactive=now[2]),
            gr.Button(f"Remove Last from Queue ({now[3]} waiting)", visible=now[3] > 0),
        )
        pairs = zip(now, before, made, strict=True)
        yield tuple(gr.skip() if new == old else update for new, old, update in pairs)
        before = now


_HERE = Path(__file__).parent
_SCRIPTS = ("player.js", "strip.js", "timeline.js", "live.js")


class Result:
    """Video, preview, sections, progress and figures, as one component.

    Its value is what `scene.show` makes. The markup never changes: scripts put the values into it, so that
    focus, scrolling and layout stay where they are.
    """

    def __init__(self) -> None:
        self.view = gr.HTML(
            {"job": "", "state": "idle", "beat": 0},
            html_template=(_HERE / "live.html").read_text(encoding="utf-8"),
            js_on_load="\n".join((_HERE / name).read_text(encoding="utf-8") for name in _SCRIPTS),
            apply_default_css=False,
            elem_classes="lt-live",
        )
