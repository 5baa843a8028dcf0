"""The `Failed` events, with explanation and remedy, for exceptions and for engines that died.

A table has other libraries' errors, by their class names and texts, with their meaning. Classes are
recognised by name, so no library has to be imported for it. Most of the texts were reported by people with
Radeon cards. The others are the texts of CUDA, cuDNN, oneDNN and the CPU's allocator for the same faults.
Trouble with the storage of a job, such as a full disk, passes, and has remedies of its own.
"""

from __future__ import annotations

import errno
import re
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from diffusers_helper.errors import FailureCode, LongtakeError, first_line
from diffusers_helper.events import Failed
from diffusers_helper.machine.signals import SIGHUP, SIGINT, SIGKILL, SIGTERM

MAX_DETAIL = 8000  # in characters: enough for a deep traceback, small enough for one line of the log
MAX_ERRORS = 4000  # characters of a dead engine's standard error
_NO_MEMORY: tuple[FailureCode, str, str] = (
    "out_of_memory",
    "There was not enough memory to continue.",
    "Choose a smaller `resolution`, or close other programs that use memory, and start again.",
)
_TROUBLES: dict[Trouble | None, tuple[FailureCode, str, str]] = {
    "device_memory": _NO_MEMORY,
    "host_memory": _NO_MEMORY,
    "disk_full": (
        "disk_full", "The disk is full; the video cannot be written.", "Free some space and start again.",
    ),
    "download": (
        "download", "The model could not be downloaded from huggingface.co.",
        "Check the network connection and start again; the files downloaded so far are kept.",
    ),
    "proxy": (
        "download", "The model cannot be downloaded through the proxy that is set ({text}).",
        "Unset ALL_PROXY, or set it to an address that begins with http://.",
    ),
    "installation": (
        "installation", "A package that Longtake needs cannot be imported ({text}).",
        "Run ./webui.sh --setup-only to complete the installation.",
    ),
}  # fmt: skip
_KEPT = "Start again; the finished sections are kept."
_FROM_OUTSIDE = (SIGKILL, SIGTERM, SIGINT, SIGHUP)

DriverStep = Literal["again", "cache", "find_mode", "blas", "versions", "report"]
"""The remedies for failures of the card's libraries. Each interface has its own sentence for each of them."""
LONGTAKE_DRIVER: dict[DriverStep, str] = {
    "again": _KEPT,
    "cache": "Run `doctor` --clear-miopen-cache to remove what MIOpen has learned and compiled.",
    "find_mode": "Start Longtake with --miopen-find-mode NORMAL, with which MIOpen tries every kernel.",
    "blas": "On an AMD card, start Longtake with TORCH_BLAS_PREFER_HIPBLASLT=0 in the environment, so that "
    "PyTorch uses its other library for matrix products.",
    "versions": "Check that PyTorch and ROCm are up to date and made for this card; `doctor` examines them.",
    "report": "If nothing helps, report it with the log of a start with MIOPEN_LOG_LEVEL=5.",
}
_DRIVER_GUIDES: dict[Trouble, tuple[str, tuple[DriverStep, ...]]] = {
    "miopen": (
        "MIOpen, AMD's library for neural networks, failed",
        ("cache", "find_mode", "versions", "again", "report"),
    ),
    "blas": ("The library for matrix products failed", ("blas", "versions", "again", "report")),
    "kernel": ("The device has no kernel for a computation", ("versions", "again", "report")),
    "device": ("The GPU stopped with an error", ("again", "versions", "report")),
}


def driver_failure(text: str, remedies: Mapping[DriverStep, str] = LONGTAKE_DRIVER) -> LongtakeError | None:
    """Return the failure with the guide for an error of the card's libraries, or None for other errors.

    Args:
        text: The error's text, or the output of a process that has died.
        remedies: The sentences of the interface that shows the guide.
    """
    trouble, line = last_trouble(text) or (None, "")
    if trouble not in _DRIVER_GUIDES:
        return None
    what, steps = _DRIVER_GUIDES[trouble]
    guide = "\n".join(f"{number}. {remedies[step]}" for number, step in enumerate(steps, 1))
    return LongtakeError(f"{what}: {line[:300].rstrip('.')}.", guide)


def failed_event(
    error: BaseException, job: str, time: float, video: str | None, frames: int, folder: Path | None = None
) -> Failed:
    """Return the `Failed` event for an exception that ended a job.

    Args:
        time: Seconds since the job started to run.
        video: The path of the video so far, if there is one.
    """
    known = error if isinstance(error, LongtakeError) else _explained(error, folder)
    return Failed(
        job=job, time=time,
        message=known.message, remedy=known.remedy, code=known.code, setting=known.setting,
        detail="".join(traceback.format_exception(error))[-MAX_DETAIL:], video=video, frames=frames,
    )  # fmt: skip


