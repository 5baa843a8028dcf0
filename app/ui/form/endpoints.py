"""The endpoints of the form: files that restore its settings, and presets. They return plain data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from app.presets import (
    START,
    import_preset,
    load_preset,
    preset_names,
    presets_folder,
    remove_preset,
    save_preset,
)
from app.ui.catalogue import Catalogue
from app.ui.form.extras import Extras
from app.ui.form.restore import Restored
from app.ui.form.settings import PAGE_ONLY, to_request
from app.ui.pictures import offered_end, upload_path
from diffusers_helper.conditions.footage import read_footage
from diffusers_helper.errors import InputError
from diffusers_helper.models.registry import model_names
from diffusers_helper.provenance.recipe import read_recipe
from diffusers_helper.request import CROPS, PICTURES, SETTINGS
from diffusers_helper.strangers.limited_json import parse_json

_MOST_NAME = 80  # characters of a file's name in a message
# A picture belongs to one video, and so do its prompt and its crop.
_NOT_KEPT = (*PICTURES, *CROPS, "prompt")


class FormCalls:
    """The endpoints of the form. Each raises InputError if an argument cannot be used."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue

    @property
    def all(self) -> tuple[Any, ...]:
        """Return all endpoints."""
        return (
            self.recipe_read, self.preset_list, self.preset_load, self.preset_save, self.preset_import,
            self.preset_export, self.preset_default, self.preset_remove, self.video_continue,
        )  # fmt: skip

    def recipe_read(self, file: dict[str, Any], name: str = "the file") -> dict[str, Any]:
        """Return the settings in an uploaded MP4, PNG or JSON file for the form, and its picture's path.

        Args:
            file: The upload: an object with the `path` that the route for uploads returned.
            name: The file's name, for messages.
        """
        return Restored.of_recipe(read_recipe(uploaded(file)), name[:_MOST_NAME], self._catalogue).to_dict()

    def video_continue(self, file: dict[str, Any], name: str = "the file") -> dict[str, Any]:
        """Return what the form needs to continue an uploaded video, in the form of `recipe_read`.

        Args:
            file: The upload, as for `recipe_read`.
            name: The file's name, for messages.
        """
        path, name = uploaded(file), name[:_MOST_NAME]
        found = read_footage(path)
        notice = f"The new video continues {name} ({found.seconds:.1f} s)."
        extras = Extras.of({"video": str(path)}, ()).to_text()
        pictures = offered_end(found)
        return Restored(name, {}, extras, is_whole=False, pictures=pictures, notices=(notice,)).to_dict()

    def preset_list(self) -> list[str]:
        """Return the names of the presets, sorted. The page begins with the one that is named "start"."""
        return list(preset_names(presets_folder()))

    def preset_load(self, name: str) -> dict[str, Any]:
        """Return the settings of a preset, for the form."""
        found = load_preset(presets_folder(), name)
        title = "the default preset" if name == START else f"the preset “{name}”"
        return Restored.of_preset(found, title).to_dict()

    def preset_save(self, name: str, form: str) -> list[str]:
        """Save the settings of the form, except picture, crop and prompt, as a preset.

        Args:
            name: The preset's name; an older one of that name is replaced.
            form: The form's values by name, as JSON.

        Returns:
            The names of all presets.
        """
        save_preset(presets_folder(), name, self._settings(form))
        return self.preset_list()

    def preset_import(self, name: str, file: dict[str, Any]) -> list[str]:
        """Save the settings of an uploaded file with a recipe as a preset, and return the names of all."""
        import_preset(presets_folder(), name, uploaded(file))
        return self.preset_list()

    def preset_export(self, name: str) -> str:
        """Return the JSON of a preset, which `preset_import` and the command line read."""
        found = load_preset(presets_folder(), name)
        return json.dumps(dict(found.settings), ensure_ascii=False, indent=1)

    def preset_default(self, name: str) -> list[str]:
        """Make a preset the one with which the page begins, and return the names of all."""
        folder = presets_folder()
        save_preset(folder, START, load_preset(folder, name).settings)
        return self.preset_list()

    def preset_remove(self, name: str) -> list[str]:
        """Remove a preset, and return the names of the others."""
        remove_preset(presets_folder(), name)
        return self.preset_list()

    def _settings(self, form: str) -> dict[str, Any]:
        known = form_values(form)
        is_random = known.get("random_seed") is True
        info = self._catalogue.info(str(known.get("model", self._catalogue.preselected)))
        request = to_request(known, info, self._catalogue.planner)
        left_out = [*_NOT_KEPT, *(["seed"] if is_random else [])]
        if request.get("model") not in model_names():  # a folder, which may be moved
            left_out.append("model")
        return {name: value for name, value in request.items() if name not in left_out}


def form_values(form: str) -> dict[str, Any]:
    """Return the form's values by name, without pictures, given their JSON.

    Raises:
        InputError: If it is not the JSON of an object.
    """
    try:
        values: Any = parse_json(form.encode())
    except ValueError as error:
        raise InputError("The form is not JSON; expected its values by name.", "Reload the page.") from error
    if not isinstance(values, dict):
        raise InputError("The form is not a JSON object; expected its values by name.", "Reload the page.")
    return {name: values[name] for name in (*SETTINGS, *PAGE_ONLY) if name in values and name not in PICTURES}


def uploaded(file: dict[str, Any]) -> Path:
    """Return the path of an uploaded file, given its description.

    Raises:
        InputError: If it does not describe an upload.
    """
    path = upload_path(file, "file")
    if not path:
        raise InputError("There is no file; expected an upload.", "Choose a file.")
    return Path(path)
