"""The words for trouble with the outputs folder."""

from __future__ import annotations

import errno
import os
import sqlite3
from pathlib import Path

from diffusers_helper.errors import InputError
from diffusers_helper.foreign_errors import trouble_of
from diffusers_helper.machine.storage import storage_words

# These errors go away by themselves, or when a person does something about them outside of the program.
TROUBLE = (OSError, sqlite3.Error)


def facts_of(error: BaseException) -> dict[str, str]:
    """Return message and remedy for a job that waits because of an error."""
    message, remedy = storage_words(error)
    return {"message": message, "remedy": remedy}


def unwritable(outputs: Path, error: Exception) -> InputError:
    """Return the error for an outputs folder that cannot be written."""
    reason = getattr(error, "strerror", None) or str(error)
    remedy = "Choose another one with `outputs`."
    if trouble_of(error) == "disk_full":
        reason, remedy = "the disk is full", f"Free some space. {remedy}"
    return InputError(
        f"outputs folder {outputs} cannot be written ({reason}); expected a writable folder.",
        remedy,
        setting="outputs",
    )


def is_of_one_job(error: BaseException, outputs: Path) -> bool:
    """Return whether an error is that of one job's own files, so that the folder can still be written."""
    own = (errno.EACCES, errno.EPERM, errno.EISDIR, errno.ENOTDIR)
    return isinstance(error, OSError) and error.errno in own and os.access(outputs, os.W_OK)
