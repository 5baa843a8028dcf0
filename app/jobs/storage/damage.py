"""Damage to the index of the jobs, which is told from an index that is out of reach."""

from __future__ import annotations

import sqlite3

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
