"""The form's values: the initial ones, those that a browser kept, and the request made from them.

Settings of an earlier video that have no controls are carried in a hidden field, as `Extras`.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from app.batch import random_seed
from app.ui.catalogue import Catalogue
from app.ui.planner import Planner
from app.ui.timeline import SECTION_WORDS, directed
from diffusers_helper.errors import InputError
from diffusers_helper.models.registry import ModelInfo
from diffusers_helper.provenance.lineage import Lineage, Span
from diffusers_helper.request import PICTURES, PLACED, SETTINGS
from diffusers_helper.setting import MAX_PROMPT_CHARACTERS, SettingInfo
from diffusers_helper.strangers.limited_json import parse_json

_MOST_CHARACTERS = 200_000
# Above this bound a browser's numbers have gaps, so it could send a different seed from the one it shows.
PAGE_SEED = replace(SETTINGS["seed"], high=2**53 - 1)
PAGE_SETTINGS: dict[str, SettingInfo] = {
    name: setting for name, setting in SETTINGS.items() if setting.on_page
} | {"seed": PAGE_SEED}
_TEXTS = ("prompt", "negative", "lora", PLACED)
VARIANTS = SettingInfo(
    "Videos at Once", "Each start makes this many videos, which differ only in their seeds.", "Look",
    low=1, high=50, name="variants", kind=int, default=1,
)  # fmt: skip
AFTER_SECTION = SettingInfo(
    "After Each Section",
    "While it waits, the device is free; closing the page loses nothing.",
    "What to make",
    choices={"go_on": "Go on by itself", "wait": "Wait for me"}, name="after_section", default="go_on",
)  # fmt: skip
OF_A_START = {one.name: one for one in (VARIANTS, AFTER_SECTION)}
"""The controls of the form that say how videos are started, and are no settings of them."""
# The form's values that are not settings of a video, with their defaults.
PAGE_ONLY: dict[str, Any] = {"random_seed": False, "extras": ""}
PAGE_ONLY |= {name: one.default for name, one in OF_A_START.items()}


@dataclass(frozen=True, slots=True)
class Extras:
    """The settings without controls.

    Attributes:
        settings: Settings that have no controls, such as the sampler, by name.
        spans: The spans of first sections that were made with other settings.
    """

    settings: Mapping[str, Any]
    spans: tuple[Span, ...] = ()

    @classmethod
    def of(cls, settings: Mapping[str, Any], spans: tuple[Span, ...]) -> Self:
        """Return the settings of a video that must be carried: unusual ones that have no control."""
        unusual = {
            name: value for name, value in settings.items()
            if name in SETTINGS and not SETTINGS[name].on_page and value != SETTINGS[name].default
        }  # fmt: skip
        return cls(unusual, spans)

    def to_text(self) -> str:
        """Return the content of the hidden field, or "" if there is nothing to carry."""
        if not self.settings and not self.spans:
            return ""
        spans = [span.to_dict() for span in self.spans]
        return json.dumps({"settings": dict(self.settings), "earlier": spans}, ensure_ascii=False)

    @classmethod
    def from_text(cls, text: object) -> Self:
        """Return the content of the hidden field, which is JSON of unknown origin.

        Raises:
            InputError: If it is not what `to_text` wrote.
        """
        if not isinstance(text, str) or not text:
            return cls({})
        try:
            data: Any = parse_json(text.encode()) if len(text) <= _MOST_CHARACTERS else None
            settings = {name: SETTINGS[name].check(value) for name, value in data["settings"].items()}
            return cls(settings, tuple(Span.from_dict(item) for item in data["earlier"]))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise InputError(
                "The settings of the earlier video cannot be read.", "Forget them, or restore them again."
            ) from error

    @property
    def lineage(self) -> Lineage:
        """Return the lineage of a job that is made with these settings."""
        return Lineage(self.spans)

    @property
    def words(self) -> str:
        """Return sentences about the carried settings, or "" if there are none."""
        reported = [
            f"{SETTINGS[name].label}: {SETTINGS[name].shown(value)}" for name, value in self.settings.items()
        ]
        if self.spans:
            last = self.spans[-1].last
            these = "The first section is" if last == 1 else f"The first {last} sections are"
            reported.append(f"{these} made with the settings of the video that was branched.")
        return " ".join(f"{one.rstrip('.')}." for one in reported)


def defaults(info: ModelInfo, planner: Planner) -> dict[str, Any]:
    """Return the defaults of all settings except pictures, prompt and model, for a model and this machine."""
    own = {**info.own_settings, "resolution": info.side}
    values = {name: setting.default for name, setting in PAGE_SETTINGS.items()} | own | planner.defaults
    values |= PAGE_ONLY
    return {name: values[name] for name in values if name not in (*PICTURES, PLACED, "prompt", "model")}


def to_request(settings: dict[str, Any], info: ModelInfo, planner: Planner) -> dict[str, Any]:
    """Return the form's values as a request, with resolution and memory only if they were changed.

    Raises:
        InputError: For a seed that a browser cannot hold exactly, or settings of an earlier video that
            cannot be read.
    """
    extras = Extras.from_text(settings.get("extras"))
    own = {name: value for name, value in settings.items() if name not in PAGE_ONLY}
    if own.pop(SECTION_WORDS, ""):
        own["prompt"] = directed(settings, info.family)
    settings = own | planner.own(own) | dict(extras.settings)
    seed = settings.get("seed")
    if isinstance(seed, int | float) and seed > PAGE_SEED.high:
        raise InputError(
            setting="seed", found="is larger than a browser can hold exactly", expected=PAGE_SEED.expected,
            remedy=f"Choose a smaller one; the command line takes {SETTINGS['seed'].expected}.",
        )  # fmt: skip
    settings |= {name: "" for name in _TEXTS if settings.get(name) is None}  # a field that was never touched
    if settings.get("resolution") == info.side:
        settings["resolution"] = None
    return settings


def waits(settings: dict[str, Any]) -> bool:
    """Return whether a video of the form's values waits for a user after each section."""
    return AFTER_SECTION.check(settings.get(AFTER_SECTION.name, AFTER_SECTION.default)) == "wait"


