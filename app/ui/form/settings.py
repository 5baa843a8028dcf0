"""The form's values: the initial ones, those that a browser, a video, a preset or a file kept, and requests.

Settings of an earlier video that have no controls are carried in a hidden field, as `Extras`.
"""

import contextlib
import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from textwrap import shorten
from typing import Any, Self

from typing_extensions import TypedDict

from app.jobs.job import Job
from app.jobs.view import title_of
from app.ui.catalogue import Catalogue
from app.ui.loras import with_lora_names
from app.ui.pictures import upload_name, uploads_folder, write_last_frame, write_uploads
from app.ui.planner import Planner
from app.ui.timeline import SECTION_WORDS, prompt_of_strip
from diffusers_helper.conditions.footage import read_footage
from diffusers_helper.conditions.pictures import picture_paths, stored_pictures
from diffusers_helper.errors import InputError, short_repr
from diffusers_helper.models.registry import ModelInfo, info_of
from diffusers_helper.picture_names import with_pictures
from diffusers_helper.provenance.job_folder import JobFolder
from diffusers_helper.provenance.lineage import Lineage, Span
from diffusers_helper.provenance.recipe import Recipe, read_recipe
from diffusers_helper.request import BEFORE, FINISHING, PICTURES, SETTINGS, START_PICTURE, TIMED_PICTURES
from diffusers_helper.setting import MAX_PROMPT_CHARACTERS, SettingInfo
from diffusers_helper.untrusted.limited_json import json_or_none, parse_json

_MAX_CHARACTERS = 200_000
_MOST_TITLE = 80  # characters of a prompt in a notice
# Above this bound a browser's numbers have gaps, so it could send a different seed from the one it shows.
PAGE_SEED = replace(SETTINGS["seed"], high=2**53 - 1)
PAGE_SETTINGS: dict[str, SettingInfo] = {
    name: setting for name, setting in SETTINGS.items() if setting.on_page
} | {"seed": PAGE_SEED}
_TEXTS = ("prompt", "negative", "lora", "then", TIMED_PICTURES)
VARIANTS = SettingInfo(
    "How Many", "Each start makes this many videos, which differ only in their seeds.", "Look",
    low=1, high=50, name="variants", kind=int, default=1,
)  # fmt: skip
AFTER_SECTION = SettingInfo(
    "After Each Section",
    "While it waits, the device is free; closing the page loses nothing.",
    "What to make",
    choices={"go_on": "Go on", "wait": "Wait for me"}, name="after_section", default="go_on",
)  # fmt: skip
FOLLOWING = {
    "": "Nothing", "enlarge:2": "Enlarge it 2 times", "enlarge:4": "Enlarge it 4 times",
    "smooth:60": "Smooth it to 60 frames a second", "enlarge:2,smooth:60": "Enlarge and smooth it",
}  # fmt: skip
"""What most people want after a video, of all that the setting `then` can say, with the words for it."""
START_CONTROLS = {control.name: control for control in (VARIANTS, AFTER_SECTION)}
"""The controls of the form that say how videos are started, and are no settings of them."""
# The form's values that are not settings of a video, with their defaults.
PAGE_ONLY: dict[str, Any] = {"random_seed": True, "extras": ""}
PAGE_ONLY |= {name: control.default for name, control in START_CONTROLS.items()}


@dataclass(frozen=True, slots=True)
class Extras:
    """Settings without controls, such as the sampler, and spans of sections made with others."""

    settings: Mapping[str, Any]
    spans: tuple[Span, ...] = ()

    @classmethod
    def of(cls, settings: Mapping[str, Any], spans: tuple[Span, ...]) -> Self:
        """Select the settings of a video that must be carried: unusual ones that have no control."""
        unusual = {
            name: value for name, value in settings.items()
            if name in SETTINGS and not (SETTINGS[name].on_page or name in FINISHING)
            and value != SETTINGS[name].default
        }  # fmt: skip
        return cls(unusual, spans)

    def to_text(self) -> str:
        if not self.settings and not self.spans:
            return ""
        spans = [span.to_dict() for span in self.spans]
        return json.dumps({"settings": dict(self.settings), "earlier": spans}, ensure_ascii=False)

    @classmethod
    def from_text(cls, text: object) -> Self:
        """Read the hidden field, which is untrusted JSON, or refuse it."""
        if not isinstance(text, str) or not text:
            return cls({})
        try:
            data: Any = parse_json(text.encode()) if len(text) <= _MAX_CHARACTERS else None
            settings = {name: SETTINGS[name].check(value) for name, value in data["settings"].items()}
            return cls(settings, tuple(Span.from_dict(item) for item in data["earlier"]))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise InputError(
                "The settings of the earlier video cannot be read.", "Forget them, or restore them again."
            ) from error

    @property
    def is_before(self) -> bool:
        return self.settings.get("extend") == BEFORE

    @property
    def summary(self) -> str:
        values = ((SETTINGS[name], value) for name, value in self.settings.items())
        sentences = [f"{setting.label}: {setting.display(value)}" for setting, value in values]
        if self.spans:
            last = self.spans[-1].last
            subject = "The first section is" if last == 1 else f"The first {last} sections are"
            sentences.append(f"{subject} made with the settings of the video that was branched.")
        return " ".join(f"{sentence.rstrip('.')}." for sentence in sentences)


