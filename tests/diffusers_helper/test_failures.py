"""Tests of what a user reads when a job cannot go on."""

import errno
import json
import os
import signal
import sqlite3
from pathlib import Path

import pytest

from diffusers_helper.cancel import CancelToken
from diffusers_helper.errors import INPUT_CODES, InputError, LongtakeError, PictureError
from diffusers_helper.events import Event, Failed, from_dict, to_dict
from diffusers_helper.failures import MAX_DETAIL, engine_died, failed_event
from diffusers_helper.request import GenerationRequest
from diffusers_helper.runner import Runner
from tests.support.jobs import asked_in


class OutOfMemoryError(RuntimeError):
    """An error with the name of torch's own."""


class HfHubHTTPError(OSError):
    """An error with the name of the hub client's own."""


class EntryNotFound(HfHubHTTPError):
    """A subclass of the hub's error."""


CASES = {
    "ours": (
        LongtakeError("The model lacks a part.", "Get it."), "error", "The model lacks a part.", "Get it.",
    ),
    "input": (
        InputError("steps is 0; expected 1.", "Set it."), "bad_input", "steps is 0; expected 1.", "Set it.",
    ),
    "a setting": (
        InputError(setting="steps", value=0, expected="1", remedy="Set it."),
        "bad_input",
        "`steps` is 0; expected 1.",
        "Set it.",
    ),
    "picture": (PictureError("The picture is empty.", "Choose another."), "picture", "empty", "another"),
    "a full index": (
        sqlite3.OperationalError("database or disk is full"),
        "disk_full",
        "The disk is full",
        "Free some space",
    ),
    "main memory": (
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes."),
        "out_of_memory",
        "not enough memory",
        "resolution",
    ),
    "memory": (MemoryError(), "out_of_memory", "There was not enough memory", "resolution"),
    "gpu memory": (
        OutOfMemoryError("HIP out of memory. Tried"), "out_of_memory", "not enough memory", "resolution",
    ),
    "gpu memory by another name": (
        RuntimeError("CUDA Out Of Memory"), "out_of_memory", "not enough memory", "resolution",
    ),
    "disk": (
        OSError(errno.ENOSPC, "No space left on device"), "disk_full", "The disk is full", "Free some space",
    ),
    "network": (EntryNotFound("404 Client Error"), "download", "could not be downloaded", "network"),
    "package": (
        ModuleNotFoundError("No module named 'av'"), "installation", "No module named 'av'", "webui.sh",
    ),
    "anything": (
        ZeroDivisionError("division by zero\nmore"), "error", "(ZeroDivisionError: division by zero)", ".",
    ),
    "without words": (RuntimeError(), "error", "(RuntimeError: RuntimeError)", "."),
}  # fmt: skip


def test_a_picture_of_the_job_that_cannot_be_read_now_is_trouble_of_the_storage(tmp_path: Path) -> None:
    def failure(number: int, folder: str) -> Failed:
        refusal = PictureError("The picture cannot be read.", "Choose another one.")
        refusal.__cause__ = OSError(number, os.strerror(number), str(tmp_path / "job" / "input.png"))
        return failed_event(refusal, "job", folder=tmp_path / folder)

    assert failure(errno.EMFILE, "job").code == failure(errno.EACCES, "job").code == "storage"
    assert failure(errno.EMFILE, "job").message == "Too many files are open."
    assert failure(errno.ENOENT, "job").code == failure(errno.EACCES, "another").code == "picture"


GUIDES = {
    "miopenStatusUnknownError": "MIOpen, AMD's library for neural networks, failed",
    "MIOpen Error: batchnorm.cpp:204: Code object build failed": "MIOpen, AMD's library",
    "CUDA error: HIPBLAS_STATUS_INTERNAL_ERROR when calling `hipblasLtMatmul(...)`": "matrix products failed",
    "rocblas_status_internal_error": "matrix products failed",
    "HIP error: no kernel image is available for execution on the device": "no kernel for a computation",
    "HIP error: unspecified launch failure\nCompile with TORCH_USE_HIP_DSA": "The GPU stopped with an error",
}