def seed_of(settings: dict[str, Any]) -> Any:
    """Return the seed for a start with the form's values: the form's own, or a new random one."""
    return random_seed() if settings.get("random_seed") is True else settings.get("seed")


def restored(catalogue: Catalogue, text: object) -> dict[str, Any]:
    """Return the usable part of the values that a browser kept, as JSON of unknown origin."""
    try:
        kept = parse_json(text.encode()) if isinstance(text, str) else None
    except ValueError:
        kept = None
    if not isinstance(kept, dict):
        return {}
    model = kept.get("model")
    if model not in catalogue.names:
        model = catalogue.preselected
    info = catalogue.info(model)
    usable = {"model": model, "mode": kept.get("mode") if kept.get("mode") in info.modes else info.modes[0]}
    for name, setting in PAGE_SETTINGS.items():
        value = kept.get(name)
        if name in _TEXTS and isinstance(value, str):
            value = value[:MAX_PROMPT_CHARACTERS]
        # The orders depend on the model, which has been asked above.
        is_kept = name in _TEXTS or setting.is_number or (setting.choices and name != "mode")
        if value is not None and is_kept:
            with contextlib.suppress(InputError):
                usable[name] = setting.check(value)
    for name, one in OF_A_START.items():
        with contextlib.suppress(InputError):
            usable[name] = one.check(kept.get(name))
    with contextlib.suppress(InputError, KeyError):
        usable["extras"] = Extras.from_text(kept["extras"]).to_text()
    if isinstance(kept.get("random_seed"), bool):
        usable["random_seed"] = kept["random_seed"]
    return usable