def cause_of_death(exit_code: int | None) -> str:
    """Return a clause on how the engine process ended, given its `Popen.returncode`."""
    if exit_code is not None and exit_code < 0:
        return "was ended from outside" if -exit_code in _FROM_OUTSIDE else "crashed"
    return "ended by itself" + ("" if exit_code is None else f" with code {exit_code}")


def engine_died_event(
    exit_code: int | None,
    job: str,
    time: float,
    video: str | None,
    frames: int,
    *,
    attempts: int = 1,
    conclusions: str = "",
    errors: str = "",
) -> Failed:
    """Return the `Failed` event for a job whose engines keep dying.

    Args:
        exit_code: The last engine's `Popen.returncode`.
        time: Seconds since the job started to run.
        video: The path of the video so far, if there is one.
        conclusions: The conclusions that were drawn from their deaths, one per line.
        errors: The last lines that the last engine wrote to standard error.
    """
    remedy = _KEPT
    if exit_code == -SIGKILL:
        remedy = f"The usual cause is that main memory was full: close other programs. {_KEPT}"
    tries = f" It was tried {attempts} times." if attempts > 1 else ""
    if found := driver_failure(errors):
        remedy, tries = found.remedy, f"{tries} {found.message}"
    return Failed(
        job=job, time=time, remedy=remedy,
        message=f"The engine, the process that makes the video, {cause_of_death(exit_code)}.{tries}",
        detail="\n".join(filter(None, (conclusions, f"engine exit code {exit_code}", errors[-MAX_ERRORS:]))),
        code="engine_died", video=video, frames=frames,
    )  # fmt: skip


def interrupted_event(job: str, time: float, video: str | None, frames: int, attempts: int) -> Failed:
    """Return the `Failed` event for a job in which the whole program has ended repeatedly at one point."""
    return Failed(
        job=job, time=time, remedy=_KEPT,
        message=f"Longtake was ended {attempts} times at the same point of this video.",
        code="engine_died", video=video, frames=frames,
    )  # fmt: skip


def _explained(error: BaseException, folder: Path | None) -> LongtakeError:
    """Return an error with an explanation and a remedy for an error of another library."""
    trouble, text = trouble_of(error), str(error).strip()
    if trouble != "disk_full" and is_storage_trouble(error, folder):
        return LongtakeError(*storage_words(error), code="storage")
    if trouble in _TROUBLES:
        code, message, remedy = _TROUBLES[trouble]
        return LongtakeError(message.format(text=text), remedy, code=code)
    if trouble in _DRIVER_GUIDES and (known := driver_failure(text)):
        return known
    return LongtakeError(
        f"An unexpected error ended the job ({type(error).__name__}: {first_line(error)[:200]}).",
        "Start again. If the error occurs again, report it.",
    )


Trouble = Literal[
    "device_memory", "host_memory", "device", "miopen", "blas", "kernel", "disk_full", "download", "proxy",
    "installation",
]  # fmt: skip
_AWAY = (errno.ESTALE, errno.ENODEV, errno.EIO, errno.EROFS)
_GOES_ON = "the job then goes on by itself."


@dataclass(frozen=True, slots=True)
class _Signs:
    """The signs of one kind of trouble.

    Attributes:
        classes: The names of exceptions that always mean it, as do their subclasses.
        texts: Texts in lower case that mean it in an exception of type `kind`.
    """

    trouble: Trouble
    classes: frozenset[str] = frozenset()
    texts: tuple[str, ...] = ()
    kind: type[Exception] = RuntimeError


# The order matters: the first entry with a matching sign counts.
_TABLE = (
    _Signs(
        "device_memory",
        frozenset({"OutOfMemoryError"}),
        (
            "hip out of memory", "cuda out of memory", "hip error: out of memory",
            "cuda error: out of memory", "hiperroroutofmemory", "cudaerrormemoryallocation",
            "blockallocator::alloc failed",
            "hsa_status_error_out_of_resources", "memory critical error by agent",
            "cublas_status_alloc_failed", "hipblas_status_alloc_failed", "rocblas_status_memory_error",
            "miopenstatusallocfailed", "cudnn_status_alloc_failed",
        ),
    ),
    _Signs("host_memory", frozenset({"MemoryError"}), ("out of memory", "can't allocate memory")),
    _Signs(
        "device",
        texts=(
            "hiperrorillegaladdress", "illegal memory access", "hiperrorlaunchfailure",
            "unspecified launch failure", "device-side assert", "hiperrorlaunchtimeout", "launch timed out",
            "memory access fault by gpu", "hsa exception", "hsa_status_error",
        ),
    ),
    _Signs(
        "miopen",
        texts=(
            "miopen", "no suitable algorithm was found", "hiprtc_error", "code object build failed",
        ),
    ),
    _Signs(
        "blas",
        texts=(
            "cublas_status_", "hipblas_status_", "rocblas_status_", "rocblas error", "rocblaslt error",
            "tensilelibrary",
        ),
    ),
    _Signs(
        "kernel",
        texts=(
            "hiperrornobinaryforgpu", "hiperrorinvaliddevicefunction", "invalid device function",
            "no kernel image is available", "cudnn_status_", "unable to find an engine",
            "could not create a primitive",
        ),
    ),
    _Signs("disk_full", texts=("database or disk is full",), kind=Exception),
    _Signs(
        "download",
        frozenset({
            "LocalEntryNotFoundError", "OfflineModeIsEnabled", "HfHubHTTPError", "RepositoryNotFoundError",
            "ConnectError", "ConnectTimeout", "ReadTimeout", "ConnectionError",
        }),
    ),
    _Signs("proxy", texts=("using socks proxy",), kind=ImportError),
    _Signs("installation", frozenset({"ImportError"})),
)  # fmt: skip