@pytest.mark.parametrize("text", GUIDES)
def test_a_failure_of_the_cards_libraries_comes_with_its_guide(text: str) -> None:
    event = failed_event(RuntimeError(text), "a-job", 1.5, None, 0)
    assert GUIDES[text] in event.message
    assert event.message.endswith(f": {text.splitlines()[0]}.")
    steps = event.remedy.splitlines()
    assert [int(step[0]) for step in steps] == list(range(1, len(steps) + 1))
    assert ("`doctor` --clear-miopen-cache" in event.remedy) == ("MIOpen" in event.message)
    assert ("--miopen-find-mode NORMAL" in event.remedy) == ("MIOpen" in event.message)
    assert ("TORCH_BLAS_PREFER_HIPBLASLT=0" in event.remedy) == ("products" in event.message)
    assert "the finished sections are kept" in event.remedy
    # Engines that died with these words in a row say the same.
    errors = (
        f"{text}\nMIOpen(HIP): Warning [Find] slow\nWARNING diffusers_helper.x: miopenStatusInternalError"
    )
    died = engine_died(-signal.SIGABRT, 3, errors)
    assert died.message.endswith(f"It was tried 3 times. {event.message}")
    assert (died.remedy, died.code) == (event.remedy, "engine_died")


def test_only_errors_at_run_time_are_the_cards() -> None:
    event = failed_event(ValueError("miopenStatusUnknownError"), "a-job", 1.5, None, 0)
    assert "An unexpected error" in event.message


@pytest.mark.parametrize("case", CASES)
def test_each_kind_of_error_has_its_sentence_and_its_remedy(case: str) -> None:
    error, code, message, remedy = CASES[case]
    event = failed_event(error, "a-job", 1.5, "/video.mp4", 37)
    assert (event.job, event.time, event.video, event.frames) == ("a-job", 1.5, "/video.mp4", 37)
    assert event.code == code
    assert (event.code in INPUT_CODES) == isinstance(error, InputError)
    assert event.setting == getattr(error, "setting", "")
    assert message in event.message
    assert remedy in event.remedy
    assert "\n" not in event.message + event.remedy
    assert type(error).__name__ in event.detail
    assert from_dict(json.loads(json.dumps(to_dict(event)))) == event


def test_the_detail_is_the_end_of_the_traceback() -> None:
    try:
        raise ValueError("x" * 2 * MAX_DETAIL + " the end")
    except ValueError as error:
        event = failed_event(error, "a")
    assert len(event.detail) == MAX_DETAIL
    assert event.detail.endswith("the end\n")
    assert len(event.message) < 400


@pytest.mark.parametrize(
    ("exit_code", "attempts", "words"),
    [
        (-signal.SIGKILL, 1, "was ended from outside."), (-signal.SIGABRT, 1, "crashed."),
        (-40, 3, "crashed. It was tried 3 times."), (3, 1, "with code 3"), (0, 1, "with code 0"),
        (None, 1, "ended by itself."),
    ],
)  # fmt: skip
def test_a_dead_engine_is_told_by_how_it_died(exit_code: int | None, attempts: int, words: str) -> None:
    error = engine_died(exit_code, attempts, "")
    assert error.code == "engine_died"
    assert words in error.message
    assert "kept" in error.remedy
    assert ("memory" in error.remedy) == (exit_code == -signal.SIGKILL)


def test_no_number_of_the_system_stands_in_a_sentence() -> None:
    event = failed_event(OSError(-2, "Name or service not known"), "a", 0.0, None, 0)
    assert "Name or service not known" in event.message
    assert "Errno" not in event.message


def test_a_failure_of_version_0_1_is_readable() -> None:
    old = {"event": "failed", "job": "a", "time": 1.0, "message": "It broke.", "remedy": "", "code": "error"}
    assert from_dict(old) == Failed(job="a", time=1.0, message="It broke.", remedy="")


@pytest.mark.parametrize("content", [None, "[]", "{", '{"prompt": 5}'])
def test_a_job_whose_request_cannot_be_read_fails_in_words(tmp_path: Path, content: str | None) -> None:
    events: list[Event] = []
    if content is not None:
        (tmp_path / "request.json").write_text(content)
    Runner().run(tmp_path, events.append, CancelToken())
    (end,) = events
    assert isinstance(end, Failed)
    assert (end.code, end.remedy) == ("bad_input", "Put the file back as it was, or remove the job.")
    assert end.message.startswith("request.json cannot be used: ")


@pytest.mark.slow
def test_a_failed_download_is_logged_without_a_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def load(*_: object, **__: object) -> None:
        raise ImportError("Using SOCKS proxy, but the 'socksio' package is not installed.")

    monkeypatch.setattr("diffusers_helper.runner.load_models", load)
    events: list[Event] = []
    request = GenerationRequest(image="photo.png")
    Runner().run(asked_in(tmp_path / "job", request), events.append, CancelToken())
    (end,) = events
    assert isinstance(end, Failed)
    assert end.code == "download"
    assert "Unset ALL_PROXY" in end.remedy
    (record,) = (record for record in caplog.records if record.name == "diffusers_helper.runner")
    assert end.message in record.getMessage()
    assert not record.exc_info
