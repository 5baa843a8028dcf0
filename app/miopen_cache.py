"""Clears what MIOpen has learned and compiled, in the folders that MIOpen itself makes and nowhere else."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from app.jobs.patience import MIOPEN_FOLDERS

_MOVED = ("MIOPEN_USER_DB_PATH", "MIOPEN_CUSTOM_CACHE_DIR")


def clear_miopen_cache(home: Path, environ: Mapping[str, str]) -> int:
    """Removes MIOpen's folders below a home directory and says what and how much.

    A folder that a variable points to may hold other things: it is named and left alone, as is a link.

    Returns: exit code 0.
    """
    count = 0
    for name in MIOPEN_FOLDERS:
        folder = home / name
        if folder.is_symlink():
            sys.stdout.write(f"{folder} is a link to {folder.resolve()}; left alone. Remove it by hand.\n")
        elif folder.is_dir():
            files = [file for file in folder.rglob("*") if file.is_file() and not file.is_symlink()]
            size = sum(file.stat().st_size for file in files)
            shutil.rmtree(folder)
            sys.stdout.write(f"Removed {folder}: {len(files)} files, {size / 1024**2:.1f} MB.\n")
            count += 1
    for variable in _MOVED:
        if environ.get(variable):
            sys.stdout.write(f"{variable} is {environ[variable]}; left alone. Remove its files by hand.\n")
    if not count:
        sys.stdout.write("There is no cache of MIOpen's to remove.\n")
    else:
        sys.stdout.write("The next first decode takes longer, while MIOpen chooses and compiles again.\n")
    return 0
