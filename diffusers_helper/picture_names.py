"""The names of a video's pictures, and their paths among its settings."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from diffusers_helper.request import PICTURES, SETTINGS, TIMED_PICTURES
from diffusers_helper.setting import text_of
from diffusers_helper.timed_pictures import MAX_PICTURES, timed_pictures_of


def timed_picture_name(number: int) -> str:
    """Name one of the pictures at times, which count from 1."""
    return f"{TIMED_PICTURES}_{number}"


def is_picture_name(name: str) -> bool:
    return name in PICTURES or name in {timed_picture_name(number) for number in range(1, MAX_PICTURES + 1)}


def paths_in(settings: Mapping[str, Any]) -> dict[str, str]:
    numbered = enumerate(timed_pictures_of(str(settings.get(TIMED_PICTURES) or "")), 1)
    single = {name: str(path) for name in PICTURES if (path := settings.get(name))}
    return single | {timed_picture_name(number): picture.file for number, picture in numbered}


def with_pictures(settings: Mapping[str, Any], paths: Mapping[str, str]) -> dict[str, Any]:
    changed = {**settings, **{name: path for name, path in paths.items() if name in SETTINGS}}
    if pictures := timed_pictures_of(str(settings.get(TIMED_PICTURES) or "")):
        changed[TIMED_PICTURES] = text_of(
            replace(picture, file=paths.get(timed_picture_name(number), picture.file))
            for number, picture in enumerate(pictures, 1)
        )
    return changed
