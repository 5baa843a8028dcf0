"""The wishes of a person about a job that is being made, as empty files in its folder.

Any process may leave one. The process that makes the job looks for them at each sign of life of its engine,
and they outlast its death. They are empty so that a full disk still takes them.
"""

from __future__ import annotations

from typing import Literal

from diffusers_helper.files import sync_folder
from diffusers_helper.output.job_folder import JobFolder

Wish = Literal["cancel", "pause", "stop_after_section"]
WISHES: tuple[Wish, ...] = ("cancel", "pause", "stop_after_section")
_PREFIX = "wish-"


def leave_wish(folder: JobFolder, wish: Wish) -> None:
    """Leave a wish, which is on the disk when this returns.

    Raises:
        OSError: If it cannot be written.
    """
    (folder.path / f"{_PREFIX}{wish}").touch()
    sync_folder(folder.path)


def wishes_of(folder: JobFolder) -> set[Wish]:
    """Return the wishes that were not fulfilled yet."""
    return {wish for wish in WISHES if (folder.path / f"{_PREFIX}{wish}").exists()}


def withdraw_wish(folder: JobFolder, wish: Wish) -> None:
    """Remove a wish, if it was left."""
    (folder.path / f"{_PREFIX}{wish}").unlink(missing_ok=True)


def forget_wishes(folder: JobFolder) -> None:
    """Remove the wishes, since they are fulfilled or have lost their object."""
    for wish in WISHES:
        withdraw_wish(folder, wish)
