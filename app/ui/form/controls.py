"""Left: the controls for what a person asks for, and what each of them calls."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gradio as gr

from app.ui.catalogue import Catalogue
from app.ui.form import markup as view
from app.ui.form.actions import AROUND, Actions, mode_choices
from app.ui.form.describe import Describer
from app.ui.form.examples import samples_of
from app.ui.form.settings import DEFAULT_SEED, MAX_PAGE_SEED, defaults
from app.ui.planner import Planner
from diffusers_helper.request import MAX_PROMPT_CHARACTERS, MAX_RESOLUTION, MIN_RESOLUTION, RANGES

_HERE = Path(__file__).parent
_DICE = "() => Math.floor(Math.random() * 2 ** 31)"
_PASSED_ON = "() => window.longtake.picture"
_KEPT = "() => { try { return localStorage.getItem('longtake.form') } catch { return null } }"
# Of a page's own events none is an endpoint, none shows gradio's spinner, and none waits for another.
QUIET: dict[str, Any] = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}
_SCRIPT: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
_CHANGED: dict[str, Any] = {"fn": None, "js": "() => window.longtake?.changed()", **_SCRIPT}
_EXAMPLES_JS = """element.addEventListener('click', (event) => {
  const card = event.target.closest('[data-example]');
  if (card) trigger('click', { index: Number(card.dataset.example) });
});"""


def script(*names: str) -> str:
    return "\n".join((_HERE / name).read_text(encoding="utf-8") for name in names)


class RequestForm:
    """Left: what a person asks for. `controls` are those that become the job's settings, by their names."""

    def __init__(self, catalogue: Catalogue) -> None:
        info = catalogue.info(catalogue.preselected)
        self._start_values = defaults(info, catalogue.planner)
        self.controls: dict[str, gr.components.Component] = {}
        self.banner = gr.HTML(
            view.banner(info), apply_default_css=False, js_on_load=_EXAMPLES_JS, elem_id="try-it"
        )
        self.image = gr.Image(
            type="filepath", label="Picture", sources=["upload", "clipboard", "webcam"], height=250,
            buttons=[], format="png", elem_id="set-image",
            placeholder="Drop a picture here, paste one, or click to choose",
        )  # fmt: skip
        self.picture_note = gr.HTML(apply_default_css=False, js_on_load=None)
        self._add_prompt(catalogue)
        self._add_shape(catalogue)
        with gr.Accordion("Look", open=False, elem_id="fold-look"):
            self._add_look()
        with gr.Accordion("Size and output", open=False, elem_id="fold-output"):
            self._add_output()
        with gr.Accordion("Memory", open=False, elem_id="fold-memory"):
            self._add_memory(catalogue.planner)
        self.reset = gr.Button("Reset to defaults", size="sm", elem_classes="lt-quiet")
        self._add_buttons()
        # Invisible: what the form's script shows of the settings, and the way back for pictures it is given.
        self.facts = gr.HTML(
            {"defaults": catalogue.planner.defaults},
            html_template="",
            js_on_load=script("form.js", "prompts.js", "prompt_help.js", "keep.js"),
            apply_default_css=False,
        )

    def _add_prompt(self, catalogue: Catalogue) -> None:
        info = catalogue.info(catalogue.preselected)
        self.prompt = gr.Textbox(
            "", label="Prompt", lines=3, max_lines=8, max_length=MAX_PROMPT_CHARACTERS,
            placeholder="What should happen?", elem_id="set-prompt",
        )  # fmt: skip
        self.controls |= {"image": self.image, "prompt": self.prompt}
        # Filled by the form's script with what this browser has started before.
        self.history = gr.HTML('<div id="lt-history"></div>', apply_default_css=False, js_on_load=None)
        self.examples = gr.Dataset(
            components=[self.prompt], samples=samples_of(info), type="index", label="Quick List",
            visible=bool(info.examples), elem_classes="lt-examples",
        )  # fmt: skip

    def _add_shape(self, catalogue: Catalogue) -> None:
        info = catalogue.info(catalogue.preselected)
        self.mode = gr.Radio(
            mode_choices(info.modes), value=info.modes[0], label="Order", info="what is made first",
            elem_classes="lt-segments", elem_id="set-mode",
        )  # fmt: skip
        self.controls["mode"] = self.mode
        self._slider("seconds")
        self.length = gr.HTML(
            elem_classes="lt-hint", elem_id="length", apply_default_css=False, js_on_load=None
        )
        self.model = gr.Dropdown(
            [(catalogue.info(name).title, name) for name in catalogue.names],
            value=catalogue.preselected, label="Model", filterable=False,
            info="sets steps, guidance and size", elem_classes="lt-model", elem_id="set-model",
        )  # fmt: skip
        self.controls["model"] = self.model

    def _add_look(self) -> None:
        with gr.Row(equal_height=True):
            self.seed = gr.Number(
                DEFAULT_SEED, label="Seed", precision=0, minimum=0, maximum=MAX_PAGE_SEED, scale=3,
                min_width=120, elem_id="set-seed", buttons=[],
            )  # fmt: skip
            self.dice = gr.Button("New seed", scale=1, min_width=110, elem_classes="lt-dice")
        self.controls["seed"] = self.seed
        gr.HTML('<p class="lt-hint">The same seed and settings give the same video.</p>', js_on_load=None)
        self._slider(
            "steps", info="Of each section. The time grows with them; the model's own number suits it."
        )
        self._slider("guidance", info="How closely to follow the prompt. Costs nothing; best left alone.")
        self.controls["negative"] = gr.Textbox(
            "", label="Negative Prompt", lines=2, max_length=MAX_PROMPT_CHARACTERS, elem_id="set-negative",
            info="What should not happen. Used only where CFG Scale is above 1.",
        )  # fmt: skip
        self._slider("cfg", info="Above 1 the negative prompt counts, and each step takes twice as long.")
        self._slider("cfg_rescale", info="Keeps a strong CFG Scale from burning the colours. Costs nothing.")
        gr.Checkbox(
            False, label="Use TeaCache", interactive=False,
            info="Not in this version yet: every step is computed in full.",
        )  # fmt: skip

    def _add_output(self) -> None:
        self.controls["resolution"] = gr.Slider(
            MIN_RESOLUTION, MAX_RESOLUTION, self._start_values["resolution"], step=16, label="Resolution",
            buttons=[], elem_id="set-resolution",
            info="Side of a square of the same area, in pixels. The model's own suits it best; "
            "time and memory grow with the area.",
        )  # fmt: skip
        self._slider("crf", info="Lower is better and larger. Below 1 is written as 1.")

    def _add_memory(self, planner: Planner) -> None:
        for name, remark, info in (
            ("vram_cap_gb", "", "The most that a video may take. What does not fit is refused at the start."),
            ("preserved_gb", " (larger means slower)", "What weights leave free: the rest is streamed."),
        ):
            self.controls[name] = gr.Slider(
                0, planner.most_gb, self._start_values[name], step=0.1, label=RANGES[name].label + remark,
                info=info, buttons=[], elem_id=f"set-{name}",
            )  # fmt: skip
        self.memory = gr.HTML(
            elem_id="memory-plan", apply_default_css=False, js_on_load=script("memory_plan.js")
        )

    def _add_buttons(self) -> None:
        # Sticky at the lower edge of the window: always in sight.
        with gr.Column(elem_classes="lt-go"):
            self.notice = gr.HTML(elem_id="notice", apply_default_css=False, js_on_load=script("notice.js"))
            with gr.Row():
                self.start = gr.Button(
                    "Start Generation", variant="primary", scale=3, min_width=160, elem_id="start"
                )
                self.end = gr.Button(
                    "End Generation", interactive=False, scale=1, min_width=130, elem_id="end"
                )
            self.remove = gr.Button("Remove Last from Queue", visible=False, size="sm")

    def _slider(self, name: str, *, label: str = "", info: str | None = None) -> None:
        bounds = RANGES[name]
        self.controls[name] = gr.Slider(
            bounds.low, bounds.high, self._start_values[name], step=bounds.step,
            label=label or bounds.label, info=info, buttons=[], elem_id=f"set-{name}",
        )  # fmt: skip


