"""Who runs a job: a name per process, with a file lock that tells whether that process still lives."""

from __future__ import annotations

import fcntl
import os
import secrets
from pathlib import Path


class Owner:
    """This process's claim on its jobs in one outputs folder.

    The kernel frees the lock when the process ends in whatever way, and sees through containers, which
    process ids do not.
    """

    def __init__(self, folder: Path) -> None:
        """Makes and locks the file. Call it with the database locked, see `is_alive`."""
        folder.mkdir(parents=True, exist_ok=True)
        self.name = secrets.token_hex(8)
        self._path = folder / self.name
        self._descriptor = os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)

    def release(self) -> None:
        """Says that this process runs no jobs any more. Twice is once."""
        if self._descriptor >= 0:
            self._path.unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = -1


def is_alive(folder: Path, name: str) -> bool:
    """Whether the process of that name still runs. The file of a dead one is removed.

    Call it with the database locked: a file that is made but not yet locked would look dead.
    """
    path = folder / name
    try:
        descriptor = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        path.unlink(missing_ok=True)
        return False
    finally:
        os.close(descriptor)
