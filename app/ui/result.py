"""Right: what a person gets."""

from __future__ import annotations

from pathlib import Path

import gradio as gr

from app.ui import scene

_HERE = Path(__file__).parent
_STAGE = """<div class="lt-stage" data-state="empty"><p class="lt-empty">No video yet</p>
<video loop muted playsinline preload="auto" aria-label="The video so far"></video></div>"""


class Result:
    """Player, preview and status."""

    def __init__(self) -> None:
        with gr.Column(elem_classes="lt-screen"):
            self.player = gr.HTML(
                scene.player(None),
                html_template=_STAGE,
                js_on_load=(_HERE / "player.js").read_text(encoding="utf-8"),
                apply_default_css=False,
            )
            self.preview = gr.HTML(apply_default_css=False, js_on_load=None)
        self.status = gr.HTML(scene.status(None, 0.0), apply_default_css=False, js_on_load=None)
        self.outputs = [self.player, self.preview, self.status]
