"""The Models tab, whose cards the script takes from the endpoint `/models_list`."""

from __future__ import annotations

from pathlib import Path

import gradio as gr

from app.ui.scripts import on_load

_HERE = Path(__file__).parent


def build_models() -> gr.HTML:
    """Add the panel to the page that is being built, and return it."""
    return gr.HTML(
        html_template=(_HERE / "models.html").read_text(encoding="utf-8"),
        js_on_load=on_load("models/models.js"),
        apply_default_css=False,
        elem_id="panel-models",
    )
