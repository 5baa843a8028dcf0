"""The folder with a user's LoRAs, from which the page and the command line choose by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from diffusers_helper.errors import InputError, short_repr
from diffusers_helper.files import given_path, named_folder
from diffusers_helper.lora_choice import Choice, choices_of
from diffusers_helper.setting import text_of

VARIABLE = "LONGTAKE_LORAS"
_SUFFIX = ".safetensors"


def lora_folder(environ: Mapping[str, str]) -> Path:
    """Return the folder that the environment names, or `loras` in the current folder. It need not exist.

    Raises:
        InputError: If there is no such home folder.
    """
    return named_folder(environ, VARIABLE, "loras")


def lora_names(folder: Path) -> tuple[str, ...]:
    """Return the files in the folder and its folders, sorted, by their paths relative to it."""
    found = (path.relative_to(folder).as_posix() for path in folder.rglob(f"*{_SUFFIX}") if path.is_file())
    return tuple(sorted(found, key=str.lower))


def within(text: str, folder: Path) -> str:
    """Return a text of LoRAs with paths in place of names, which have to be those of files in the folder.

    Raises:
        InputError: If there is no such file, or the name fits several.
    """
    names = lora_names(folder)
    return text_of(replace(one, file=str(folder / _found(one, names))) for one in choices_of(text))


def located(text: str, folder: Path, start: Path = Path()) -> str:
    """Return a text of LoRAs with absolute paths in place of paths, or of names of files in the folder.

    Args:
        text: The text of the setting `lora`.
        start: The folder that paths are relative to.

    Raises:
        InputError: If there is no such file.
    """

    def place(one: Choice) -> str:
        path = start / given_path(one.file, "lora")
        return str(path.absolute() if path.is_file() else folder / _found(one, lora_names(folder)))

    return text_of(replace(one, file=place(one)) for one in choices_of(text))


def relative(text: str, folder: Path) -> str:
    """Return a text of LoRAs with the names by which `within` finds the files, in place of paths."""

    def name(one: Choice) -> str:
        path = Path(one.file)
        return path.relative_to(folder).as_posix() if path.is_relative_to(folder) else path.name

    return text_of(replace(one, file=name(one)) for one in choices_of(text))


def _found(one: Choice, names: tuple[str, ...]) -> str:
    """Return the file of a choice among those of the folder: by its whole name, or by the last part of it."""
    wanted = one.file.removesuffix(_SUFFIX) + _SUFFIX
    if wanted in names:
        return wanted
    alike = [name for name in names if "/" not in wanted and Path(name).name == wanted]
    if len(alike) == 1:
        return alike[0]
    if alike:
        raise InputError(
            setting="lora", found=f"names {short_repr(wanted)}, which lies in several folders",
            expected=f"one of {', '.join(alike)}", remedy="Name it with its folder.",
        )  # fmt: skip
    raise InputError(
        setting="lora", found=f"names {short_repr(Path(wanted).name)}, which is not in the folder for LoRAs",
        expected="a safetensors file there", remedy="Put it there, or choose another one.",
    )  # fmt: skip
