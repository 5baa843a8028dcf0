"""From an exception, or a dead engine, to the `Failed` event: what happened and what to do about it."""

from __future__ import annotations

import signal
import traceback
from pathlib import Path

from diffusers_helper.errors import InputError, LongtakeError
from diffusers_helper.events import Failed, FailureCode
from diffusers_helper.storage import is_storage_trouble, storage_words

MAX_DETAIL = 8000  # characters: a deep traceback, still small enough for one line of the event log

_DOWNLOAD_ERRORS = {
    "LocalEntryNotFoundError", "OfflineModeIsEnabled", "HfHubHTTPError", "RepositoryNotFoundError",
    "ConnectError", "ConnectTimeout", "ReadTimeout", "ConnectionError",
}  # fmt: skip
_SHORTER = "Choose a smaller resolution, or close other programs that use memory, and start again."
_KEPT = "What was finished until then is kept; start again."


def failed_event(
    error: BaseException, job: str, time: float, video: str | None, frames: int, folder: Path | None = None
) -> Failed:
    """Return what a person should read about an exception that ended a job.

    `video` and `frames` are what there was by then, `folder` is the job's own. Errors of libraries are told
    apart by their names, so that no library is imported for it.
    """
    code: FailureCode = "error"
    if isinstance(error, LongtakeError):
        message, remedy = error.message, error.remedy
        code = "bad_input" if isinstance(error, InputError) else "error"
    else:
        is_storage = is_storage_trouble(error, folder)
        message, remedy = storage_words(error) if is_storage else _sentences(error)
        code = "storage" if is_storage else "error"
    detail = "".join(traceback.format_exception(error))[-MAX_DETAIL:]
    return Failed(
        job=job,
        time=time,
        message=message,
        remedy=remedy,
        detail=detail,
        code=code,
        video=video,
        frames=frames,
    )


def cause_of_death(exit_code: int | None) -> str:
    """How the engine process came to its end, as it follows after its name. As `Popen.returncode`."""
    if exit_code is not None and exit_code < 0:
        return f"was ended by {_signal_name(-exit_code)}"
    return "ended by itself" + ("" if exit_code is None else f" with code {exit_code}")


def engine_died_event(
    exit_code: int | None,
    job: str,
    time: float,
    video: str | None,
    frames: int,
    lessons: str = "",
    attempts: int = 0,
) -> Failed:
    """Return what a person should read when the engine process is gone for good.

    Args:
        exit_code: As `Popen.returncode`.
        lessons: What is known of all its deaths, a line each.
        attempts: How often the work was tried; 0 where it was not tried again.
    """
    remedy = _KEPT
    if exit_code == -signal.SIGKILL:
        remedy = f"Often the system's memory was full. {_KEPT}"
    tries = f" It was tried {attempts} times." if attempts else ""
    return Failed(
        job=job, time=time, remedy=remedy,
        message=f"The engine, the process that makes the video, {cause_of_death(exit_code)}.{tries}",
        detail="\n".join(filter(None, (lessons, f"engine exit code {exit_code}"))),
        code="engine_died", video=video, frames=frames,
    )  # fmt: skip


def interrupted_event(job: str, time: float, video: str | None, frames: int, attempts: int) -> Failed:
    """Return what a person should read when the whole program has ended `attempts` times at one point."""
    return Failed(
        job=job, time=time, remedy=_KEPT,
        message=f"Longtake was ended {attempts} times at the same point of this video.",
        code="engine_died", video=video, frames=frames,
    )  # fmt: skip


def _sentences(error: BaseException) -> tuple[str, str]:
    name, text = type(error).__name__, str(error)
    if isinstance(error, MemoryError) or name == "OutOfMemoryError" or "out of memory" in text.lower():
        return "There was not enough memory to go on.", _SHORTER
    if any(kind.__name__ in _DOWNLOAD_ERRORS for kind in type(error).__mro__):
        return (
            "The model could not be downloaded from huggingface.co.",
            "Check the network connection and start again; what was loaded so far is kept.",
        )
    if isinstance(error, ImportError):
        return (
            f"A package that Longtake needs cannot be loaded ({text}).",
            "Run ./webui.sh --setup-only to complete the installation.",
        )
    first_line = text.strip().splitlines()[0][:200] if text.strip() else "no further text"
    return (
        f"An unexpected error ended the job ({name}: {first_line}).",
        "Start again; if it returns, report it.",
    )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
