"""The table of other libraries' errors, by their class names and texts, with their meaning.

Most texts were reported by people with Radeon cards. Trouble with the storage of a job passes.
"""

import errno
import re
from pathlib import Path
from typing import Literal

Trouble = Literal[
    "device_memory", "host_memory", "device", "miopen", "blas", "kernel", "disk_full", "download", "proxy",
    "installation",
]  # fmt: skip
_UNREACHABLE = (errno.ESTALE, errno.ENODEV, errno.EIO, errno.EROFS)
_EXHAUSTED = {
    errno.EMFILE: ("Too many files are open.", "Close some pages or raise `ulimit -n`"),
    errno.ENFILE: ("Too many files are open on this computer.", "Close other programs"),
    errno.ENOMEM: ("The computer's memory is full.", "Close other programs"),
}
_GOES_ON = "the job then goes on by itself."

# The names of exceptions that always mean a trouble, as do their subclasses.
_CLASSES: dict[str, Trouble] = {
    "OutOfMemoryError": "device_memory", "MemoryError": "host_memory", "ImportError": "installation",
    **dict.fromkeys((
        "LocalEntryNotFoundError", "OfflineModeIsEnabled", "HfHubHTTPError", "RepositoryNotFoundError",
        "ConnectError", "ConnectTimeout", "ReadTimeout", "ConnectionError",
    ), "download"),
}  # fmt: skip
# Texts in lower case that mean it in a RuntimeError. The first entry with one of its texts counts.
_TEXTS: dict[Trouble, tuple[str, ...]] = {
    "device_memory": (
        "hip out of memory", "cuda out of memory", "hip error: out of memory", "cuda error: out of memory",
        "hiperroroutofmemory", "cudaerrormemoryallocation", "blockallocator::alloc failed",
        "hsa_status_error_out_of_resources", "memory critical error by agent", "cublas_status_alloc_failed",
        "hipblas_status_alloc_failed", "rocblas_status_memory_error", "miopenstatusallocfailed",
        "cudnn_status_alloc_failed",
    ),
    "host_memory": ("out of memory", "can't allocate memory"),
    "device": (
        "hiperrorillegaladdress", "illegal memory access", "hiperrorlaunchfailure",
        "unspecified launch failure", "device-side assert", "hiperrorlaunchtimeout", "launch timed out",
        "memory access fault by gpu", "hw exception by gpu", "hsa exception", "hsa_status_error",
    ),
    "miopen": ("miopen", "no suitable algorithm was found", "hiprtc_error", "code object build failed"),
    "blas": (
        "cublas_status_", "hipblas_status_", "rocblas_status_", "rocblas error", "rocblaslt error",
        "tensilelibrary",
    ),
    "kernel": (
        "hiperrornobinaryforgpu", "hiperrorinvaliddevicefunction", "invalid device function",
        "no kernel image is available", "kernel image is invalid", "invalid kernel file", "cudnn_status_",
        "unable to find an engine", "could not create a primitive", "comfy-kitchen",
    ),
}  # fmt: skip

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
    """Classify an error; None if it is not in the table, as for a mistake in our own code."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "disk_full"
    text = str(error).lower()
    if "database or disk is full" in text:
        return "disk_full"
    for error_class in type(error).__mro__:
        if trouble := _CLASSES.get(error_class.__name__):
            return "proxy" if trouble == "installation" and "using socks proxy" in text else trouble
    for trouble, texts in _TEXTS.items() if isinstance(error, RuntimeError) else ():
        if any(snippet in text for snippet in texts):
            return trouble
    return None


def last_trouble(text: str) -> tuple[Trouble, str] | None:
    """Find the last trouble in a dead process's output and its line, without our own log."""
    for line in reversed(text.splitlines()):
        trouble = None if _LOG_LINE.match(line) else trouble_of(RuntimeError(line))
        if trouble is not None:
            return trouble, line.strip()
    return None


def memory_sizes(text: str) -> dict[str, int]:
    matches = {name: re.search(pattern, text, re.IGNORECASE) for name, pattern in _SIZES.items()}
    return {name: int(float(match[1]) * _UNITS[match[2].lower()]) for name, match in matches.items() if match}


def is_storage_trouble(error: BaseException, folder: Path | None = None) -> bool:
    """Tell if an error passes, as a full disk. ENOENT and EACCES count in a job's folder alone."""
    error_number = getattr(error, "errno", None)
    name = str(getattr(error, "filename", None) or "")
    if folder is not None and error_number in (errno.ENOENT, errno.ENOTDIR):
        return str(folder) in name
    if folder is not None and error_number == errno.EACCES:
        return not name or str(folder) in name  # a write to an open file has no name
    passing = (*_UNREACHABLE, *_EXHAUSTED, errno.EACCES)
    return error_number in passing or trouble_of(error) == "disk_full"


def is_exhausted(error: OSError) -> bool:
    """Check whether an error says that this program lacks files or memory, and nothing about its path."""
    return error.errno in _EXHAUSTED


def storage_explanation(error: BaseException) -> tuple[str, str]:
    if trouble_of(error) == "disk_full":
        return "The disk is full.", f"Free some space; {_GOES_ON}"
    if getattr(error, "sqlite_errorname", "").startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return "Another program keeps the job index locked.", f"End that program; {_GOES_ON}"
    if exhausted := _EXHAUSTED.get(getattr(error, "errno", None) or 0):
        return exhausted[0], f"{exhausted[1]}; {_GOES_ON}"
    if getattr(error, "errno", None) in (errno.ENOENT, errno.ENOTDIR, *_UNREACHABLE[:2]):
        return "The outputs folder is missing.", f"Restore it, or connect its disk; {_GOES_ON}"
    reason = getattr(error, "strerror", None) or error
    return f"The outputs folder cannot be written ({reason}).", f"Make it writable; {_GOES_ON}"
