"""MIOpen's find modes and caches, and the folder of the routes learned around its failures.

The descriptions of the find modes follow MIOpen's documentation; their cost on a card was not measured.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from app.jobs.making.patience import MIOPEN_FOLDERS
from app.jobs.stdio import say
from app.machine import cache_folder
from diffusers_helper.units import count_text, gb_text

VARIABLE = "MIOPEN_FIND_MODE"
FIND_MODES = {
    "NORMAL": "times every kernel for each new shape: slow at first, the fastest kernel afterwards",
    "FAST": "takes the kernel that MIOpen's database or heuristic names: starts at once, may stay slower",
    "HYBRID": "works as FAST for shapes in MIOpen's database and as NORMAL for all others",
    "DYNAMIC_HYBRID": "works as HYBRID, but without kernels that would be compiled for one shape only",
}
# The same modes as numbers, and two further modes of the documentation.
_NUMBERS = {"1": "NORMAL", "2": "FAST", "3": "HYBRID", "5": "DYNAMIC_HYBRID"}
_OTHERS = ("TRUST_VERIFY", "TRUST_VERIFY_FULL", "6", "7")
# Settings of MIOPEN_FIND_ENFORCE that are unsafe with all modes but NORMAL.
_UNSAFE = ("2", "4", "5", "DB_UPDATE", "SEARCH_DB_UPDATE", "DB_CLEAN")


def name_of(value: str) -> str:
    """Return the mode that a value of the variable selects; "" if MIOpen's documentation does not have it."""
    text = value.strip().upper()
    return text if text in FIND_MODES or text in _OTHERS else _NUMBERS.get(text, "")


def find_mode_findings(environ: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return remarks on an engine's find mode, each as a sentence and its remedy, which may be ""."""
    value = environ.get(VARIABLE, "")
    mode = name_of(value)
    found: list[tuple[str, str]] = []
    if mode in FIND_MODES:
        found.append((f"find mode {mode}: {FIND_MODES[mode]}", ""))
    elif value and not mode:
        expected = f"Expected one of {', '.join(FIND_MODES)}; set it with --miopen-find-mode."
        found.append((f"{VARIABLE} is {value[:60]!r}, which MIOpen's documentation does not know", expected))
    enforced = environ.get("MIOPEN_FIND_ENFORCE", "").strip().upper()
    if enforced in _UNSAFE and mode not in ("", "NORMAL"):
        found.append((f"MIOPEN_FIND_ENFORCE={enforced} is not safe with find mode {mode}", "Leave it out."))
    return found


RUNG_VARIABLE = "LONGTAKE_CONV_RUNG"


def routes_folder() -> Path:
    """Return the folder of routes in the user's cache. It is not created."""
    return cache_folder() / "conv_routes"


def conv_settings() -> dict[str, Any]:
    """Return the arguments for `initialize_miopen_fallback`."""
    return {"folder": routes_folder(), "rung": os.environ.get(RUNG_VARIABLE) or "auto"}


_MOVED = ("MIOPEN_USER_DB_PATH", "MIOPEN_CUSTOM_CACHE_DIR")


def clear_miopen_cache(home: Path, environ: Mapping[str, str]) -> int:
    """Remove MIOpen's folders below a home directory, print what was removed, and return the exit code 0.

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
    for variable in _MOVED:
        if environ.get(variable):
            say(f"{variable} names {environ[variable]}, which was left alone. Remove its files by hand.")
    if not count:
        say("There is no MIOpen cache to remove.")
    else:
        say("The next decode takes longer, while MIOpen chooses and compiles its kernels.")
    return 0
