"""The form's description of itself: length, time, crop, heads of the folds, and a program for it."""

import contextlib
import json
import math
from collections.abc import Mapping
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any

from typing_extensions import TypedDict

from app.jobs.pace import PaceBook, effort_of
from app.jobs.service import JobService
from app.ui.catalogue import Catalogue
from app.ui.form.markup import acting_chips, hint, model_note, refusal_line
from app.ui.form.memory_view import report
from app.ui.form.settings import AFTER_SECTION, FOLLOWING, PAGE_SETTINGS, VARIANTS, Extras, to_request
from app.ui.loras import with_lora_files
from app.ui.pictures import Size, crop_of, upload_path
from app.ui.timeline import plan_of, strip, usable_value
from diffusers_helper.conditions.pictures import picture_warning
from diffusers_helper.errors import InputError
from diffusers_helper.families.packing import SectionPlan
from diffusers_helper.families.step_caches import OFF
from diffusers_helper.lora_choice import parsed_choices
from diffusers_helper.models.downloads import absence_of
from diffusers_helper.models.registry import ModelInfo
from diffusers_helper.request import (
    BEFORE,
    END_PICTURE,
    PICTURES,
    SETTINGS,
    START_PICTURE,
    TIMED_PICTURES,
    GenerationRequest,
)
from diffusers_helper.timed_pictures import timed_pictures_of
from diffusers_helper.units import about, count_text

# What the memory plan and the time depend on; an unusable value of another setting spoils neither.
_NEEDED = (
    "prompt", "negative", "cfg", "seconds", "steps", "mode", "resolution", "lora", "loop", "one_frame",
    TIMED_PICTURES, *(name for name, setting in PAGE_SETTINGS.items() if setting.section == "Memory"),
)  # fmt: skip
_EXAMPLE = """\
from gradio_client import Client, handle_file

client = Client("PAGE")
video = client.predict(
{arguments}
    api_name="/generate",
)
print(video)  # the path of the finished MP4
"""


class FormAnswer(TypedDict, total=False):
    """What the form shows next: values by setting, markup by the id of an element, facts, and a notice."""

    values: dict[str, Any]
    markup: dict[str, str]
    facts: dict[str, Any]
    notice: str


