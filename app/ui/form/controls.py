"""The left side of the page: the controls of a request, and the handlers that they call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from html import escape
from typing import Any

import gradio as gr

from app.ui.catalogue import Catalogue
from app.ui.errors import page_words
from app.ui.form import markup as view
from app.ui.form.actions import AROUND, Actions, mode_choices
from app.ui.form.describe import Describer
from app.ui.form.examples import samples_of
from app.ui.form.settings import PAGE_ONLY, PAGE_SEED, PAGE_SETTINGS, VARIANTS, defaults
from app.ui.planner import MEMORY_SETTINGS, Planner
from app.ui.scripts import call, on_load
from diffusers_helper.request import PICTURES, SETTINGS
from diffusers_helper.setting import MAX_PROMPT_CHARACTERS, Section

# No event of the page is an endpoint, shows Gradio's spinner, or waits for another one.
QUIET: dict[str, Any] = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}
# These run in the browser only. If a client calls them on the server, gradio must not read a picture.
SCRIPT: dict[str, Any] = {
    "queue": False, "preprocess": False, "show_progress": "hidden", "api_visibility": "private",
}  # fmt: skip
SHOW_STAGE: dict[str, Any] = {"fn": None, "js": call("live/live.js", "showStage"), **SCRIPT}
_EXPERT = """<button type="button" aria-expanded="false" aria-controls="expert">
Weight type and VAE: for experts</button>"""
_CHANGED: dict[str, Any] = {"fn": None, "js": call("form/component.js", "changed"), **SCRIPT}


class RequestForm:
    """The left side of the page: the controls of a request.

    Attributes:
        controls: The controls that become the job's settings, by their names.
    """

    def __init__(self, catalogue: Catalogue) -> None:
        info = catalogue.info(catalogue.preselected)
        self._start_values = defaults(info, catalogue.planner)
        self.controls: dict[str, gr.components.Component] = {}
        # The page places these two beside the stage.
        self.offer = gr.HTML(
            view.offer(info),
            apply_default_css=False,
            elem_id="try-it",
            js_on_load=on_load("form/boxes.js", "offerExamples"),
            render=False,
        )
        self.demo_box = gr.HTML(
            view.demo_box(info),
            apply_default_css=False,
            elem_id="demo-box",
            js_on_load=on_load("form/boxes.js", "keepDemoClosed"),
            render=False,
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
            self._add_others("Size and output")
        with gr.Accordion("Memory", open=False, elem_id="fold-memory"):
            self._add_memory(catalogue.planner)
        # This line says what the form carries along from an earlier video.
        self.extras_line = gr.HTML(
            apply_default_css=False, js_on_load=on_load("form/boxes.js", "offerForgetting")
        )
        self.controls["extras"] = gr.Textbox(
            PAGE_ONLY["extras"], visible="hidden", elem_id="set-extras", label="Earlier settings"
        )
        with gr.Row(elem_classes="lt-around"):
            self.reset = gr.Button("Reset to defaults", size="sm", elem_classes="lt-quiet")
            self.presets = gr.HTML(
                apply_default_css=False, elem_classes="lt-presets", js_on_load=on_load("form/presets.js")
            )
        self._add_buttons()
        # This is invisible. It holds facts for the form's script and sends the script's events.
        self.facts = gr.HTML(
            {"defaults": catalogue.planner.defaults},
            html_template="",
            js_on_load=on_load("form/form.js"),
            apply_default_css=False,
        )

    def _add_prompt(self, catalogue: Catalogue) -> None:
        info = catalogue.info(catalogue.preselected)
        self.controls["image"] = self.image
        # The script of the frame over the picture writes into this field.
        self.controls["crop"] = gr.Number(PAGE_SETTINGS["crop"].default, visible="hidden", elem_id="set-crop")
        self.prompt = self._add(
            "prompt", info=None, lines=2, max_lines=8, placeholder=SETTINGS["prompt"].help
        )
        self.examples = gr.Dataset(
            components=[self.prompt], samples=samples_of(info), type="index", label="Quick List",
            visible=bool(info.examples), elem_classes="lt-examples",
        )  # fmt: skip

    def _add_shape(self, catalogue: Catalogue) -> None:
        info = catalogue.info(catalogue.preselected)
        self.mode = self._add("mode", choices=mode_choices(info.modes), elem_classes="lt-segments")
        self._add("seconds", info=None)
        self.length = gr.HTML(
            elem_classes="lt-hint", elem_id="length", apply_default_css=False, js_on_load=None
        )
        self.model = gr.Dropdown(
            catalogue.choices, value=catalogue.preselected, filterable=False, elem_classes="lt-model",
            **_about("model"),
        )  # fmt: skip
        self.controls["model"] = self.model
        self.model_note = gr.HTML(elem_id="model-note", apply_default_css=False, js_on_load=None)
        self._add_others("What to make")

    def _add_look(self) -> None:
        with gr.Row(equal_height=True):
            self.seed = gr.Number(
                PAGE_SEED.default, label=PAGE_SEED.label, precision=0, minimum=0, maximum=PAGE_SEED.high,
                scale=3, min_width=120, elem_id="set-seed", buttons=[],
            )  # fmt: skip
            self.dice = gr.Button("New seed", scale=1, min_width=110, elem_classes="lt-dice")
        self.controls["seed"] = self.seed
        gr.HTML(f'<p class="lt-hint">{escape(PAGE_SEED.help)}</p>', js_on_load=None)
        self.controls["random_seed"] = gr.Checkbox(
            PAGE_ONLY["random_seed"], label="Random seed each time", elem_id="set-random_seed"
        )
        self.controls[VARIANTS.name] = gr.Slider(
            VARIANTS.low, VARIANTS.high, VARIANTS.default, step=1, label=VARIANTS.label, info=VARIANTS.help,
            elem_id=f"set-{VARIANTS.name}", buttons=[],
        )  # fmt: skip
        self._add("steps")
        self._add("guidance")
        # The list of files writes into this field, and shows what is in it.
        self._add("lora", visible="hidden")
        gr.HTML(apply_default_css=False, elem_id="lora-list", js_on_load=on_load("form/loras.js"))
        self._add_others("Look")

    def _add_memory(self, planner: Planner) -> None:
        for name in MEMORY_SETTINGS:
            self._add(name, minimum=0, maximum=planner.most_gb)
        self.memory = gr.HTML(
            elem_id="memory-plan",
            apply_default_css=False,
            js_on_load=on_load("form/boxes.js", "keepPlanOpen"),
        )
        gr.HTML(
            _EXPERT, apply_default_css=False, elem_id="expert-head",
            js_on_load=on_load("form/folds.js", "offerExpert"),
        )  # fmt: skip
        with gr.Column(elem_id="expert"):
            self._add_others("Memory")

    def _add_buttons(self) -> None:
        # This sticks to the lower edge of the window, so it is always in sight.
        with gr.Column(elem_classes="lt-go"):
            self.notice = gr.HTML(
                elem_id="notice",
                apply_default_css=False,
                js_on_load=on_load("form/notice.js"),
            )
            with gr.Row():
                self.start = gr.Button(
                    "Start Generation", variant="primary", scale=3, min_width=160, elem_id="start"
                )
                self.end = gr.Button(
                    "End Generation", interactive=False, scale=1, min_width=130, elem_id="end"
                )
                # This takes the place of the others while a waiting job is edited; the script knows which.
                self.save = gr.Button(
                    "Save Changes", variant="primary", scale=3, min_width=160, elem_id="save"
                )

    def _add_others(self, section: Section) -> None:
        """Add the remaining controls of a section."""
        for name, setting in PAGE_SETTINGS.items():
            if setting.section == section and name not in self.controls:
                self._add(name)

    def _add(self, name: str, **options: Any) -> Any:
        """Add the control that suits a setting's kind, and return it.

        Args:
            name: The setting.
            options: Options that differ from the setting's own.
        """
        setting = PAGE_SETTINGS[name]
        about = _about(name) | {"value": self._start_values.get(name, setting.default)}
        kind: Callable[..., Any] = gr.Textbox
        if setting.choices:
            kind, about["choices"] = gr.Radio, [(words, one) for one, words in setting.choices.items()]
        elif setting.is_number:
            kind = gr.Slider
            about |= {"minimum": setting.low, "maximum": setting.high, "step": setting.step, "buttons": []}
        else:
            about |= {"lines": 2, "max_length": MAX_PROMPT_CHARACTERS}
        self.controls[name] = control = kind(**(about | options))
        return control


def _about(name: str) -> dict[str, Any]:
    """Return the options that every control takes from its setting."""
    setting = PAGE_SETTINGS[name]
    return {"label": setting.label, "info": page_words(setting.help), "elem_id": f"set-{name}"}


def _named(make: Callable[..., dict[str, Any]], *outputs: str) -> Callable[..., list[Any]]:
    """Return a handler that passes the results of `make`, a dict by name, to the outputs in order.

    An output without a result stays unchanged.
    """

    def handler(*values: Any) -> list[Any]:
        made = make(*values)
        return [made.get(name, gr.skip()) for name in outputs]

    return handler


def _filling(
    catalogue: Catalogue, make: Callable[..., dict[str, Any]], *outputs: str
) -> Callable[..., list[Any]]:
    """Return a handler like that of `_named`, which also passes on the models to choose from now."""

    def made(*values: Any) -> dict[str, Any]:
        found = make(*values)
        chosen = {"value": found["model"]} if "model" in found else {}
        return found | {"model": gr.Dropdown(choices=catalogue.choices, **chosen)}

    return _named(made, *outputs)


def connect_request(page: gr.Blocks, form: RequestForm, actions: Actions, describer: Describer) -> None:
    """Connect the form's controls with their handlers."""
    names, controls = list(form.controls), list(form.controls.values())
    around = [form.examples, form.demo_box, form.offer]

    async def describe(*values: object) -> tuple[Any, ...]:
        settings = dict(zip(names, values, strict=True))
        await describer.pictures.prepare_uploads(settings)
        described = await asyncio.to_thread(describer.describe, settings)
        return (
            described.length, described.picture, described.model, described.memory, described.extras,
            described.facts,
        )  # fmt: skip

    # A control in a closed fold sends no change event, so the script reports changes to it as `facts.submit`.
    changes = [form.facts.submit, *(one.change for one in controls)]  # pyright: ignore[reportAttributeAccessIssue]
    gr.on(
        [page.load, *changes],
        describe, controls,
        [form.length, form.picture_note, form.model_note, form.memory, form.extras_line, form.facts],
        trigger_mode="always_last", preprocess=False, **QUIET,
    )  # fmt: skip
    # This reacts to people only, since the settings of a restored model are restored with it.
    chosen = ("steps", "guidance", "resolution", "mode")
    form.model.input(
        _named(actions.choose_model, *chosen, *AROUND), [form.model, form.mode],
        [*(form.controls[name] for name in chosen), *around], preprocess=False, **QUIET,
    ).then(**_CHANGED)  # fmt: skip
    # The list of models has changed.
    form.facts.load(
        _filling(actions.catalogue, actions.offer_models, "model", *chosen, *AROUND, "notice"),
        [form.model, form.mode],
        [form.model, *(form.controls[name] for name in chosen), *around, form.notice], preprocess=False,
        **QUIET,
    ).then(**_CHANGED)  # fmt: skip
    form.examples.click(
        _named(actions.use_example, "image", "prompt"), [form.model, form.examples],
        [form.image, form.prompt], **QUIET,
    )  # fmt: skip
    form.dice.click(None, None, form.seed, js=call("form/seed.js", "newSeed"), **SCRIPT).then(**_CHANGED)
    _connect_defaults(form, actions)
    # These events bring a picture that was pasted, dropped, or kept by the browser, and the crop.
    for name in PICTURES:
        picture: Any = form.controls[name]
        given = call("form/uploaded.js", "givenPicture", name)
        form.facts.input(None, picture, picture, js=given, **SCRIPT)
        picture.change(None, picture, None, js=call("form/keep.js", "keepPicture", name), **SCRIPT)
    form.facts.select(None, None, form.controls["crop"], js=call("form/crop.js", "givenCrop"), **SCRIPT)
    form.image.change(None, form.image, None, js=call("form/crop.js", "takePicture"), **SCRIPT)
    kept = [name for name in names if name not in PICTURES]
    _connect_restoring(page, form, actions, kept)
    gr.on(
        changes,
        None, [form.controls[name] for name in kept], None,
        js=call("form/keep.js", "keepSettings", kept), **SCRIPT,
    )  # fmt: skip
    gr.on(changes, None, controls, None, js=call("form/notice.js", "seeSettings", names), **SCRIPT)


