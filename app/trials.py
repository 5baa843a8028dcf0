"""Trials of kernels that may crash or never answer, in processes of their own.

Each process is `python -m app.probe QUESTION`, whose answers are lines of JSON.
"""

from __future__ import annotations

import json
import queue
import subprocess
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from app.jobs.stdio import Child, close_child
from app.machine import module_command, this_local
from diffusers_helper.cancel import CancelToken
from diffusers_helper.errors import LongtakeError
from diffusers_helper.library_errors import last_trouble
from diffusers_helper.machine.local import Local
from diffusers_helper.machine.signals import SIGHUP, SIGINT, SIGKILL, SIGTERM

_KERNEL_SECONDS, _POLL_SECONDS = 120.0, 0.2
_END_SECONDS = 120.0  # for a process that has answered everything, or that writes what it leaves behind
# The exit codes of processes that somebody else has ended, the kernel included when memory runs out.
_EXTERNAL_EXIT_CODES = [-number for number in (SIGHUP, SIGINT, SIGKILL, SIGTERM)]


def local_with_trials(environ: Mapping[str, str]) -> Local:
    return replace(
        this_local(environ), try_kernels=partial(try_kernels, environ=environ),
        measure_convolutions=partial(measure_convolutions, environ=environ),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class ProbeEnd:
    """The end of a process that was asked.

    Attributes:
        reason: Why it has not answered everything; "" if it has.
        is_transient: Whether the reason may be gone next time: an end from outside, or a lack of memory.
        is_late: Whether it was ended because it did not answer in time.
    """

    reason: str = ""
    is_transient: bool = False
    is_late: bool = False


@contextmanager
def asked(
    question: Sequence[Any], environ: Mapping[str, str]
) -> Generator[tuple[Child, queue.SimpleQueue[Any]]]:
    """Ask `app.probe` in a process that ends with the context. None follows its last answer."""
    command, variables = module_command("app.probe", environ)
    answers = queue.SimpleQueue[Any]()
    child = Child((*command, json.dumps(question)), variables, answers.put, is_apart=True)
    try:
        yield child, answers
    finally:
        close_child(child.process, 0.0)


def ask_probe(
    question: Sequence[Any], take: Callable[[Any], object], environ: Mapping[str, str],
    seconds: float | None = None, cancel: CancelToken | None = None, *, all_seconds: float | None = None,
) -> ProbeEnd:  # fmt: skip
    """Ask `app.probe` in a process of its own, and pass each answer on.

    Args:
        seconds, all_seconds: The most time that one answer, or all of them, may take; None for any.
    """
    with asked(question, environ) as (child, answers):
        begin = asked_at = time.monotonic()
        while True:
            if cancel is not None:
                cancel.check()
            try:
                answer = answers.get(timeout=_POLL_SECONDS)
            except queue.Empty:
                if seconds is not None and time.monotonic() - asked_at > seconds:
                    return ProbeEnd(f"it took more than {seconds:g} seconds", is_late=True)
                if all_seconds is not None and time.monotonic() - begin > all_seconds:
                    return ProbeEnd(
                        f"no answer within {time.monotonic() - asked_at:.0f} seconds", is_late=True
                    )
                continue
            if answer is None:
                try:
                    return _end_of(child.process.wait(_END_SECONDS), child.errors.text())
                except subprocess.TimeoutExpired:
                    return ProbeEnd("its process did not end", is_late=True)
            take(answer)
            asked_at = time.monotonic()


def _end_of(code: int, errors: str) -> ProbeEnd:
    if code == 0:
        return ProbeEnd()
    trouble, line = last_trouble(errors) or ("", "")
    is_transient = code in _EXTERNAL_EXIT_CODES or trouble in ("device_memory", "host_memory")
    return ProbeEnd(f"its process ended with {code}{f' ({line})' if line else ''}", is_transient)


def try_kernels(
    candidates: Sequence[str], *shape: object, environ: Mapping[str, str], seconds: float = _KERNEL_SECONDS,
    on_progress: Callable[[int, int], object] = lambda done, total: None, cancel: CancelToken | None = None,
) -> list[dict[str, Any]]:  # fmt: skip
    """Collect the results of `attention.trial.try_kernels` from processes that its kernels may end.

    Args:
        shape: The other arguments of that function.
        on_progress: Called with the number of candidates tried and of all, first with none tried.
    """
    results = list[dict[str, Any]]()

    def on_result(result: dict[str, Any]) -> None:
        results.append(result)
        on_progress(len(results), len(candidates))

    on_progress(0, len(candidates))
    while remaining := candidates[(num_before := len(results)) :]:
        end = ask_probe(["kernels", remaining, *shape], on_result, environ, seconds, cancel)
        if len(results) < len(candidates) and (end.reason or len(results) == num_before):
            failed = {
                "backend": candidates[len(results)],
                "failed": end.reason or "its process gave no answer",
            }
            on_result({**failed, "passes": True} if end.is_transient or end.is_late else failed)
    return results


def measure_convolutions(
    tasks: Sequence[tuple[str, Sequence[str]]], folder: Path | None, device: str, *,
    environ: Mapping[str, str], take: Callable[[str, str], object], limit_bytes: int = 0,
    answer_seconds: float | None = None, all_seconds: float | None = None, cancel: CancelToken | None = None,
) -> str:  # fmt: skip
    """Measure convolutions in a process that they may end or halt, and store what is found.

    Args:
        tasks: The cases as texts, with the rungs to leave out.
        folder: The folder of the store of routes.
        take: Called with the case and the result, in words, of each measurement.
        answer_seconds, all_seconds: The most time for one case, and the time after which no further one is
            begun; None for any.

    Returns:
        Why the process has ended early, if the rung that it was trying is to blame; otherwise "".
    """
    question = ["convolutions", tasks, str(folder), device, limit_bytes, all_seconds]
    end = ask_probe(question, lambda answer: take(*answer), environ, answer_seconds, cancel)
    if end.is_transient:
        raise LongtakeError(f"The measurement has ended early: {end.reason}.", "Start it again.")
    return end.reason