# A line of this program's log, as `app.engine` formats it, or a line of MIOpen's log that is about no error.
_LOG_LINE = re.compile(
    r"(DEBUG|INFO|WARNING|ERROR|CRITICAL) [\w.]+: |MIOpen(\(HIP\))?: (Warning|Info|Command|Trace)"
)

# The figures in PyTorch's text for a failed allocation, which is the same for CUDA and HIP.
_SIZE = r"([\d.]+) ?([KMG]i?B|bytes)"
_SIZES = {
    "tried": rf"tried to allocate {_SIZE}",
    "capacity": rf"total capacity of {_SIZE}",
    "free": rf"of which {_SIZE} is free",
    "allocated": rf"{_SIZE} is allocated by PyTorch",
    "idle": rf"{_SIZE} is reserved by PyTorch but unallocated",
}
_UNITS = {
    "bytes": 1, "kib": 1024, "mib": 1024**2, "gib": 1024**3, "kb": 1024, "mb": 1024**2, "gb": 1024**3,
}  # fmt: skip


def trouble_of(error: BaseException) -> Trouble | None:
    """Return the meaning of an error, or None if it is not in the table, as for a mistake in our own code."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "disk_full"
    names = {kind.__name__ for kind in type(error).__mro__}
    text = str(error).lower()
    for signs in _TABLE:
        if signs.classes & names:
            return signs.trouble
        if isinstance(error, signs.kind) and any(sign in text for sign in signs.texts):
            return signs.trouble
    return None


def last_trouble(text: str) -> tuple[Trouble, str] | None:
    """Return the last trouble that the output of a dead process shows, and the line that shows it.

    Lines of this program's own log do not count, as they may be about an error that the process survived, nor
    do MIOpen's warnings.
    """
    for line in reversed(text.splitlines()):
        trouble = None if _LOG_LINE.match(line) else trouble_of(RuntimeError(line))
        if trouble is not None:
            return trouble, line.strip()
    return None


def memory_sizes(text: str) -> dict[str, int]:
    """Return the figures in a text about a failed allocation, in bytes, by the names in `_SIZES`."""
    found = {name: re.search(pattern, text, re.IGNORECASE) for name, pattern in _SIZES.items()}
    return {name: int(float(match[1]) * _UNITS[match[2].lower()]) for name, match in found.items() if match}


def names_memory(text: str) -> bool:
    """Return whether a text says that memory ran out, rather than that the driver failed."""
    return "out of memory" in text.lower()


def is_storage_trouble(error: BaseException, folder: Path | None = None) -> bool:
    """Return whether an error comes from a disk that is full or disconnected, and not from the work itself.

    Args:
        folder: The job's folder. A missing file or folder counts as such only if it is in this folder.
    """
    number = getattr(error, "errno", None)
    if number in (errno.ENOENT, errno.ENOTDIR) and folder is not None:
        return str(folder) in str(getattr(error, "filename", ""))
    return number in _AWAY or trouble_of(error) == "disk_full"


def storage_words(error: BaseException) -> tuple[str, str]:
    """Return an explanation and a remedy for a job that waits because of an error of the storage."""
    if trouble_of(error) == "disk_full":
        return "The disk is full.", f"Free some space; {_GOES_ON}"
    if getattr(error, "sqlite_errorname", "").startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return "Another program keeps the job index locked.", f"End that program; {_GOES_ON}"
    if getattr(error, "errno", None) in (errno.ENOENT, errno.ENOTDIR, *_AWAY[:2]):
        return "The outputs folder is missing.", f"Restore it, or connect its disk; {_GOES_ON}"
    reason = getattr(error, "strerror", None) or error
    return f"The outputs folder cannot be written ({reason}).", f"Make it writable; {_GOES_ON}"
