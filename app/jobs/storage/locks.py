"""The locks by which programs know of each other: who computes, and who makes a job.

The kernel frees them however the process ends, and they work across containers, unlike process ids.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


class Lock:
    """A lock on a file, which no other process holds at the same time.

    Take the lock of a job with the index locked: `is_locked` holds it for a moment.

    Raises:
        BlockingIOError: If another process, or another object, holds it.
        OSError: If the file cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.release()
            raise

    def holds(self) -> bool:
        """Return whether this is still the lock that others find; not if its file was removed."""
        try:
            return os.path.samestat(os.fstat(self._descriptor), self._path.stat())
        except OSError:
            return False

    def release(self) -> None:
        """Free the lock. A second call does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def is_locked(path: Path) -> bool:
    """Return whether a living process holds the lock. Call it with the index locked."""
    try:
        descriptor = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(descriptor)
