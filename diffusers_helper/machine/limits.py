"""Limits of the memory, time and files of a process, which Linux enforces, and the memory that it uses."""

import contextlib
import resource
import sys
from collections.abc import Generator
from pathlib import Path

from diffusers_helper.errors import InputError

_MAX_BYTES = 4 * 2**30


@contextlib.contextmanager
def limited_memory(max_bytes: int = _MAX_BYTES) -> Generator[None]:
    """Raise InputError if the block adds more to this process's memory. Mapped files do not count."""
    soft_limit, hard_limit = resource.getrlimit(resource.RLIMIT_DATA)
    statm = Path("/proc/self/statm")
    used = int(statm.read_text(encoding="ascii").split()[5]) * resource.getpagesize() if statm.exists() else 0
    allowed = used + max_bytes
    if used and all(limit == resource.RLIM_INFINITY or allowed < limit for limit in (soft_limit, hard_limit)):
        resource.setrlimit(resource.RLIMIT_DATA, (allowed, hard_limit))
    try:
        yield
    except MemoryError as error:
        raise InputError(
            f"The file is not readable: it takes more than {max_bytes >> 20} MiB of memory.",
            "Choose another file.",
        ) from error
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft_limit, hard_limit))


def limit_process(memory_bytes: int) -> None:
    """Limit this process's address space to so many bytes, and let it write neither files nor core dumps."""
    for limit, value in (
        (resource.RLIMIT_AS, memory_bytes), (resource.RLIMIT_CORE, 0), (resource.RLIMIT_FSIZE, 0),
    ):  # fmt: skip
        resource.setrlimit(limit, (value, value))


def limit_time(seconds: int) -> None:
    used = resource.getrusage(resource.RUSAGE_SELF)
    end_seconds = int(used.ru_utime + used.ru_stime) + 1 + seconds
    resource.setrlimit(resource.RLIMIT_CPU, (end_seconds, resource.RLIM_INFINITY))


def raise_file_limit(wanted: int) -> int:
    """Let this process open `wanted` files, or as many as the system allows; return how many."""
    soft_limit, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    allowed = wanted if hard_limit == unlimited else min(wanted, hard_limit)
    if soft_limit != unlimited and soft_limit < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard_limit))
    return allowed


def peak_host_bytes() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
