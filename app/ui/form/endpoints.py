"""The calls of files and presets: what restores the form's settings, and what is dropped on it."""

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from app import presets
from app.batch import batch_lines, random_seed
from app.jobs.service import JobService
from app.ui.catalogue import Catalogue
from app.ui.errors import page_error
from app.ui.form.settings import PAGE_ONLY, Restored, RestoredForm, continuation, defaults, to_request, waits
from app.ui.pictures import Upload, add_upload, upload_name, upload_path, uploaded
from diffusers_helper.conditions.film import ENDINGS
from diffusers_helper.errors import InputError, LongtakeError, short_repr
from diffusers_helper.files import weight_names
from diffusers_helper.lora_choice import MAX_WEIGHT, Choice, lora_folder, parsed_choices
from diffusers_helper.models.registry import model_names
from diffusers_helper.picture_names import paths_in, with_pictures
from diffusers_helper.provenance.recipe import read_recipe
from diffusers_helper.request import CROPS, PICTURES, SETTINGS, START_PICTURE, TIMED_PICTURES
from diffusers_helper.setting import text_of
from diffusers_helper.untrusted.limited_json import json_or_none
from diffusers_helper.weights.lora_files import read_lora

_MOST_NAME = 80  # characters of a file's name in a message
_MAX_LISTED = 500  # LoRAs
# A picture belongs to one video, and so do its prompt and its crop.
_NOT_KEPT = (*PICTURES, TIMED_PICTURES, *CROPS, "crop_y", "zoom", "prompt")


