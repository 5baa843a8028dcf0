"""The reading of mapped files into the kernel's memory, so that no later step waits for the disk."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from diffusers_helper.cancel import CancelToken
from diffusers_helper.machine.sysfs import host_memory
from diffusers_helper.units import gb_text

_log = logging.getLogger(__name__)
# A buffer of this size stays in the processor's cache, so that known pages cost no memory bandwidth to write.
_BUFFER_BYTES = 1024**2
# The share of the free memory that the files may take, so that nothing else is pushed out.
_SHARE = 0.9
_TELL_SECONDS = 1.0


def read_ahead(
    files: Sequence[Path],
    cancel: CancelToken,
    on_bytes: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """Read files once from the beginning to the end, if the free memory can keep them all.

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
    buffer = memoryview(bytearray(_BUFFER_BYTES))
    begin = told = time.monotonic()
    done = 0
    for file in files:
        with file.open("rb", buffering=0) as stream:
            os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
            while count := stream.readinto(buffer):
                done += count
                cancel.check()
                if (now := time.monotonic()) - told >= _TELL_SECONDS:
                    told = now
                    on_bytes(done, total)
    seconds = time.monotonic() - begin
    _log.info(
        "read %s GB of weights in %.1f s (%.2f GB/s); %s GB of this process's memory are its own",
        gb_text(total), seconds, total / 1e9 / max(seconds, 1e-9), gb_text(own_bytes()),
    )  # fmt: skip


def own_bytes() -> int:
    """Return the memory of this process that no file backs; 0 if the kernel does not say."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:")), 0)
