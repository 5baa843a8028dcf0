"""The LoRAs that the page offers, which are those in one folder, known to the page by name alone."""

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from app.ui.errors import page_error
from diffusers_helper.errors import InputError
from diffusers_helper.lora_choice import (
    MAX_WEIGHT,
    Choice,
    lora_folder,
    lora_names,
    parsed_choices,
    with_paths,
    with_relative_names,
)
from diffusers_helper.setting import text_of
from diffusers_helper.weights.lora_files import triggers_of

_MAX_LISTED = 500


def with_lora_files(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Replace the names of LoRAs by paths; refuse any name that is not in the folder."""
    text = settings.get("lora")
    if not isinstance(text, str) or not text.strip():
        return dict(settings)
    return {**settings, "lora": with_paths(text, lora_folder(os.environ))}


def with_lora_names(settings: Mapping[str, Any]) -> dict[str, Any]:
    if not settings.get("lora"):
        return dict(settings)
    return {**settings, "lora": with_relative_names(settings["lora"], lora_folder(os.environ))}


class LoraCalls:
    def lora_list(self) -> dict[str, Any]:
        """List the files in the folder for LoRAs, with their trigger words, or why they cannot be used."""
        folder = lora_folder(os.environ)
        names = lora_names(folder)
        files = list[dict[str, Any]]()
        for name in names[:_MAX_LISTED]:
            triggers, problem = list[str](), ""
            try:
                triggers = list(triggers_of(folder / name))
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
