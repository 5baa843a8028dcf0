"""Limits of what a process may use, and what this one has used. Linux enforces them."""

from __future__ import annotations

import contextlib
import resource
import sys
from collections.abc import Generator
from pathlib import Path

from diffusers_helper.errors import InputError

_MOST_BYTES = 4 * 2**30


@contextlib.contextmanager
def limited_memory(most_bytes: int = _MOST_BYTES) -> Generator[None]:
    """Let the block add no more than this to the memory of this process. Mapped files do not count.

    Raises:
        InputError: If the block needs more.
    """
    before, highest = resource.getrlimit(resource.RLIMIT_DATA)
    statm = Path("/proc/self/statm")
    used = int(statm.read_text(encoding="ascii").split()[5]) * resource.getpagesize() if statm.exists() else 0
    allowed = used + most_bytes
    if used and all(limit == resource.RLIM_INFINITY or allowed < limit for limit in (before, highest)):
        resource.setrlimit(resource.RLIMIT_DATA, (allowed, highest))
    try:
        yield
    except MemoryError as error:
        raise InputError(
            f"The file is not readable: it takes more than {most_bytes >> 20} MiB of memory.",
            "Choose another file.",
        ) from error
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (before, highest))


def limit_process(memory: int) -> None:
    """Limit this process's address space to so many bytes, and let it write neither files nor core dumps."""
    for limit, value in (
        (resource.RLIMIT_AS, memory), (resource.RLIMIT_CORE, 0), (resource.RLIMIT_FSIZE, 0),
    ):  # fmt: skip
        resource.setrlimit(limit, (value, value))


def limit_time(seconds: int) -> None:
    """Let the system end this process after this many further seconds of processor time."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    end = int(used.ru_utime + used.ru_stime) + 1 + seconds
    resource.setrlimit(resource.RLIMIT_CPU, (end, resource.RLIM_INFINITY))


def peak_host_bytes() -> int:
    """Return the peak of this process's main memory since it was started."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
