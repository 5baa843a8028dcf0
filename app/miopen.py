"""MIOpen's find modes and caches, and the folder of the routes learned around its failures.

The descriptions of the find modes follow MIOpen's documentation; their cost on a card was not measured.
"""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from app.jobs.making.watchdog import MIOPEN_FOLDERS
from app.jobs.stdio import say
from app.machine import cache_folder
from diffusers_helper.machine.routes import ROUTES
from diffusers_helper.planning.variables import (
    FIND_ENFORCE_VARIABLE,
    FIND_MODE_VARIABLE,
    FIND_MODES,
    conv_rung,
    find_mode_of,
)
from diffusers_helper.units import count_text, gb_text

# Settings of MIOPEN_FIND_ENFORCE that are unsafe with all modes but NORMAL.
_UNSAFE = ("2", "4", "5", "DB_UPDATE", "SEARCH_DB_UPDATE", "DB_CLEAN")


def find_mode_findings(environ: Mapping[str, str]) -> list[tuple[str, str]]:
    """Check an engine's find mode. Each finding is a sentence and its remedy, which may be ""."""
    mode = find_mode_of(environ.get(FIND_MODE_VARIABLE, ""))
    findings: list[tuple[str, str]] = []
    if mode in FIND_MODES:
        findings.append((f"find mode {mode}: {FIND_MODES[mode]}", ""))
    enforced = environ.get(FIND_ENFORCE_VARIABLE, "").strip().upper()
    if enforced in _UNSAFE and mode not in ("", "NORMAL"):
        findings.append(
            (f"{FIND_ENFORCE_VARIABLE}={enforced} is not safe with find mode {mode}", "Leave it out.")
        )
    return findings


def routes_folder() -> Path:
    return cache_folder() / ROUTES


def conv_settings() -> dict[str, Any]:
    return {"folder": routes_folder(), "rung": conv_rung(os.environ)}


_FOLDER_VARIABLES = ("MIOPEN_USER_DB_PATH", "MIOPEN_CUSTOM_CACHE_DIR")


def clear_miopen_cache(home: Path, environ: Mapping[str, str]) -> int:
    """Remove MIOpen's folders below a home directory, and print what was removed.

    Symbolic links, and folders set by a variable, which may hold other things, are listed and left alone.
    """
    count = 0
    for name in MIOPEN_FOLDERS:
        folder = home / name
        if folder.is_symlink():
            say(f"{folder} is a link to {folder.resolve()} and was left alone. Remove it by hand.")
        elif folder.is_dir():
            files = [file for file in folder.rglob("*") if file.is_file() and not file.is_symlink()]
            size = sum(file.stat().st_size for file in files)
            shutil.rmtree(folder)
            say(f"Removed {folder}: {count_text(len(files), 'file')}, {gb_text(size)} GB.")
            count += 1
    for variable in _FOLDER_VARIABLES:
        if environ.get(variable):
            say(f"{variable} names {environ[variable]}, which was left alone. Remove its files by hand.")
    if not count:
        say("There is no MIOpen cache to remove.")
    else:
        say("The next decode takes longer, while MIOpen chooses and compiles its kernels.")
    return 0
