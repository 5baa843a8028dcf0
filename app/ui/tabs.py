"""The panels of the tabs beside Create, each of which a script fills from its endpoints."""

from __future__ import annotations

from pathlib import Path

import gradio as gr

from app.jobs.view import GROUPS
from app.ui.scripts import on_load

_HERE = Path(__file__).parent


def build_panel(tab: str) -> gr.HTML:
    """Add the panel of a tab to the page that is being built, and return it.

    Args:
        tab: The name of the tab and of the folder with its HTML and its script.
    """
    groups = "".join(f'<option value="{" ".join(states)}">{name}</option>' for name, states in GROUPS.items())
    return gr.HTML(
        html_template=(_HERE / tab / f"{tab}.html").read_text(encoding="utf-8").replace("@states@", groups),
        js_on_load=on_load(f"{tab}/{tab}.js"),
        apply_default_css=False,
        elem_id=f"panel-{tab}",
    )
