"""The History tab, whose script gets the cards from the endpoint `/history_search`."""

from __future__ import annotations

from pathlib import Path

import gradio as gr

from app.ui.scripts import on_load

_HERE = Path(__file__).parent


def build_history() -> gr.HTML:
    """Add the panel to the page that is being built, and return it."""
    return gr.HTML(
        html_template=(_HERE / "history.html").read_text(encoding="utf-8"),
        js_on_load=on_load("history/history.js"),
        apply_default_css=False,
        elem_id="panel-history",
    )