def defaults(info: ModelInfo, planner: Planner) -> dict[str, Any]:
    values: dict[str, Any] = {name: setting.default for name, setting in PAGE_SETTINGS.items()}
    values |= {**info.default_settings, "resolution": info.side, **planner.defaults, **PAGE_ONLY}
    excluded = (*PICTURES, TIMED_PICTURES, "prompt", "model")
    return {name: value for name, value in values.items() if name not in excluded}


def to_request(settings: dict[str, Any], info: ModelInfo, planner: Planner) -> dict[str, Any]:
    """Turn the form's values into a request, with resolution and memory only if they were changed."""
    extras = Extras.from_text(settings.get("extras"))
    values = {name: value for name, value in settings.items() if name not in PAGE_ONLY}
    if values.pop(SECTION_WORDS, ""):
        values["prompt"] = prompt_of_strip(settings, info.family)
    settings = values | planner.changed_memory(values) | dict(extras.settings)
    seed = settings.get("seed")
    if isinstance(seed, int | float) and seed > PAGE_SEED.high:
        raise InputError(
            setting="seed", problem="is larger than a browser can hold exactly", expected=PAGE_SEED.expected,
            remedy=f"Choose a smaller one; the command line takes {SETTINGS['seed'].expected}.",
        )  # fmt: skip
    settings |= {name: "" for name in _TEXTS if settings.get(name) is None}  # a field that was never touched
    if settings.get("resolution") == info.side:
        settings["resolution"] = None
    return settings


def waits(settings: dict[str, Any]) -> bool:
    return AFTER_SECTION.check(settings.get(AFTER_SECTION.name, AFTER_SECTION.default)) == "wait"


def usable_values(catalogue: Catalogue, text: object) -> dict[str, Any]:
    """Select the usable part of the values that a browser kept, as untrusted JSON."""
    stored = json_or_none(text)
    if not isinstance(stored, dict):
        return {}
    model = stored.get("model")
    if model not in catalogue.names:
        model = catalogue.preselected
    info = catalogue.info(model)
    mode = stored.get("mode")
    usable = {"model": model, "mode": mode if mode in info.modes else info.modes[0], "crop_y": None}
    for name, setting in (PAGE_SETTINGS | START_CONTROLS).items():
        value = stored.get(name)
        if name in _TEXTS and isinstance(value, str):
            value = value[:MAX_PROMPT_CHARACTERS]
        if value is not None and name not in ("model", "mode", *PICTURES):
            with contextlib.suppress(InputError):
                usable[name] = setting.check(value)
    with contextlib.suppress(InputError, KeyError):
        usable["extras"] = Extras.from_text(stored["extras"]).to_text()
    is_random = stored.get("random_seed", "seed" not in stored)  # a seed that somebody has chosen holds
    if isinstance(is_random, bool):
        usable["random_seed"] = is_random
    return usable


class RestoredForm(TypedDict):
    """Settings for the form: pictures by setting, as uploads, and `text`, the rest as JSON.

    A browser would round the large numbers among the settings if it read them.
    """

    name: str
    pictures: dict[str, str]
    text: str


@dataclass(frozen=True, slots=True)
class Restored:
    """The settings of an earlier video, a preset or a file.

    Attributes:
        settings: The settings that the form has controls for; None stands for the default.
        is_whole: Whether missing settings get their defaults, instead of staying as they are.
        pictures: The names of the pictures among the uploads, by setting; "" for a video from words alone.
        video: The upload that holds them, if that is a video, which could be continued instead.
    """

    name: str
    settings: Mapping[str, Any]
    extras: str = ""
    is_whole: bool = True
    pictures: Mapping[str, str] = field(default_factory=dict[str, str])
    notices: tuple[str, ...] = ()
    video: str = ""

    @classmethod
    def of_job(cls, job: Job, catalogue: Catalogue) -> Self:
        folder = JobFolder(job.folder)
        if job.request.finish:  # what was finished has settings for the form, if Longtake made it
            return cls.of_recipe(read_recipe(folder.original), title_of(job), catalogue)
        settings = json.loads(job.request.to_json())
        title = f"“{shorten(title_of(job), _MOST_TITLE, placeholder='…')}”"
        with _readable(job):
            if settings["video"]:
                settings["video"] = upload_name(_uploaded_copy(job, folder.original, "original.mp4"))
            pictures = stored_pictures(folder, picture_paths(job.request))
            recipe = Recipe(settings, Lineage.read(folder.lineage).spans, pictures=pictures)
            return cls.of_recipe(recipe, title, catalogue)

    @classmethod
    def of_recipe(cls, recipe: Recipe, name: str, catalogue: Catalogue) -> Self:
        settings, notices = recipe.settings, recipe.notices_on(catalogue.planner.profile.machine.card)
        if "model" not in settings:
            notices = (*notices, "The recipe does not say where its model is. Choose the model yourself.")
        pictures = write_uploads(recipe.pictures)
        controlled = page_settings(with_pictures(settings, pictures), catalogue)
        if settings.get(START_PICTURE) == "":
            pictures = {START_PICTURE: "", **pictures}
        extras = Extras.of(settings, recipe.spans).to_text()
        return cls(name, controlled, extras, pictures=pictures, notices=notices)

    @classmethod
    def of_preset(cls, preset: Recipe, name: str) -> Self:
        """Take the settings of a preset, which leave the rest of the form unchanged."""
        extras = Extras.of(preset.settings, ()).to_text()
        settings = with_lora_names(preset.settings)
        return cls(name, settings, extras, is_whole=False, notices=preset.notices)

    def to_dict(self) -> RestoredForm:
        data = {name: value for name, value in asdict(self).items() if name != "pictures"}
        text = json.dumps(data, ensure_ascii=False)
        return {"name": self.name, "pictures": dict(self.pictures), "text": text}


