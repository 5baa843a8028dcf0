"""The commands of users for a job that is being made, which are empty files in the job's folder.

Any process may leave one. The process that makes the job looks for them at each sign of life of its engine,
and at least twice a second; they outlast its death. Empty files can be created even on a full disk.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any, Literal, cast

from diffusers_helper.files import read_file, sync_folder
from diffusers_helper.provenance.job_folder import JobFolder
from diffusers_helper.strangers.limited_json import plain_json

Command = Literal["cancel", "pause", "stop_after_section"]
COMMANDS: tuple[Command, ...] = ("cancel", "pause", "stop_after_section")
_PREFIX = "wish-"


def leave_command(folder: JobFolder, command: Command) -> None:
    """Leave a command, and return when it is on the disk.

    Raises:
        OSError: If it cannot be written.
    """
    (folder.path / f"{_PREFIX}{command}").touch()
    sync_folder(folder.path)


def commands_of(folder: JobFolder) -> set[Command]:
    """Return the commands that have not been carried out yet."""
    return {command for command in COMMANDS if (folder.path / f"{_PREFIX}{command}").is_file()}


def withdraw_command(folder: JobFolder, command: Command) -> None:
    """Remove a command, if there is one."""
    with contextlib.suppress(FileNotFoundError, IsADirectoryError):
        (folder.path / f"{_PREFIX}{command}").unlink()


def paused_jobs(held: Path) -> list[str]:
    """Return the jobs that a file has paused with the whole queue; none if it is gone or damaged."""
    try:
        found: Any = plain_json(read_file(held))
    except (OSError, ValueError):
        return []
    jobs = cast(list[object], found) if isinstance(found, list) else []
    return [one for one in jobs if isinstance(one, str)]


def forget_commands(folder: JobFolder) -> None:
    """Remove all commands, because they are carried out or the job no longer runs."""
    for command in COMMANDS:
        withdraw_command(folder, command)
