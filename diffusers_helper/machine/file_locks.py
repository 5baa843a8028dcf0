"""Locks on files, which exclude other processes and which the kernel releases when their holder ends."""

import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from diffusers_helper.files import open_at_once
from diffusers_helper.library_errors import is_storage_trouble


def take_lock(file: int | IO[Any], *, waits: bool) -> None:
    """Take the exclusive lock on an open file until it is closed, or raise BlockingIOError or OSError."""
    fcntl.flock(file, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))


@contextmanager
def locked_folder(folder: Path, *, waits: bool) -> Generator[None]:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        take_lock(descriptor, waits=waits)
        yield
    finally:
        os.close(descriptor)


class Lock:
    """A lock on a file, which no other process can hold at the same time; BlockingIOError if one does.

    `is_locked` takes the lock for a moment. Where it is used, take this lock only while another one is held.
    """

    def __init__(self, path: Path) -> None:
        self._descriptor = open_at_once(path, os.O_CREAT | os.O_RDWR, 0o600)
        try:
            take_lock(self._descriptor, waits=False)
        except OSError:
            self.release()
            raise

    def release(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def is_locked(path: Path) -> bool:
    """Check whether a living process holds the lock on a file, by taking it for a moment."""
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
