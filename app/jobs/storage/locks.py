"""The locks that show which program makes a folder's jobs, and which one is making a certain job.

The kernel frees them however their process ends. Unlike process ids, they work across containers.
"""

from __future__ import annotations

import os
from pathlib import Path

from diffusers_helper.files import open_at_once
from diffusers_helper.machine.file_locks import take_lock
from diffusers_helper.machine.storage import is_storage_trouble


class Lock:
    """A lock on a file, which no other process can hold at the same time.

    Take the lock of a job only while the index is locked, because `is_locked` holds it for a moment.

    Raises:
        BlockingIOError: If another process, or another object of this one, holds it.
        OSError: If the file cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = open_at_once(path, os.O_CREAT | os.O_RDWR, 0o600)
        try:
            take_lock(self._descriptor, waits=False)
        except OSError:
            self.release()
            raise

    def holds(self) -> bool:
        """Return whether this lock is still effective; it is not if its file was removed or replaced."""
        try:
            return os.path.samestat(os.fstat(self._descriptor), self._path.stat())
        except OSError:
            return False

    def release(self) -> None:
        """Release the lock. A second call does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def is_locked(path: Path) -> bool:
    """Return whether a living process holds the lock. Call this only while the index is locked."""
    try:
        descriptor = open_at_once(path, os.O_RDWR)
    except OSError as error:  # there is none, or something else is in its place
        if is_storage_trouble(error):
            raise
        return False
    try:
        take_lock(descriptor, waits=False)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(descriptor)


def identity(file: Path) -> tuple[int, int] | None:
    """Return the numbers that distinguish a file from others of the same name; None if it does not exist."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
