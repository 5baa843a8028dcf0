"""Presets, which are named sets of settings in plain JSON files that people may copy and edit."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from platformdirs import user_config_path

from app.machine import user_folder
from diffusers_helper.errors import InputError
from diffusers_helper.files import write_atomic
from diffusers_helper.provenance.recipe import Recipe, read_recipe
from diffusers_helper.request import PICTURES, SETTINGS, TIMED_PICTURES
from diffusers_helper.setting import check_names

START = "start"
"""The name of the preset whose settings the page starts with, if it exists."""
_MAX_NAME = 50


def presets_folder() -> Path:
    return user_folder(user_config_path, "presets", "XDG_CONFIG_HOME") / "presets"


def preset_names(folder: Path) -> tuple[str, ...]:
    return tuple(sorted(file.stem for file in folder.glob("[!.]*.json")))


def save_preset(folder: Path, name: str, settings: Mapping[str, Any]) -> Path:
    file = _file(folder, name)
    check_names(settings, SETTINGS)
    excluded = (*PICTURES, TIMED_PICTURES)
    values = {key: SETTINGS[key].check(value) for key, value in settings.items() if key not in excluded}
    if not values:
        raise InputError("The preset has no setting; expected at least one.", "Give a setting.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(file, json.dumps(values, ensure_ascii=False, indent=1).encode() + b"\n")
    except OSError as error:
        raise InputError(
            f"The preset cannot be written to {folder} ({error.strerror}); expected a writable folder.",
            "Free disk space, or change the folder's rights.",
        ) from error
    return file


def load_preset(folder: Path, name: str) -> Recipe:
    """Read a preset, with notices about settings that this version cannot use."""
    file = _file(folder, name)
    if not file.is_file():
        names = ", ".join(preset_names(folder)) or "none, since none has been saved"
        raise InputError(f"There is no preset {name!r}; expected one of: {names}.", "Choose another name.")
    return read_recipe(file)


def start_settings(folder: Path) -> Recipe:
    return load_preset(folder, START) if _file(folder, START).is_file() else Recipe({})


def remove_preset(folder: Path, name: str) -> None:
    _file(folder, name).unlink(missing_ok=True)


def _file(folder: Path, name: str) -> Path:
    is_valid = name.strip() == name and 0 < len(name) <= _MAX_NAME and name.isprintable()
    if not is_valid or name.startswith(".") or any(c in '/\\:*?"<>|' for c in name):
        raise InputError(
            f"The preset's name is {name!r}; expected 1 to {_MAX_NAME} characters that are common in file "
            "names.",
            "Choose another name.",
        )
    return folder / f"{name}.json"
