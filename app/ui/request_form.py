"""Left: the controls for what a person asks for, and what each of them calls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gradio as gr

from app.ui import view
from app.ui.actions import Actions, mode_choices
from app.ui.catalogue import Catalogue
from app.ui.examples import samples_of
from diffusers_helper.request import MAX_PROMPT_CHARACTERS, MAX_RESOLUTION, MIN_RESOLUTION, RANGES

_HERE = Path(__file__).parent
_DICE = "() => Math.floor(Math.random() * 2 ** 31)"
# Of a page's own events none is an endpoint, none shows gradio's spinner, and none waits for another.
QUIET: dict[str, Any] = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}


class RequestForm:
    """Left: what a person asks for. `controls` are those that become the job's settings, by their names."""

    def __init__(self, catalogue: Catalogue) -> None:
        info = catalogue.info(catalogue.preselected)
        self.controls: dict[str, gr.components.Component] = {}
        self.banner = gr.HTML(view.banner(info))
        self.controls["image"] = gr.Image(
            type="filepath", label="Image", sources=["upload", "clipboard"], height=264, buttons=[]
        )
        self.prompt = gr.Textbox(
            label="Prompt", lines=3, max_lines=8, max_length=MAX_PROMPT_CHARACTERS,
            placeholder="What should happen?",
        )  # fmt: skip
        self.controls["prompt"] = self.prompt
        self.unknown = gr.HTML()
        self.examples = gr.Dataset(
            components=[self.prompt], samples=samples_of(info), type="index", label="Quick List",
            visible=bool(info.examples), elem_classes="lt-examples",
        )  # fmt: skip
        self._add_shape(catalogue)
        with gr.Accordion("Look", open=True):
            self._add_look()
        with gr.Accordion("Size, memory and output", open=True):
            self._add_output(info.side)
        # Last, and sticky at the lower edge of the window: always in sight.
        with gr.Column(elem_classes="lt-go"):
            self.notice = gr.HTML(elem_id="notice")
            with gr.Row():
                self.start = gr.Button("Start Generation", variant="primary", scale=3, min_width=160)
                self.end = gr.Button("End Generation", interactive=False, scale=1, min_width=130)
            self.remove = gr.Button("Remove Last from Queue", visible=False, size="sm")

    def _add_shape(self, catalogue: Catalogue) -> None:
        info = catalogue.info(catalogue.preselected)
        self.seconds = self._slider("seconds", 5.0)
        self.length = gr.HTML(view.length_text(5.0, info.modes[0]), elem_classes="lt-hint", elem_id="length")
        self.model = gr.Dropdown(
            [(catalogue.info(name).title, name) for name in catalogue.names],
            value=catalogue.preselected,
            label="Model",
        )
        self.mode = gr.Radio(
            mode_choices(info.modes), value=info.modes[0], label="Order (model variant)",
            info="What is made first.", elem_classes="lt-segments",
        )  # fmt: skip
        self.controls |= {"model": self.model, "mode": self.mode}

    def _add_look(self) -> None:
        with gr.Row(equal_height=True):
            self.seed = gr.Number(31337, label="Seed", precision=0, minimum=0, scale=3, min_width=120)
            self.dice = gr.Button(
                "New seed", icon=str(_HERE / "dice.svg"), scale=1, min_width=110, elem_classes="lt-dice"
            )
        self.controls["seed"] = self.seed
        self._slider("steps", 25, info="Of each section. Changing this is not recommended.")
        self._slider("guidance", 10.0, info="How closely to follow the prompt. Best left alone.")
        self.controls["negative"] = gr.Textbox(
            label="Negative Prompt", lines=2, max_length=MAX_PROMPT_CHARACTERS,
            info="What should not happen. Used where CFG Scale is above 1.",
        )  # fmt: skip
        self._slider("cfg", 1.0, info="Above 1 each step takes twice as long.")
        self._slider("cfg_rescale", 0.0, info="Keeps a strong CFG Scale from burning the colours.")
        gr.Checkbox(
            False, label="Use TeaCache", interactive=False,
            info="Not in this version yet: every step is computed in full.",
        )  # fmt: skip

    def _add_output(self, side: int) -> None:
        self.resolution = gr.Slider(
            MIN_RESOLUTION, MAX_RESOLUTION, side, step=16, label="Resolution", buttons=[],
            info="Side in pixels of a square of the same area. The model's own suits it best.",
        )  # fmt: skip
        self.controls["resolution"] = self.resolution
        self._slider(
            "preserved_gb", 6.0, label="GPU Inference Preserved Memory (GB) (larger means slower)",
            info="Recorded with the job. Takes effect on a GPU, with the memory management to come.",
        )  # fmt: skip
        self._slider("crf", 16, info="Lower is better and larger. Below 1 is written as 1.")

    def _slider(self, name: str, value: float, *, label: str = "", info: str | None = None) -> gr.Slider:
        bounds = RANGES[name]
        slider = gr.Slider(
            bounds.low,
            bounds.high,
            value,
            step=bounds.step,
            label=label or bounds.label,
            info=info,
            buttons=[],
        )
        self.controls[name] = slider
        return slider


def connect_request(request: RequestForm, actions: Actions) -> None:
    gr.on(
        [request.seconds.change, request.mode.change],
        view.length_text,
        [request.seconds, request.mode],
        request.length,
        trigger_mode="always_last",
        preprocess=False,
        **QUIET,
    )
    request.prompt.change(
        actions.unknown_words,
        [request.model, request.prompt],
        request.unknown,
        trigger_mode="always_last",
        preprocess=False,
        **QUIET,
    )
    request.model.change(
        actions.choose_model,
        [request.model, request.mode, request.prompt],
        [request.mode, request.examples, request.banner, request.unknown, request.resolution],
        preprocess=False,
        **QUIET,
    )
    request.examples.click(
        actions.use_example,
        [request.model, request.examples],
        [request.controls["image"], request.prompt],
        **QUIET,
    )
    request.dice.click(None, None, request.seed, js=_DICE, api_visibility="private")
