"""The settings of an earlier video, a preset or a file, on their way into the form."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from app.jobs.job import Job
from app.ui.catalogue import Catalogue
from app.ui.form.settings import PAGE_SETTINGS, Extras, defaults, restored
from app.ui.loras import with_lora_names
from app.ui.pictures import offered, uploads_folder
from diffusers_helper.conditions.pictures import kept_pictures, named_pictures
from diffusers_helper.errors import InputError, short_repr
from diffusers_helper.provenance.job_folder import JobFolder
from diffusers_helper.provenance.lineage import Lineage, Span
from diffusers_helper.provenance.recipe import Recipe
from diffusers_helper.request import PICTURES, START_PICTURE, with_pictures
from diffusers_helper.strangers.limited_json import parse_json

_MOST_NAME, _MOST_NOTICE, _MOST_NOTICES = 200, 1000, 50


@dataclass(frozen=True, slots=True)
class Restored:
    """The settings of an earlier video, a preset or a file.

    Attributes:
        settings: The settings that the form has controls for; None stands for the default.
        extras: The content of the form's hidden field.
        is_whole: Whether missing settings get their defaults, instead of staying as they are.
        pictures: The paths of the pictures among the uploads, by setting; "" for a video from words alone.
        notices: Sentences about settings that could not be restored.
    """

    name: str
    settings: Mapping[str, Any]
    extras: str = ""
    is_whole: bool = True
    pictures: Mapping[str, str] = field(default_factory=dict[str, str])
    notices: tuple[str, ...] = ()

    @classmethod
    def of_job(cls, job: Job, catalogue: Catalogue) -> Self:
        """Return the settings of a job.

        Raises:
            InputError: If its folder cannot be read.
        """
        folder = JobFolder(job.folder)
        settings = json.loads(job.request.to_json())
        try:
            if settings["video"]:
                copy = uploads_folder() / job.id / "original.mp4"
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(folder.original, copy)
                settings["video"] = str(copy)
            pictures = offered(kept_pictures(folder, named_pictures(job.request)))
            spans = Lineage.read(folder.lineage).spans
        except OSError as error:
            raise InputError(
                f"The files of job {job.id} cannot be read ({error.strerror}); expected its folder.",
                "Choose another video.",
            ) from error
        return cls._of(f"job {job.id}", settings, spans, catalogue, pictures)

    @classmethod
    def of_recipe(cls, recipe: Recipe, name: str, catalogue: Catalogue) -> Self:
        notices = recipe.notices
        if "model" not in recipe.settings:
            notices = (*notices, "The recipe does not say where its model is. Choose the model yourself.")
        return cls._of(name, recipe.settings, recipe.spans, catalogue, offered(recipe.pictures), notices)

    @classmethod
    def of_preset(cls, preset: Recipe, name: str) -> Self:
        """Return the settings of a preset, which leave the rest of the form unchanged."""
        extras = Extras.of(preset.settings, ()).to_text()
        settings = with_lora_names(preset.settings)
        return cls(name, settings, extras, is_whole=False, notices=preset.notices)

    @classmethod
    def _of(
        cls,
        name: str,
        settings: Mapping[str, Any],
        spans: tuple[Span, ...],
        catalogue: Catalogue,
        pictures: Mapping[str, str],
        notices: tuple[str, ...] = (),
    ) -> Self:
        extras = Extras.of(settings, spans).to_text()
        known = with_lora_names(with_pictures(settings, pictures))
        shown = {key: value for key, value in known.items() if key in PAGE_SETTINGS and key not in PICTURES}
        if "model" in shown:
            shown["model"] = catalogue.name_of(shown["model"])
        none = {START_PICTURE: ""} if settings.get(START_PICTURE) == "" else {}
        return cls(name, shown, extras, pictures={**none, **pictures}, notices=notices)

    def to_dict(self) -> dict[str, Any]:
        """Return the data that the script passes on to the form: the pictures' paths, and the rest as text.

        A browser would round the large numbers among the settings if it read them.
        """
        rest = {name: value for name, value in asdict(self).items() if name != "pictures"}
        return {
            "name": self.name,
            "pictures": dict(self.pictures),
            "text": json.dumps(rest, ensure_ascii=False),
        }

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Return the settings in a text written by `to_dict`. The text may be of unknown origin.

        Raises:
            ValueError, TypeError, KeyError, AttributeError: For any other text.
        """
        data = parse_json(text.encode())
        return cls(
            str(data["name"])[:_MOST_NAME],
            dict(data["settings"].items()),
            str(data["extras"]),
            bool(data["is_whole"]),
            notices=tuple(str(one)[:_MOST_NOTICE] for one in data["notices"][:_MOST_NOTICES]),
        )


def merged(
    found: Restored, kept: Mapping[str, Any], catalogue: Catalogue
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the values of the form with restored settings, and notices about them.

    Args:
        kept: The form's former values, without those that are this machine's defaults.
    """
    given, notices = dict(found.settings), list(found.notices)
    model = given.get("model", kept.get("model", catalogue.preselected))
    if model not in catalogue.names:
        notices.append(
            f"This page does not offer the model {short_repr(model)}, so {catalogue.preselected} is chosen."
        )
        model = catalogue.preselected
    info = catalogue.info(model)
    if given.get("mode") not in (None, *info.modes):
        notices.append(f"The model {info.title} does not support that order, so its own is chosen.")
    usual = defaults(info, catalogue.planner)
    # Texts have no default, so those that a file does not contain become empty.
    usual |= {"prompt": "", "negative": ""}
    values = dict(usual) if found.is_whole else {**usual, **kept}
    values |= {name: usual.get(name) if value is None else value for name, value in given.items()}
    extras = found.extras if found.is_whole or found.extras else kept.get("extras", "")
    values |= {"model": model, "extras": extras}
    usable = restored(catalogue, json.dumps(values))
    notices += [
        f"{PAGE_SETTINGS[name].label} is {short_repr(value)}, which the form cannot hold. It stays unchanged."
        for name, value in given.items()
        if name in PAGE_SETTINGS and value is not None and name not in (*usable, *PICTURES)
    ]
    return usable, tuple(notices)