def page_settings(settings: Mapping[str, Any], catalogue: Catalogue) -> dict[str, Any]:
    """Select the settings that have controls, with the names by which the form knows model and LoRAs."""
    names = PAGE_SETTINGS.keys() - set(PICTURES)
    selected = {name: value for name, value in with_lora_names(settings).items() if name in names}
    return selected | {name: catalogue.name_of(selected[name]) for name in ("model",) if name in selected}


@contextlib.contextmanager
def _readable(job: Job) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(
            f"The files of job {job.id} cannot be read ({error.strerror}); expected its folder.",
            "Choose another video.",
        ) from error


def _uploaded_copy(job: Job, file: Path, name: str) -> Path:
    copy = uploads_folder() / job.id / name
    copy.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(file, copy)
    return copy


def continuation(path: Path, name: str, settings: Mapping[str, Any] | None = None) -> Restored:
    """Let the form continue a video among the uploads after its end, with other settings if any are given."""
    footage = read_footage(path)
    notice = f"The new video continues {name} ({footage.seconds:.1f} s)."
    extras = Extras.of({"video": upload_name(path)}, ()).to_text()
    pictures = write_last_frame(footage)
    return Restored(
        "", settings or {}, extras, is_whole=settings is not None, pictures=pictures, notices=(notice,)
    )


def continuation_of(job: Job, catalogue: Catalogue) -> Restored:
    """Let the form continue a job's video with its settings, in forward order if its model has that."""
    if job.state != "finished" or job.video is None or job.request.one_frame:
        raise InputError(
            f"Job {job.id} has no finished video; expected one to continue.", "Choose another video."
        )
    with _readable(job):
        copy = _uploaded_copy(job, job.video, job.video.name)
    changes = {TIMED_PICTURES: "", "loop": "off"}
    if "forward" in info_of(job.request.model).modes:
        changes["mode"] = "forward"
    settings = page_settings(json.loads(job.request.to_json()) | changes, catalogue)
    del settings["seed"]  # each continuation gets a new one
    return continuation(copy, "this one", settings)


def merged(
    restored_settings: Restored, current: Mapping[str, Any], catalogue: Catalogue
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Put restored settings in place of some of the form's values, and collect notices about them."""
    settings, notices = dict(restored_settings.settings), list(restored_settings.notices)
    model = settings.get("model", current.get("model", catalogue.preselected))
    if model not in catalogue.names:
        notices.append(
            f"This page does not offer the model {short_repr(model)}, so {catalogue.preselected} is chosen."
        )
        model = catalogue.preselected
    info = catalogue.info(model)
    if settings.get("mode") not in (None, *info.modes):
        notices.append(f"The model {info.title} does not support that order, so its own is chosen.")
    default_values = defaults(info, catalogue.planner)
    # Texts have no default, so those that a file does not contain become empty.
    default_values |= {"prompt": "", "negative": "", TIMED_PICTURES: ""}
    values = dict(default_values) if restored_settings.is_whole else {**default_values, **current}
    values |= {name: default_values.get(name) if value is None else value for name, value in settings.items()}
    values |= {"model": model, "extras": restored_settings.extras}
    if settings.get("seed") is not None:  # the same video again, until the user wants another
        values["random_seed"] = False
    if not (restored_settings.is_whole or restored_settings.extras):
        values["extras"] = current.get("extras", "")
    usable = usable_values(catalogue, json.dumps(values))
    notices += [
        f"{PAGE_SETTINGS[name].label} is {short_repr(value)}, which the form cannot hold. It stays unchanged."
        for name, value in settings.items()
        if name in PAGE_SETTINGS and value is not None and name not in (*usable, *PICTURES)
    ]
    return usable, tuple(notices)
