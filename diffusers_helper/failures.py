"""The way from an exception, or a dead engine, to the `Failed` event with an explanation and a remedy."""

from __future__ import annotations

import signal
import traceback
from pathlib import Path

from diffusers_helper.errors import FailureCode, LongtakeError
from diffusers_helper.events import Failed
from diffusers_helper.foreign_errors import Trouble, trouble_of
from diffusers_helper.machine.storage import is_storage_trouble, storage_words

MAX_DETAIL = 8000  # in characters: enough for a deep traceback, small enough for one line of the log
MAX_ERRORS = 4000  # characters of a dead engine's standard error
_NO_MEMORY: tuple[FailureCode, str, str] = (
    "out_of_memory",
    "There was not enough memory to go on.",
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
        "Check the network connection and start again; what was loaded so far is kept.",
    ),
    "proxy": (
        "download", "The model cannot be loaded by way of the proxy that is set ({text}).",
        "Unset ALL_PROXY, or set it to an address that begins with http://.",
    ),
    "installation": (
        "installation", "A package that Longtake needs cannot be loaded ({text}).",
        "Run ./webui.sh --setup-only to complete the installation.",
    ),
}  # fmt: skip
_KEPT = "What was finished until then is kept; start again."


def failed_event(
    error: BaseException, job: str, time: float, video: str | None, frames: int, folder: Path | None = None
) -> Failed:
    """Return the explanation of an exception that ended a job; `folder` is the job's own."""
    known = error if isinstance(error, LongtakeError) else _explained(error, folder)
    return Failed(
        job=job, time=time,
        message=known.message, remedy=known.remedy, code=known.code, setting=known.setting,
        detail="".join(traceback.format_exception(error))[-MAX_DETAIL:], video=video, frames=frames,
    )  # fmt: skip


def cause_of_death(exit_code: int | None) -> str:
    """Return how the engine process ended, by `Popen.returncode`, as it follows its name in a sentence."""
    if exit_code is not None and exit_code < 0:
        return f"was ended by {_signal_name(-exit_code)}"
    return "ended by itself" + ("" if exit_code is None else f" with code {exit_code}")


def engine_died_event(
    exit_code: int | None,
    job: str,
    time: float,
    video: str | None,
    frames: int,
    *,
    attempts: int = 1,
    lessons: str = "",
    errors: str = "",
) -> Failed:
    """Return the explanation of an engine process that cannot be kept alive.

    Args:
        exit_code: The value of `Popen.returncode`.
        attempts: The number of engines that have died at the job.
        lessons: The lessons from their deaths, a line each.
        errors: The last lines that the last one wrote to standard error.
    """
    remedy = _KEPT
    if exit_code == -signal.SIGKILL:
        remedy = f"Often the system's memory was full. {_KEPT}"
    tries = f" It was tried {attempts} times." if attempts > 1 else ""
    return Failed(
        job=job, time=time, remedy=remedy,
        message=f"The engine, the process that makes the video, {cause_of_death(exit_code)}.{tries}",
        detail="\n".join(filter(None, (lessons, f"engine exit code {exit_code}", errors[-MAX_ERRORS:]))),
        code="engine_died", video=video, frames=frames,
    )  # fmt: skip


def interrupted_event(job: str, time: float, video: str | None, frames: int, attempts: int) -> Failed:
    """Return the end of a job at one point of which the whole program has ended `attempts` times."""
    return Failed(
        job=job, time=time, remedy=_KEPT,
        message=f"Longtake was ended {attempts} times at the same point of this video.",
        code="engine_died", video=video, frames=frames,
    )  # fmt: skip


def _explained(error: BaseException, folder: Path | None) -> LongtakeError:
    """Return an error of another library as one with an explanation."""
    trouble, text = trouble_of(error), str(error).strip()
    if trouble != "disk_full" and is_storage_trouble(error, folder):
        return LongtakeError(*storage_words(error), code="storage")
    if trouble in _TROUBLES:
        code, message, remedy = _TROUBLES[trouble]
        return LongtakeError(message.format(text=text), remedy, code=code)
    first_line = text.splitlines()[0][:200] if text else "no further text"
    return LongtakeError(
        f"An unexpected error ended the job ({type(error).__name__}: {first_line}).",
        "Start again; if it returns, report it.",
    )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
