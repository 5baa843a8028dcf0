"""The markup of the form: a control for each setting, with names, bounds and help from `SETTINGS`."""

from dataclasses import replace
from html import escape
from pathlib import Path
from string import Template
from typing import Any, get_args

from app.ui.catalogue import Catalogue
from app.ui.errors import page_words
from app.ui.form.markup import model_markup, options
from app.ui.form.settings import FOLLOWING, PAGE_SETTINGS, START_CONTROLS, defaults
from app.ui.planner import MEMORY_SETTINGS
from diffusers_helper.request import CROPS, START_PICTURE, TIMED_PICTURES
from diffusers_helper.setting import MAX_PROMPT_CHARACTERS, Section, SettingInfo

_TEMPLATE = Path(__file__).with_name("form.html")
# Fields without a control of their own, into which scripts write
_HIDDEN = (*CROPS, "crop_y", TIMED_PICTURES, "lora", "loop", "extras")
_SLIDER = """
<div class="lt-field lt-slider" id="set-{name}"><div class="lt-slider-head">
<label class="lt-label" for="in-{name}">{label}</label>
<input type="number" id="in-{name}" name="{name}" aria-label="number input for {label}" {bounds}></div>
<input type="range" aria-label="range slider for {label}" {bounds}>{info}</div>"""
_NUMBER = """
<div class="lt-field" id="set-{name}"><label class="lt-label" for="in-{name}">{label}</label>
<input type="number" id="in-{name}" name="{name}" {bounds}>{info}</div>"""
_TEXT = """
<div class="lt-field" id="set-{name}"><label class="lt-label" for="in-{name}">{label}</label>{info}
<textarea id="in-{name}" name="{name}" rows="2" maxlength="{most}" placeholder="{hint}">
{text}</textarea></div>"""
_RADIOS = """
<div class="lt-field {kind}" id="set-{name}" role="radiogroup" aria-labelledby="label-{name}">
<span class="lt-label" id="label-{name}">{label}</span>{info}
<div class="lt-options" id="options-{name}">{options}</div></div>"""
_RADIO = '<label><input type="radio" name="{name}" value="{value}"{checked}><span>{words}</span></label>'
_SELECT = """
<div class="lt-field lt-select" id="set-{name}"><label class="lt-label" for="in-{name}">{label}</label>{info}
<select id="in-{name}" name="{name}">{options}</select></div>"""
_PICTURE = """
<div class="lt-field lt-picture" id="set-{name}" data-crop="{crop}">
<label class="lt-label" for="file-{name}" data-hint="">{label}</label>
<div class="lt-well" data-words="No preview"><button type="button" class="lt-drop" data-from="file">
<span>{words}</span><span class="lt-touch">Tap to choose a photo</span></button></div>
<div class="lt-sources">{sources}
<button type="button" data-from="" aria-label="Remove {label}" hidden>Remove</button></div>
<input type="file" id="file-{name}" hidden>
<input type="hidden" name="{crop}" value="0.5" data-kind="number">
<input type="hidden" name="{name}" value="null" data-kind="picture"></div>"""
_SOURCES = """
<button type="button" data-from="file">File</button>
<button type="button" data-from="camera">Camera</button>
<button type="button" data-from="paste">Paste</button>"""


def form_markup(catalogue: Catalogue) -> str:
    """Build the form with the values of the preselected model.

    The template has places for some settings; the others of each section follow where it says so.
    """
    info = catalogue.info(catalogue.preselected)
    values = defaults(info, catalogue.planner)
    settings = PAGE_SETTINGS | START_CONTROLS
    high = catalogue.planner.max_gb
    settings |= {name: replace(settings[name], low=0, high=high) for name in MEMORY_SETTINGS}
    controls = (item for name, item in settings.items() if name not in _HIDDEN)
    markup = {item.name: _control(item, values.get(item.name, item.default)) for item in controls}
    markup["mode"] = _radios(settings["mode"], info.modes, values["mode"])
    models = model_options(catalogue, catalogue.preselected)
    markup["model"] = _SELECT.format(**_heading(settings["model"]), options=models)
    template = Template(_TEMPLATE.read_text(encoding="utf-8"))
    names = [name for name in markup if name not in template.get_identifiers()]
    for section in get_args(Section):
        markup[f"rest_{section.split()[0].lower()}"] = "".join(
            markup[name] for name in names if settings[name].section == section
        )
    return template.substitute(markup, part_examples=model_markup(info)["examples"])


def model_options(catalogue: Catalogue, selected: str) -> str:
    return options(((name, info.title) for name, info in catalogue.infos.items()), selected)


def _heading(setting: SettingInfo) -> dict[str, str]:
    info = f'<span class="lt-info">{escape(page_words(setting.help))}</span>'
    return {"name": setting.name, "label": escape(setting.label), "info": info}


def _control(setting: SettingInfo, value: Any) -> str:
    heading = _heading(setting)
    if setting.is_picture:
        is_start = setting.name == START_PICTURE
        words = "Drop a picture here, paste one, or click to choose" if is_start else "Drop one, or click"
        sources = _SOURCES if is_start else ""
        return _PICTURE.format(**heading, crop=setting.crop, words=words, sources=sources)
    if choices := FOLLOWING if setting.name == "then" else setting.choices if "shape" in setting.name else {}:
        return _SELECT.format(**heading, options=options(choices.items(), value))
    if setting.choices:
        return _radios(setting, tuple(setting.choices), value)
    if not setting.is_number:
        hint = ""
        if setting.name == "prompt":  # the first sentence of its help stands in the field, which stays low
            hint = escape(setting.help.split(". ")[0]) + "."
            heading["info"] = ""
        return _TEXT.format(**heading, most=MAX_PROMPT_CHARACTERS, hint=hint, text=escape(value))
    bounds = {"min": setting.low, "max": setting.high, "step": setting.step, "value": value}
    attributes = " ".join(f'{name}="{number:.16g}"' for name, number in bounds.items())
    if setting.name in ("seed", "variants"):  # a slider is no use for them
        return _NUMBER.format(**heading, bounds=attributes)
    if setting.name == "seconds":  # the line beneath it says what becomes of it
        heading["info"] = ""
    return _SLIDER.format(**heading, bounds=attributes)


def _radios(setting: SettingInfo, values: tuple[str, ...], selected: Any) -> str:
    kind = "lt-segments" if setting.name in ("mode", "after_section") else "lt-chips"
    return _RADIOS.format(**_heading(setting), kind=kind, options=radio_options(setting, values, selected))


def radio_options(setting: SettingInfo, values: tuple[str, ...], selected: Any) -> str:
    return "".join(
        _RADIO.format(
            name=setting.name, value=escape(value), words=escape(setting.choices[value]),
            checked=" checked" if value == selected else "",
        )
        for value in values
    )  # fmt: skip
