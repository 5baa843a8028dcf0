"""The History tab."""

from __future__ import annotations

import gradio as gr


def build_history() -> gr.HTML:
    """Add the panel to the page that is being built, and return it."""
    return gr.HTML("", apply_default_css=False, elem_id="panel-history", js_on_load=None)