def _connect_restoring(page: gr.Blocks, form: RequestForm, actions: Actions, kept: list[str]) -> None:
    """Let the form take settings that the browser kept, or that come from outside the form."""
    filled = [*(form.controls[name] for name in kept), form.examples, form.demo_box, form.offer]
    page.load(
        _filling(actions.catalogue, actions.restore, *kept, *AROUND), form.facts, filled,
        js=call("form/keep.js", "keptSettings"), preprocess=False, **QUIET,
    ).then(None, None, None, js=call("form/keep.js", "restored"), **SCRIPT).then(**_CHANGED)  # fmt: skip
    # These come from an earlier video, a preset, or a file that was dropped on the page.
    form.facts.apply(
        _filling(actions.catalogue, actions.fill, *kept, *AROUND, "notice"), form.facts,
        [*filled, form.notice],
        js=call("form/fill.js", "givenSettings"), preprocess=False, **QUIET,
    ).then(**_CHANGED)  # fmt: skip
    form.extras_line.click(None, None, form.controls["extras"], js="() => ''", **SCRIPT)


def _connect_defaults(form: RequestForm, actions: Actions) -> None:
    plain = [name for name in form.controls if name not in (*PICTURES, "prompt", "model")]
    outputs = [form.controls[name] for name in plain]
    form.reset.click(
        _named(actions.reset, *plain), form.model, outputs, preprocess=False, **QUIET
    ).then(**_CHANGED)  # fmt: skip

    def run_example(model: str, event: gr.EventData) -> list[Any]:
        index = event._data.get("index") if isinstance(event._data, dict) else None
        return _named(actions.run_example, *plain, "image", "prompt", "notice")(model, index)

    form.offer.click(
        run_example, form.model, [*outputs, form.image, form.prompt, form.notice], preprocess=False, **QUIET
    ).then(
        None, list(form.controls.values()), None,
        js=call("form/notice.js", "takeAsJudged", list(form.controls)), **SCRIPT,
    ).then(**_CHANGED).then(**SHOW_STAGE)  # fmt: skip