def connect_request(page: gr.Blocks, form: RequestForm, actions: Actions, describer: Describer) -> None:
    names, controls = list(form.controls), list(form.controls.values())
    around = [form.examples, form.banner]

    def named(make: Callable[..., dict[str, Any]], *outputs: str) -> Callable[..., list[Any]]:
        """A handler whose result, by name, goes to outputs in their order; what is missing stays."""

        def handler(*values: Any) -> list[Any]:
            made = make(*values)
            return [made.get(name, gr.skip()) for name in outputs]

        return handler

    def describe(*values: object) -> tuple[Any, ...]:
        described = describer.describe(dict(zip(names, values, strict=True)))
        return described.length, described.picture, described.memory, described.facts

    # What is folded away has no change event; who sets it lets the script say so, as `facts.submit`.
    changes = [form.facts.submit, *(one.change for one in controls)]  # pyright: ignore[reportAttributeAccessIssue]
    gr.on(
        [page.load, *changes],
        describe, controls, [form.length, form.picture_note, form.memory, form.facts],
        trigger_mode="always_last", preprocess=False, **QUIET,
    )  # fmt: skip
    # By hand only: a model that is restored brings its settings along.
    chosen = ("steps", "guidance", "resolution", "mode")
    form.model.input(
        named(actions.choose_model, *chosen, *AROUND), [form.model, form.mode],
        [*(form.controls[name] for name in chosen), *around], preprocess=False, **QUIET,
    ).then(**_CHANGED)  # fmt: skip
    form.examples.click(
        named(actions.use_example, "image", "prompt"), [form.model, form.examples],
        [form.image, form.prompt], **QUIET,
    )  # fmt: skip
    form.dice.click(None, None, form.seed, js=_DICE, **_SCRIPT).then(**_CHANGED)
    _connect_defaults(form, actions, named)
    # What the form's script was given: a picture that was pasted, dropped, or kept by the browser.
    form.facts.input(None, None, form.image, js=_PASSED_ON, **_SCRIPT)
    kept = [name for name in names if name != "image"]
    page.load(
        named(actions.restore, *kept, *AROUND), form.facts,
        [*(form.controls[name] for name in kept), *around], js=_KEPT, preprocess=False, **QUIET,
    ).then(None, None, None, js="() => window.longtake?.restored()", **_SCRIPT).then(**_CHANGED)  # fmt: skip
    gr.on(
        changes,
        None, [form.controls[name] for name in kept], None,
        js=f"(...values) => window.longtake?.keep({kept}, values)", **_SCRIPT,
    )  # fmt: skip
    form.image.change(None, form.image, None, js="(value) => window.longtake?.keepPicture(value)", **_SCRIPT)


def _connect_defaults(
    form: RequestForm, actions: Actions, named: Callable[..., Callable[..., list[Any]]]
) -> None:
    plain = [name for name in form.controls if name not in ("image", "prompt", "model")]
    outputs = [form.controls[name] for name in plain]
    form.reset.click(
        named(actions.reset, *plain), form.model, outputs, preprocess=False, **QUIET
    ).then(**_CHANGED)  # fmt: skip

    def run_example(model: str, event: gr.EventData) -> list[Any]:
        index = event._data.get("index") if isinstance(event._data, dict) else None
        return named(actions.run_example, *plain, "image", "prompt", "notice")(model, index)

    form.banner.click(
        run_example, form.model, [*outputs, form.image, form.prompt, form.notice], preprocess=False, **QUIET
    ).then(**_CHANGED)
