"""Temporary trouble with the storage that a job writes to, such as a full disk, and its remedies."""

from __future__ import annotations

import errno
from pathlib import Path

from diffusers_helper.foreign_errors import trouble_of

_AWAY = (errno.ESTALE, errno.ENODEV, errno.EIO, errno.EROFS)
_GOES_ON = "the job then goes on by itself."


def is_storage_trouble(error: BaseException, folder: Path | None = None) -> bool:
    """Return whether an error comes from a disk that is full or disconnected, and not from the work itself.

    Args:
        error: The error.
        folder: The job's folder. A missing file or folder counts as such only if it is in this folder.
    """
    number = getattr(error, "errno", None)
    if number in (errno.ENOENT, errno.ENOTDIR) and folder is not None:
        return str(folder) in str(getattr(error, "filename", ""))
    return number in _AWAY or trouble_of(error) == "disk_full"


def storage_words(error: BaseException) -> tuple[str, str]:
    """Return an explanation and a remedy for a job that waits because of an error of the storage."""
    if trouble_of(error) == "disk_full":
        return "The disk is full.", f"Free some space; {_GOES_ON}"
    if getattr(error, "sqlite_errorname", "").startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return "Another program keeps the job index locked.", f"End that program; {_GOES_ON}"
    if getattr(error, "errno", None) in (errno.ENOENT, errno.ENOTDIR, *_AWAY[:2]):
        return "The outputs folder is missing.", f"Restore it, or connect its disk; {_GOES_ON}"
    reason = getattr(error, "strerror", None) or error
    return f"The outputs folder cannot be written ({reason}).", f"Make it writable; {_GOES_ON}"
