"""Locks on files, which exclude other processes and which the kernel releases however their holder ends."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any


def take_lock(file: int | IO[Any], *, waits: bool) -> None:
    """Take the exclusive lock on an open file, which lasts until the file is closed.

    Args:
        file: The file or its descriptor.
        waits: Whether to wait while another process, or another opening of the file, has the lock.

    Raises:
        BlockingIOError: If it does not wait, and the lock is taken.
        OSError: If the file system has no locks.
    """
    fcntl.flock(file, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))


@contextmanager
def locked_folder(folder: Path, *, waits: bool) -> Generator[None]:
    """Keep other programs that ask for the same folder out of the block; see `take_lock`."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        take_lock(descriptor, waits=waits)
        yield
    finally:
        os.close(descriptor)
