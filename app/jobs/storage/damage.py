"""Damage to the files beside the jobs, which is set aside so that something whole can take its place."""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from pathlib import Path

_log = logging.getLogger(__name__)
_CODES = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT)
# A file that was emptied, or that another program has written, has other tables; a text may not be UTF-8.
_WORDS = ("no such table", "no such column", "could not decode")


class IndexWasRebuilt(sqlite3.DatabaseError):
    """The error for a change that has met a damaged index, which now is whole again."""


class DamagedRow(sqlite3.DatabaseError):
    """The error for a row of the index that this version has not written."""


def is_damage(error: BaseException) -> bool:
    """Return whether an error of SQLite shows that the index is damaged, and not that it is out of reach."""
    if isinstance(error, DamagedRow):
        return True
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return code in _CODES or any(words in str(error).lower() for words in _WORDS)


def set_aside(path: Path) -> None:
    """Rename what is at a path to a name that says that it is damaged."""
    aside = path.with_name(f"{path.name}.damaged-{time.time_ns()}")
    _log.warning("%s is damaged; it is kept as %s.", path, aside.name)
    path.rename(aside)


def make_way(path: Path, *, folder: bool = False) -> None:
    """Set aside what is at the path of a file, or of a folder, and is something else."""
    if os.path.lexists(path) and not (path.is_dir() if folder else path.is_file()):
        set_aside(path)
