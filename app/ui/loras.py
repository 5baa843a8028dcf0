"""The LoRAs that the page offers, which are those in one folder, known to the page by name alone."""

import os
from collections.abc import Mapping
from typing import Any

from diffusers_helper.lora_choice import lora_folder, with_paths, with_relative_names


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
