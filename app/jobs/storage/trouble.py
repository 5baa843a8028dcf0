"""The errors of an outputs folder and of its database: which pass, which are damage, and their words."""

import sqlite3
from pathlib import Path

from diffusers_helper.errors import InputError
from diffusers_helper.library_errors import storage_explanation, trouble_of
from diffusers_helper.units import gb_text

# The errors that disappear by themselves, or when a user solves the problem outside the program.
TROUBLE = (OSError, sqlite3.Error)
_DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


class NotADatabase(sqlite3.DatabaseError):
    """The error for a file at the path of the database that is not one of Longtake's, or that is broken."""

    sqlite_errorcode = sqlite3.SQLITE_NOTADB


def is_damage(error: BaseException) -> bool:
    """Tell damage to the database itself from errors that pass, as when it is out of reach."""
    code: int = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF in _DAMAGE


def facts_of(error: BaseException, *, needed_bytes: int = 0) -> dict[str, str]:
    message, remedy = storage_explanation(error)
    if needed_bytes:
        message = f"{message.rstrip('.')}; about {gb_text(needed_bytes, round_up=True)} GB are needed."
    return {"message": message, "remedy": remedy}


def unwritable(outputs: Path, error: Exception) -> InputError:
    if is_damage(error):
        return InputError(
            "The list of jobs was damaged. It was made anew from their folders, and the queue is paused.",
            "Look at the queue, and resume it.",
        )
    reason = getattr(error, "strerror", None) or str(error)
    remedy = "Choose another one with `outputs`."
    if trouble_of(error) == "disk_full":
        reason, remedy = "the disk is full", f"Free some space. {remedy}"
    return InputError(
        f"outputs folder {outputs} cannot be written ({reason}); expected a writable folder.",
        remedy,
        setting="outputs",
    )