class FormCalls:
    def __init__(self, service: JobService, catalogue: Catalogue) -> None:
        self._service, self._catalogue = service, catalogue

    def recipe_read(self, file: Upload, name: str = "the file") -> RestoredForm:
        """Read the settings in an uploaded MP4, PNG or JSON file for the form, and its picture's path.

        Args:
            file: The upload: an object with the `path` that the route for uploads returned.
            name: The file's name, for messages.
        """
        return Restored.of_recipe(read_recipe(uploaded(file)), name[:_MOST_NAME], self._catalogue).to_dict()

    def preset_list(self) -> list[str]:
        """List the names of the presets, sorted. The page begins with the one that is named "start"."""
        return list(presets.preset_names(presets.presets_folder()))

    def preset_load(self, name: str) -> RestoredForm:
        """Give the settings of a preset, for the form."""
        preset = presets.load_preset(presets.presets_folder(), name)
        title = "the default preset" if name == presets.START else f"the preset “{name}”"
        return Restored.of_preset(preset, title).to_dict()

    def preset_save(self, name: str, form: str) -> list[str]:
        """Save the settings of the form, except picture, crop and prompt, as a preset.

        Args:
            name: The preset's name; an older one of that name is replaced.
            form: The form's values by name, as JSON.

        Returns:
            The names of all presets.
        """
        presets.save_preset(presets.presets_folder(), name, self._preset_settings(form))
        return self.preset_list()

    def preset_import(self, name: str, file: Upload) -> list[str]:
        """Save the settings of an uploaded file with a recipe as a preset, and return the names of all."""
        presets.save_preset(presets.presets_folder(), name, read_recipe(uploaded(file)).settings)
        return self.preset_list()

    def preset_export(self, name: str) -> str:
        """Give the JSON of a preset, which `preset_import` and the command line read."""
        preset = presets.load_preset(presets.presets_folder(), name)
        return json.dumps(dict(preset.settings), ensure_ascii=False, indent=1)

    def preset_default(self, name: str) -> list[str]:
        """Make a preset the one with which the page begins, and return the names of all."""
        folder = presets.presets_folder()
        presets.save_preset(folder, presets.START, presets.load_preset(folder, name).settings)
        return self.preset_list()

    def preset_remove(self, name: str) -> list[str]:
        """Remove a preset, and return the names of the others."""
        presets.remove_preset(presets.presets_folder(), name)
        return self.preset_list()

    def file_read(self, file: Upload, name: str = "the file") -> RestoredForm | dict[str, str]:
        """Tell what an uploaded file brings to the form, as `recipe_read` does; nothing for a mere picture.

        A video without settings is continued.

        Args:
            file: The upload, as for `recipe_read`.
            name: The file's name, for messages.
        """
        path, name = uploaded(file), name[:_MOST_NAME]
        is_video = any(text.lower().endswith(ENDINGS) for text in (name, path.name))
        try:
            restored = Restored.of_recipe(read_recipe(path), name, self._catalogue)
            return replace(restored, video=upload_name(path) if is_video else "").to_dict()
        except InputError:
            if name.lower().endswith(".json"):
                raise
        if not is_video:
            self.picture_check(file)
            return {}
        return continuation(path, name).to_dict()

    def file_continue(self, file: Upload, name: str = "the file") -> RestoredForm:
        """Return what lets the form continue an uploaded video, also one with settings of its own."""
        return continuation(uploaded(file), name[:_MOST_NAME]).to_dict()

    def lora_list(self) -> dict[str, Any]:
        """List the files in the folder for LoRAs, with their trigger words, or why they cannot be used."""
        folder = lora_folder(os.environ)
        names = weight_names(folder)
        files = list[dict[str, Any]]()
        for name in names[:_MAX_LISTED]:
            triggers, problem = list[str](), ""
            try:
                triggers = list(read_lora(folder / name).triggers)
            except InputError as error:
                problem = " ".join(page_error(error)).strip()
            files.append({"name": name, "triggers": triggers, "problem": problem})
        return {"folder": folder.name, "files": files, "more": max(0, len(names) - _MAX_LISTED)}

    def lora_choose(self, lora: str, name: str, weight: float | None) -> str:
        """Write the setting `lora` with a file's weight, at most the largest; without the file for None."""
        choices = {choice.file: choice for choice in parsed_choices(lora)}
        clamped = min(max(weight or 0.0, -MAX_WEIGHT), MAX_WEIGHT)
        choices[name] = replace(choices.get(name, Choice(name)), weight=clamped)
        return text_of(choice for choice in choices.values() if choice.file != name or weight is not None)

    def lora_add(self, file: Upload, name: str) -> str:
        """Copy an uploaded LoRA to the folder for LoRAs, and return the name by which it is chosen."""
        read_lora(uploaded(file))  # refuses what is no LoRA
        return add_upload(file, name, lora_folder(os.environ), (".safetensors",))

    def picture_check(self, file: Upload) -> list[int]:
        """Measure the width and the height of an uploaded picture, or refuse it."""
        picture = self._catalogue.planner.pictures.judge(str(uploaded(file)))
        if isinstance(picture, InputError):
            raise picture
        return [picture.width, picture.height]

    def batch_add(self, file: Upload, pictures: dict[str, Upload], form: str) -> list[str]:
        """Queue a video for each line of an uploaded CSV or JSON-lines file, or none if one cannot be used.

        Args:
            file: The upload, as for `recipe_read`.
            pictures: The uploaded pictures by the names that lines give; "" is for lines without one.
            form: The form's values by name, as JSON, for what a line leaves out.

        Returns:
            The ids of the jobs.
        """
        path = uploaded(file)
        picture_paths = {name: upload_path(upload.model_dump(), "image") for name, upload in pictures.items()}
        wanted = list[dict[str, Any]]()
        for line, settings in batch_lines(path):
            try:
                if isinstance(settings, str):
                    raise InputError(settings)
                wanted.append(self._line_settings(settings, form, picture_paths))
                self._catalogue.check(wanted[-1])
            except LongtakeError as error:
                raise InputError(
                    f"Line {line} of {path.name} cannot be used, so nothing was queued. {error}",
                    "Correct the line and drop the file again.",
                ) from error
        how = {"waits": waits(form_values(form))}
        added = (self._catalogue.submit(self._service, settings, **how) for settings in wanted)
        return [job.id for job in self._service.all_or_none(added)]

    def _line_settings(self, line: dict[str, Any], form: str, files: Mapping[str, str]) -> dict[str, Any]:
        values = form_values(form)
        model = line.get("model", values.get("model", self._catalogue.preselected))
        info, planner = self._catalogue.info(model), self._catalogue.planner
        # Steps, guidance and size of another model would not suit this one.
        usual = defaults(info, planner) | {"random_seed": False}  # a program says so if it wants another
        values = usual | (values if values.get("model", model) == model else {})
        seed = random_seed() if values["random_seed"] is True else values["seed"]
        values |= {"seed": seed, "model": model}
        return to_request(values, info, planner) | _with_uploads(line, files)

    def _preset_settings(self, form: str) -> dict[str, Any]:
        values = form_values(form)
        is_random = values.get("random_seed") is True
        info = self._catalogue.info(str(values.get("model", self._catalogue.preselected)))
        request = to_request(values, info, self._catalogue.planner)
        left_out = [*_NOT_KEPT, *(["seed"] if is_random else [])]
        if request.get("model") not in model_names():  # a folder, which may be moved
            left_out.append("model")
        return {name: value for name, value in request.items() if name not in left_out}


def form_values(form: str) -> dict[str, Any]:
    """Read the form's values by name, without pictures, from their JSON."""
    values = json_or_none(form)
    if not isinstance(values, dict):
        raise InputError("The form is not a JSON object; expected its values by name.", "Reload the page.")
    return {name: values[name] for name in (*SETTINGS, *PAGE_ONLY) if name in values and name not in PICTURES}


def _with_uploads(line: Mapping[str, Any], picture_paths: Mapping[str, str]) -> dict[str, Any]:
    wanted = ({START_PICTURE: ""} if "" in picture_paths else {}) | paths_in(line)
    for file in wanted.values():
        if file not in picture_paths:
            raise InputError(
                f"Its picture {short_repr(file)} was not dropped with the file.",
                "Drop the file together with its pictures.",
            )
    return with_pictures(line, {name: picture_paths[file] for name, file in wanted.items()})
