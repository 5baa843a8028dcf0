"""Right: what a person gets."""

from __future__ import annotations

from pathlib import Path

import gradio as gr

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