class Describer:
    """A describer of the form's values. It leaves out unusable values, which the start refuses."""

    def __init__(self, service: JobService, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._paces, self._planner = PaceBook(service), catalogue.planner

    def describe(self, settings: dict[str, Any]) -> FormAnswer:
        name, offered = settings.get("model"), self._catalogue.names  # it may have just been removed
        info = self._catalogue.info(name if name in offered else self._catalogue.preselected)
        plan = plan_of(settings, info.family)
        judged = {name: self._judge(settings.get(name), name) for name in PICTURES}
        refusal = next((result for result in judged.values() if isinstance(result, InputError)), None)
        sizes = {name: size for name, size in judged.items() if isinstance(size, Size)}
        start = sizes.get(START_PICTURE)
        size = {name: usable_value(settings, name) for name in ("resolution", "shape", "picture_shape")}
        sized = GenerationRequest(image="any", **size)
        height, width = shape = info.shape_of(sized, start and (start.used_height, start.used_width))
        request = self._request(settings, info)
        memory_state, memory_plan = report(self._planner, request, info, shape)
        lora = str(settings.get("lora") or "")
        timeline, cue_notes = strip(settings, info.family)
        carried, summary = _extras(settings)
        continued = carried.settings.get("video", "")
        is_picture = usable_value(settings, "one_frame") > 0
        subject = "One frame" if is_picture else "What comes before a video" if carried.is_before else ""
        weights = {choice.file: f"{choice.weight:.15g}" for choice in parsed_choices(lora)}
        count, results = usable_value(settings, VARIANTS), "a picture" if is_picture else "a video"
        if count > 1:
            kinds = count_text(count, "picture" if is_picture else "video")
            results = f"{kinds} with different seeds"
        facts = {
            "crops": _crops(sizes, settings, shape),
            "ratio": round(width / height, 4),
            "size": f"Video: {width} × {height}" if start else "",
            "starts": "picture" if subject else "picture or words",
            "continues": bool(continued) and not carried.is_before,
            "look": _look(settings, info, len(weights)),
            "when": "waits after each section" if settings.get(AFTER_SECTION.name) == "wait" else "",
            "timeline": timeline,
            "loras": {"text": lora, "weights": weights},
            "many": f"makes {results}" if is_picture or count > 1 else "",
            "output": f"{size['resolution'] or info.side} px · compression {usable_value(settings, 'crf')}",
            "memory": memory_state,
            "model": info.title,
            "unused": _unused(settings, info),
            "words": info.vocabulary_words,
            "offered": [word for words in [*info.vocabulary.values()][:3] for word in words[:3]],
            "program": self._program(settings, info), "defaults": self._planner.defaults,
        }  # fmt: skip
        has_start = start or (continued and not subject)
        words_note = "" if has_start else _words_note(settings, info, shape, subject)
        order = _order_note(settings, info)
        remark = info.remark(*shape, has_picture=bool(start), sections=len(plan) if plan else 1)
        markup = {
            "length": self._length(settings, plan, request, info, shape) if plan else "",
            "picture-note": refusal_line(refusal, is_alert=True) if refusal else words_note,
            "end-note": order if judged[END_PICTURE] else "",
            "timeline-note": cue_notes + (order if settings.get(TIMED_PICTURES) else ""),
            "model-note": model_note(info, absence_of(info), remark, self._planner.takes_days(info)),
            "memory-plan": memory_plan,
            "acting": acting_chips(_acting(settings, summary), _before(carried, info), continued),
        }  # fmt: skip
        return {"markup": markup, "facts": facts}

    def _program(self, settings: dict[str, Any], info: ModelInfo) -> str:
        try:
            request = to_request(settings, info, self._planner)
        except InputError:
            return ""
        if request.get("mode") == info.modes[0]:
            del request["mode"]
        return example_program(request, self._catalogue.first)

    def _judge(self, upload: object, name: str) -> Size | InputError | None:
        try:
            path = upload_path(upload, name)
        except InputError as error:
            return error
        return self._planner.pictures.judge(path) if path else None

    def _request(self, settings: dict[str, Any], info: ModelInfo) -> GenerationRequest | InputError:
        """Request a video as long and as large as the form's; an error says what is wrong with it."""
        needed = {name: settings[name] for name in _NEEDED if name in settings} | {"image": "any"}
        try:
            return GenerationRequest.from_dict(with_lora_files(to_request(needed, info, self._planner)))
        except InputError as error:
            return error

    def _length(
        self, settings: dict[str, Any], plan: SectionPlan, request: GenerationRequest | InputError,
        info: ModelInfo, shape: tuple[int, int],
    ) -> str:  # fmt: skip
        seconds, sections = usable_value(settings, "seconds"), count_text(len(plan), "section")
        parts = f"({plan.total_frames} frames, {sections})"
        length = f"{seconds:g} s becomes <b>{plan.seconds:.2f} s</b> {parts}."
        if plan.total_frames == 1:
            length = "<b>One picture</b> is made instead of a video."
        if isinstance(request, InputError):  # the start says what is wrong with it
            return length
        if pace := self._paces.pace(self._catalogue.key(str(settings.get("model")))):
            seconds = pace.seconds(effort_of(request, info, math.prod(shape)))
            jobs = "last job" if pace.jobs == 1 else f"last {pace.jobs} jobs"
            time = f"{about(seconds)}, judging by this machine’s {jobs}"
        else:
            estimate = self._planner.forecast(request, info, shape)
            time = estimate.video_text if estimate else "the first video will show how long it takes"
        return f"{length}<br>{time[0].upper()}{time[1:]}."


def _unused(settings: dict[str, Any], info: ModelInfo) -> list[str]:
    """List what is hidden because the model does not have it, unless it has a value that could be removed."""
    caches = SETTINGS["step_cache"].choices if info.step_caches is None else (OFF, *info.step_caches)
    lacks = (*info.unsupported, *(("step_cache",) if len(caches) == 1 else ()))
    unused = [name for name in lacks if settings.get(name) in (None, SETTINGS[name].default)]
    if info.times:  # its steps are those that it was made for
        unused += ["shift", *(["steps"] if settings.get("steps") in (None, info.steps) else [])]
    choices = [f"step_cache={cache}" for cache in SETTINGS["step_cache"].choices if cache not in caches]
    return [*info.family.ignored, *unused, *choices, *(("mode",) if len(info.modes) == 1 else ())]


def _look(settings: dict[str, Any], info: ModelInfo, loras: int) -> str:
    names = ("seed", "steps", info.family.guidance_setting)
    seed, steps, guidance = (f"{usable_value(settings, name):.15g}" for name in names)
    seed = "new seed" if settings.get("random_seed") is True else f"seed {seed}"
    text = f"{seed} · {steps} steps · guidance {guidance}"
    return f"{text} · {count_text(loras, 'LoRA')}" if loras else text


def _acting(settings: dict[str, Any], summary: str) -> dict[str, str]:
    """Name, by field, what changes the next video although its control may be folded away, or missing."""
    texts = {"extras": summary}
    with contextlib.suppress(InputError):
        pictures = timed_pictures_of(str(settings.get(TIMED_PICTURES) or ""))
        times = ", ".join(f"{picture.time:g} s" for picture in pictures)
        texts[TIMED_PICTURES] = f"{count_text(len(pictures), 'picture')} at {times}" if times else ""
    loras = parsed_choices(str(settings.get("lora") or ""))
    texts["lora"] = f"LoRA: {', '.join(choice.name for choice in loras)}" if loras else ""
    if then := str(settings.get("then") or ""):
        texts["then"] = f"Then {FOLLOWING.get(then, then).lower()}"
    return {name: text for name, text in texts.items() if text}


def _extras(settings: dict[str, Any]) -> tuple[Extras, str]:
    try:
        extras = Extras.from_text(settings.get("extras"))
    except InputError as error:
        return Extras({}), error.message
    return extras, extras.summary


def _before(extras: Extras, info: ModelInfo) -> str:
    """Write extras that extend the same video before its beginning; "" if that is not possible."""
    is_plain = extras.settings.get("video") and not (extras.is_before or extras.spans)
    settings = {**extras.settings, "extend": BEFORE}
    return replace(extras, settings=settings).to_text() if is_plain and "inverted" in info.modes else ""


def _words_note(settings: dict[str, Any], info: ModelInfo, shape: tuple[int, int], subject: str) -> str:
    """Say what happens without a start picture, once there are words; `subject` is what needs a picture."""
    if not str(settings.get("prompt") or "").strip():
        return ""
    height, width = shape
    text = f"Without a picture, the video starts from your words alone, in {width} × {height}."
    if subject:
        text = f"{subject} needs a picture to start from."
    elif info.vocabulary:
        text += " This small model has never seen that, and makes only colours."
    return hint(text)


def _crops(
    sizes: Mapping[str, Size], settings: dict[str, Any], shape: tuple[int, int]
) -> dict[str, list[float]]:
    crops = dict[str, list[float]]()
    for name, size in sizes.items():
        x = y = usable_value(settings, SETTINGS[name].crop)
        zoom = 1.0
        if name == START_PICTURE:
            y, zoom = usable_value(settings, "crop_y"), usable_value(settings, "zoom")
        crop = crop_of(size, *shape, x, x if y is None else y, zoom)
        crops[name] = [round(100 * share, 3) for share in crop]
    return crops


def _order_note(settings: dict[str, Any], info: ModelInfo) -> str:
    """Say what the order means for further pictures, with a button for the order that suits them."""
    sentence = picture_warning(str(settings.get("mode")), info)
    button = ' <button type="button" class="lt-quiet-button">Make the end first</button>'
    offered_button = button if "inverted" in info.modes else ""
    return f'<p class="lt-hint">{escape(sentence)}{offered_button}</p>' if sentence else ""


def example_program(request: Mapping[str, Any], preselected: str) -> str:
    """Write a program that calls PAGE, which the browser replaces, with the settings that were changed."""
    defaults = {name: setting.default for name, setting in SETTINGS.items()}
    defaults |= {"model": preselected, "mode": None, **dict.fromkeys(PICTURES)}
    files = {name: request[name].get("orig_name") or "picture.png" for name in PICTURES if request.get(name)}
    texts = {name: f"handle_file({_literal(file)})" for name, file in files.items()}
    if placed := timed_pictures_of(str(request.get(TIMED_PICTURES) or "")):
        names = ((picture.time_text, Path(picture.file).name) for picture in placed)
        entries = (f"{_literal(time)}: handle_file({_literal(name)})" for time, name in names)
        texts[TIMED_PICTURES] = f"{{{', '.join(entries)}}}"
    texts["prompt"] = _literal(request.get("prompt") or "")
    texts |= {
        name: _literal(request[name]) for name in SETTINGS
        if name in request and name not in texts and request[name] != defaults[name]
    }  # fmt: skip
    arguments = "\n".join(f"    {name}={value}," for name, value in texts.items())
    return _EXAMPLE.format(arguments=arguments)


def _literal(value: object) -> str:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)
