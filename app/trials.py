"""Trials of kernels that may crash or never answer, in processes of their own.

Each process is `python -m app.probe QUESTION`, whose answers are lines of JSON.
"""

from __future__ import annotations

import json
import queue
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from app.jobs.stdio import Child, close_child
from app.machine import module_command, this_local
from diffusers_helper.cancel import CancelToken
from diffusers_helper.errors import LongtakeError
from diffusers_helper.foreign_errors import last_trouble
from diffusers_helper.machine.local import Local
from diffusers_helper.machine.signals import SIGHUP, SIGINT, SIGKILL, SIGTERM

_ATTENTION_SECONDS, _POLL_SECONDS = 120.0, 0.2
_END_SECONDS = 120.0  # for a process that has answered everything, or that writes what it leaves behind
# The exit codes of processes that somebody else has ended, the kernel included when memory runs out.
_OUTSIDE = [-number for number in (SIGHUP, SIGINT, SIGKILL, SIGTERM)]


def local_with_trials(environ: Mapping[str, str]) -> Local:
    """Return this machine's settings for jobs that try and measure what is not known of its card."""
    tries, measures = (partial(one, environ=environ) for one in (try_attention, measure_convolutions))
    return replace(this_local(environ), try_attention=tries, measure_convolutions=measures)


@dataclass(frozen=True, slots=True)
class End:
    """The end of a process that was asked.

    Attributes:
        words: The reason for which it has not answered everything; "" if it has.
        passes: Whether the reason may be gone next time: an end from outside, or a lack of memory.
        is_late: Whether it was ended because it did not answer in time.
    """

    words: str = ""
    passes: bool = False
    is_late: bool = False


def ask_probe(
    question: Sequence[Any], take: Callable[[Any], object], environ: Mapping[str, str],
    seconds: float | None = None, cancel: CancelToken | None = None, *, all_seconds: float | None = None,
) -> End:  # fmt: skip
    """Ask `app.probe` in a process of its own, and pass each answer on.

    Args:
        seconds: The most time that one answer may take; None for any.
        all_seconds: The most time that all answers may take; None for any.

    Raises:
        GenerationCancelled: If the token was set meanwhile. The process has ended then.
    """
    command, variables = module_command("app.probe", environ)
    answers = queue.SimpleQueue[Any]()
    child = Child((*command, json.dumps(question)), variables, answers.put, is_apart=True)
    try:
        begin = asked = time.monotonic()
        while True:
            if cancel is not None:
                cancel.check()
            try:
                answer = answers.get(timeout=_POLL_SECONDS)
            except queue.Empty:
                if seconds is not None and time.monotonic() - asked > seconds:
                    return End(f"it took more than {seconds:g} seconds", is_late=True)
                if all_seconds is not None and time.monotonic() - begin > all_seconds:
                    return End(f"no answer within {time.monotonic() - asked:.0f} seconds", is_late=True)
                continue
            if answer is None:
                return _end_of(child.process.wait(_END_SECONDS), child.errors.text())
            take(answer)
            asked = time.monotonic()
    except subprocess.TimeoutExpired:
        return End("its process did not end", is_late=True)
    finally:
        close_child(child.process, 0.0)


def _end_of(code: int, errors: str) -> End:
    if code == 0:
        return End()
    trouble, line = last_trouble(errors) or ("", "")
    passes = code in _OUTSIDE or trouble in ("device_memory", "host_memory")
    return End(f"its process ended with {code}{f' ({line})' if line else ''}", passes)


def try_attention(
    ways: Sequence[str], *shape: object, environ: Mapping[str, str], seconds: float = _ATTENTION_SECONDS,
    told: Callable[[int, int], object] = lambda done, total: None, cancel: CancelToken | None = None,
) -> list[dict[str, Any]]:  # fmt: skip
    """Return the results of `attention.attending.try_ways`, from processes that its kernels may end or halt.

    Args:
        shape: The other arguments of `try_ways`.
        told: Called with the numbers of tried and of all ways, first with none tried.

    Raises:
        GenerationCancelled: If the token was set meanwhile.
    """
    found = list[dict[str, Any]]()

    def take(result: dict[str, Any]) -> None:
        found.append(result)
        told(len(found), len(ways))

    told(0, len(ways))
    while left := ways[(before := len(found)) :]:
        end = ask_probe(["attention", left, *shape], take, environ, seconds, cancel)
        if len(found) < len(ways) and (end.words or len(found) == before):
            failed = {"way": ways[len(found)], "failed": end.words or "its process gave no answer"}
            take({**failed, "passes": True} if end.passes or end.is_late else failed)
    return found


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
        limit_bytes: The most memory that the process may take on the device; 0 for any.
        answer_seconds, all_seconds: The most time for one case, and the time after which no further one is
            begun; None for any.

    Returns:
        The reason for which the process has ended early, if the rung that it was trying is to blame; or "".

    Raises:
        GenerationCancelled: If the token was set meanwhile.
        LongtakeError: If something else has ended the process.
    """
    question = ["convolutions", tasks, str(folder), device, limit_bytes, all_seconds]
    end = ask_probe(question, lambda answer: take(*answer), environ, answer_seconds, cancel)
    if end.passes:
        raise LongtakeError(f"The measurement has ended early: {end.words}.", "Start it again.")
    return end.words
