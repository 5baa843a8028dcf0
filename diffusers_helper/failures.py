"""The `Failed` events, with explanation and remedy, for exceptions and for engines that died."""

import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from diffusers_helper.errors import FailureCode, LongtakeError, first_line
from diffusers_helper.events import Failed
from diffusers_helper.library_errors import (
    Trouble,
    is_storage_trouble,
    last_trouble,
    storage_explanation,
    trouble_of,
)
from diffusers_helper.machine.signals import SIGHUP, SIGINT, SIGKILL, SIGTERM

MAX_DETAIL = 8000  # in characters: enough for a deep traceback, small enough for one line of the log
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
_START_AGAIN = "Start again; the finished sections are kept."
_FROM_OUTSIDE = (SIGKILL, SIGTERM, SIGINT, SIGHUP)

DriverStep = Literal["again", "cache", "find_mode", "blas", "versions", "report"]
"""The remedies for failures of the card's libraries. Each interface has its own sentence for each of them."""
LONGTAKE_DRIVER: dict[DriverStep, str] = {
    "again": _START_AGAIN,
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
    """Explain an error of the card's libraries, or of a dead process, with a guide; None for others."""
    trouble, line = last_trouble(text) or (None, "")
    if trouble not in _DRIVER_GUIDES:
        return None
    problem, steps = _DRIVER_GUIDES[trouble]
    guide = "\n".join(f"{number}. {remedies[step]}" for number, step in enumerate(steps, 1))
    return LongtakeError(f"{problem}: {line[:300].rstrip('.')}.", guide)


def failed_event(
    error: BaseException,
    job: str,
    time: float = 0.0,
    video: str | None = None,
    frames: int = 0,
    *,
    folder: Path | None = None,
    detail: str | None = None,
) -> Failed:
    cause = error.__cause__
    is_refusal = isinstance(error, LongtakeError)
    if is_refusal and cause and folder and is_storage_trouble(cause) and is_storage_trouble(cause, folder):
        failure = _explained(cause, folder)  # what was refused, such as a picture, cannot be read now
    else:
        failure = error if is_refusal else _explained(error, folder)
    if detail is None:
        detail = "".join(traceback.format_exception(error))[-MAX_DETAIL:]
    return Failed(
        job=job, time=time, message=failure.message, remedy=failure.remedy, code=failure.code,
        setting=failure.setting, detail=detail, video=video, frames=frames,
    )  # fmt: skip


def cause_of_death(exit_code: int | None) -> str:
    if exit_code is not None and exit_code < 0:
        return "was ended from outside" if -exit_code in _FROM_OUTSIDE else "crashed"
    return "ended by itself" if exit_code is None else f"ended by itself with code {exit_code}"


def engine_died(exit_code: int | None, attempts: int, errors: str) -> LongtakeError:
    remedy = _START_AGAIN
    if exit_code == -SIGKILL:
        remedy = f"The usual cause is that main memory was full: close other programs. {_START_AGAIN}"
    attempts_text = f" It was tried {attempts} times." if attempts > 1 else ""
    if failure := driver_failure(errors):
        remedy = failure.remedy
        attempts_text = f"{attempts_text} {failure.message}"
    message = f"The engine, the process that makes the video, {cause_of_death(exit_code)}.{attempts_text}"
    return LongtakeError(message, remedy, code="engine_died")


def _explained(error: BaseException, folder: Path | None) -> LongtakeError:
    trouble = trouble_of(error)
    text = str(error).strip()
    if trouble != "disk_full" and is_storage_trouble(error, folder):
        return LongtakeError(*storage_explanation(error), code="storage")
    if trouble in _TROUBLES:
        code, message, remedy = _TROUBLES[trouble]
        return LongtakeError(message.format(text=text), remedy, code=code)
    if trouble in _DRIVER_GUIDES and (failure := driver_failure(text)):
        return failure
    return LongtakeError(
        f"An unexpected error ended the job ({type(error).__name__}: {first_line(error)[:200]}).",
        "Start again. If the error occurs again, report it.",
    )
