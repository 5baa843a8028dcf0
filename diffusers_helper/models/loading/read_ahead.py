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
# A buffer of this size stays in the processor's cache, so that known pages cost no memory bandwidth to write.
_BUFFER_BYTES = 1024**2
# The size of the pieces that are left out if they are in memory, and the distance of the bytes that are asked
# for to find out. Pieces are large, since the kernel reads ahead only where it is read without gaps.
_PIECE_BYTES, _ASK_BYTES = 64 * 1024**2, 256 * 1024
# The share of the free memory that the files may take, so that nothing else is pushed out.
_SHARE = 0.9
_TELL_SECONDS = 1.0


def read_ahead(
    files: Sequence[Path],
    cancel: CancelToken,
    on_bytes: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """Read files once from the beginning to the end, if the free memory can keep them all.

    What the kernel has in its memory already is left out.

    Args:
        files: The files.
        cancel: The token that ends the reading.
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
    begin = told = time.monotonic()
    done = from_disk = 0
    for count, is_read in (part for file in files for part in _parts(file)):
        done, from_disk = done + count, from_disk + count * is_read
        cancel.check()
        if (now := time.monotonic()) - told >= _TELL_SECONDS:
            told = now
            on_bytes(done, total)
    seconds = time.monotonic() - begin
    _log.info(
        "read %s GB of weights in %.1f s (%.2f GB/s), and %s GB were in memory; %s GB of this process's "
        "memory are its own",
        gb_text(from_disk), seconds, from_disk / 1e9 / max(seconds, 1e-9), gb_text(total - from_disk),
        gb_text(own_bytes()),
    )  # fmt: skip


def _parts(file: Path) -> Iterator[tuple[int, bool]]:
    """Read a file, and yield the size of each part with whether it had to be read."""
    buffer = memoryview(bytearray(_BUFFER_BYTES))
    size = file.stat().st_size
    # The questions go to a description of their own, so that they do not disturb the kernel's reading ahead.
    with file.open("rb", buffering=0) as stream, file.open("rb", buffering=0) as asked:
        os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
        for begin in range(0, size, _PIECE_BYTES):
            left = min(_PIECE_BYTES, size - begin)
            if _is_in_memory(asked.fileno(), begin, begin + left):
                yield left, False
                continue
            stream.seek(begin)
            while left and (count := stream.readinto(buffer[:left])):
                left -= count
                yield count, True


def _is_in_memory(descriptor: int, begin: int, end: int) -> bool:
    """Return whether the kernel has a part of a file in its memory, as far as it says so."""
    byte = bytearray(1)
    try:
        for place in range(begin, end, _ASK_BYTES):
            os.preadv(descriptor, [byte], place, os.RWF_NOWAIT)
    except OSError:  # it would have to wait for the disk, or the file system cannot tell
        return False
    return True


def own_bytes() -> int:
    """Return the memory of this process that no file backs; 0 if the kernel does not say."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:")), 0)
