"""The reading of mapped files into the kernel's memory, so that no later step waits for the disk."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from diffusers_helper.cancel import CancelToken
from diffusers_helper.machine.sysfs import host_memory
from diffusers_helper.units import gb_text

_log = logging.getLogger(__name__)
# The kernel is asked to read this much at a time, and so much before it is waited for. Asking needs far less
# processor time than reading into a buffer, and next to none for what is in memory already.
_PIECE_BYTES, _AHEAD_BYTES = 8 * 1024**2, 64 * 1024**2
_STEP_BYTES = 1024**2
# The share of the free memory that the files may take, so that nothing else is pushed out.
_SHARE = 0.9
_TELL_SECONDS = 1.0


def read_ahead(
    files: Sequence[Path],
    cancel: CancelToken,
    on_bytes: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """Let the kernel read files once from the beginning to the end, if the free memory can keep them all.

    Args:
        on_bytes: A function that is called about once a second with the bytes that are read, and all bytes.

    Raises:
        GenerationCancelled: If the job was cancelled.
        OSError: If a file cannot be read.
    """
    sizes = [file.stat().st_size for file in files]
    total, free = sum(sizes), host_memory().available
    if total > _SHARE * free:
        _log.info(
            "%s GB of weights stay on the disk until they are used: %s GB of main memory are free",
            gb_text(total), gb_text(free),
        )  # fmt: skip
        return
    begin = reported = time.monotonic()
    done = 0
    for count in (count for file in files for count in _steps(file)):
        done += count
        cancel.check()
        if (now := time.monotonic()) - reported >= _TELL_SECONDS:
            reported = now
            on_bytes(done, total)
    seconds = time.monotonic() - begin
    _log.info(
        "read %s GB of weights in %.1f s (%.2f GB/s); %s GB of this process's memory are its own",
        gb_text(total), seconds, total / 1e9 / max(seconds, 1e-9), gb_text(own_bytes()),
    )  # fmt: skip


def _steps(file: Path) -> Iterator[int]:
    """Let the kernel read a file, and yield the size of each step that is in memory then."""
    size, asked = file.stat().st_size, 0
    with file.open("rb", buffering=0) as stream:
        for begin in range(0, size, _STEP_BYTES):
            while asked < min(size, begin + _AHEAD_BYTES):
                os.posix_fadvise(stream.fileno(), asked, _PIECE_BYTES, os.POSIX_FADV_WILLNEED)
                asked += _PIECE_BYTES
            end = min(begin + _STEP_BYTES, size)
            os.pread(stream.fileno(), 1, end - 1)  # waits until it is there
            yield end - begin


def own_bytes() -> int:
    """Return the memory of this process that no file backs; 0 if the kernel does not say."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:")), 0)


def drop_pages(file: Path) -> None:
    """Drop a file's pages from the kernel's memory, so that they are read from the disk again."""
    with file.open("rb") as stream:
        os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
