"""The locks that tell whether the process that took them is alive, and the name by which it owns its jobs.

The kernel frees them however the process ends, and they work across containers, unlike process ids.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from pathlib import Path


class Lock:
    """A lock on a file, which no other process holds at the same time.

    Take it with the index locked: `is_locked` holds the lock for a moment.

    Raises:
        BlockingIOError: If another process, or another object, holds it.
        OSError: If the file cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.release()
            raise

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


class Owner:
    """The ownership of jobs by this process in one outputs folder: a name and a locked file of that name."""

    def __init__(self, folder: Path, name: str = "") -> None:
        folder.mkdir(exist_ok=True)
        self.name = name or secrets.token_hex(8)
        self._path = folder / self.name
        self._lock = Lock(self._path)

    def release(self) -> None:
        """Give up the name, since this process makes no more jobs."""
        self._path.unlink(missing_ok=True)
        self._lock.release()


def living_owners(folder: Path) -> set[str]:
    """Return the names of the living processes, and remove the files of the others."""
    living: set[str] = set()
    for path in folder.iterdir() if folder.exists() else ():
        if is_locked(path):
            living.add(path.name)
        else:
            path.unlink(missing_ok=True)
    return living
