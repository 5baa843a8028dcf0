"""The Queue tab, whose script gets the rows from the endpoint `/jobs_queue`."""

from __future__ import annotations

from pathlib import Path

import gradio as gr

from app.ui.scripts import on_load

_HERE = Path(__file__).parent


def build_queue() -> gr.HTML:
    """Add the panel to the page that is being built, and return it."""
    return gr.HTML(
        html_template=(_HERE / "queue.html").read_text(encoding="utf-8"),
        js_on_load=on_load("queue/queue.js"),
        apply_default_css=False,
        elem_id="panel-queue",
    )
