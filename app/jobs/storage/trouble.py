"""The errors of an outputs folder and of its index: which of them pass, which are damage, and their words."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from diffusers_helper.errors import InputError
from diffusers_helper.library_errors import storage_explanation, trouble_of
from diffusers_helper.units import gb_text

# The errors that disappear by themselves, or when a user solves the problem outside the program.
TROUBLE = (OSError, sqlite3.Error)
_DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT)
# A file that was emptied, or that another program has written, has other tables; a text may not be UTF-8.
_DAMAGE_WORDS = ("no such table", "no such column", "could not decode")


class DamagedRow(sqlite3.DatabaseError):
    """The error for a row of the index that this version has not written."""


def is_damage(error: BaseException) -> bool:
    """Return whether an error of SQLite shows that the index is damaged, and not that it is out of reach."""
    known = isinstance(error, DamagedRow) or _code(error) in _DAMAGE
    return known or any(words in str(error).lower() for words in _DAMAGE_WORDS)


def is_busy(error: BaseException) -> bool:
    """Return whether another program holds the lock on the index."""
    return _code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def _code(error: BaseException) -> int:
    code: int = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF


def facts_of(error: BaseException, *, needed_bytes: int = 0) -> dict[str, str]:
    """Return the facts `message` and `remedy` of a job that waits because of an error.

    Args:
        needed_bytes: The free disk space that the job needs; 0 if it is not known.
    """
    message, remedy = storage_explanation(error)
    if needed_bytes:
        message = f"{message.rstrip('.')}; about {gb_text(needed_bytes, round_up=True)} GB are needed."
    return {"message": message, "remedy": remedy}


def unwritable(outputs: Path, error: Exception) -> InputError:
    """Return the error for an outputs folder that cannot be written."""
    if is_damage(error):
        return InputError("The index of the jobs was damaged; it is whole again.", "Try again.")
    reason = getattr(error, "strerror", None) or str(error)
    remedy = "Choose another one with `outputs`."
    if trouble_of(error) == "disk_full":
        reason, remedy = "the disk is full", f"Free some space. {remedy}"
    return InputError(
        f"outputs folder {outputs} cannot be written ({reason}); expected a writable folder.",
        remedy,
        setting="outputs",
    )
