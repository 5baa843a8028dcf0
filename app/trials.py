"""Trials of kernels that may crash or never answer, in processes of their own.

Each process is `python -m app.probe QUESTION`, whose answers are lines of JSON.
"""

import json
import queue
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import Any

from app.jobs.stdio import Child, close_child
from app.machine import module_command, this_local
from diffusers_helper.cancel import CancelToken
from diffusers_helper.library_errors import last_trouble
from diffusers_helper.machine.local import Local
from diffusers_helper.machine.routes import RouteStore, Task
from diffusers_helper.machine.signals import SIGHUP, SIGINT, SIGKILL, SIGTERM

_POLL_SECONDS = 0.2
_START_SECONDS = 300.0  # for a process that has read no way yet: a cold disk is not a way's fault
_END_SECONDS = 120.0  # for a process that has answered everything, or that writes what it leaves behind
# The exit codes of processes that somebody else has ended, the kernel included when memory runs out.
_MAX_DEATHS = 3  # after which a way is no longer tried in this trial
_EXTERNAL_EXIT_CODES = [-number for number in (SIGHUP, SIGINT, SIGKILL, SIGTERM)]


def local_with_trials(environ: Mapping[str, str]) -> Local:
    return replace(this_local(environ), try_candidates=partial(try_candidates, environ=environ))


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
    question: Sequence[Any], take: Callable[[Any], object], environ: Mapping[str, str], seconds: float = inf,
    all_seconds: float = inf,
) -> ProbeEnd:  # fmt: skip
    """Ask `app.probe` in a process of its own, and pass each answer on."""
    end_time = time.monotonic() + all_seconds
    with asked(question, environ) as process:
        while not isinstance(answer := _answer_of(*process, seconds, end_time), ProbeEnd):
            take(answer)
        return answer


def _answer_of(
    child: Child, answers: queue.SimpleQueue[Any], seconds: float, end_time: float,
    cancel: CancelToken | None = None,
) -> Any:  # fmt: skip
    begin = time.monotonic()
    while True:
        if cancel is not None:
            cancel.check()
        now = time.monotonic()
        if now > end_time:
            reason = f"no answer within {now - begin:.0f} seconds"
            return ProbeEnd(reason, is_transient=True, is_late=True)
        try:
            answer = answers.get(timeout=_POLL_SECONDS)
        except queue.Empty:
            if now - begin > seconds:
                return ProbeEnd(f"it took more than {seconds:g} seconds", is_late=True)
            continue
        if answer is not None:
            return answer
        try:
            return _end_of(child.process.wait(_END_SECONDS), child.errors.text())
        except subprocess.TimeoutExpired:
            return ProbeEnd("its process did not end", is_late=True)


def _end_of(code: int, errors: str) -> ProbeEnd:
    if code == 0:
        return ProbeEnd()
    trouble, line = last_trouble(errors) or ("", "")
    is_transient = code in _EXTERNAL_EXIT_CODES or trouble in ("device_memory", "host_memory")
    return ProbeEnd(f"its process ended with {code}{f' ({line})' if line else ''}", is_transient)


def try_candidates(
    tasks: Sequence[Task], routes: RouteStore, *, environ: Mapping[str, str], device: str = "",
    limit_bytes: int = 0, seconds: float = inf, all_seconds: float = inf,
    on_result: Callable[[Task, str, Mapping[str, Any]], object] = lambda task, candidate, result: None,
    cancel: CancelToken | None = None,
) -> bool:  # fmt: skip
    """Try ways in processes that these may end or halt, and store what is found.

    A way is blocked while it is tried. Nothing is stored of one that was ended from outside, lacked memory,
    or was being tried when the time was over. A way that ended several processes is left out.

    Args:
        device: The device of torch; "" for the one that it prefers.
        seconds, all_seconds: The most time for one way, and for all of them.

    Returns:
        Whether all were tried.
    """
    remaining = [(task, candidate) for task in tasks for candidate in task.candidates]
    deaths = Counter[tuple[str, str]]()
    end_time = time.monotonic() + all_seconds
    while remaining:
        with asked(["ways", device, limit_bytes], environ) as process:
            answer: Any = None
            while remaining and not isinstance(answer, ProbeEnd):
                is_first = answer is None
                task, candidate = remaining[0]
                with routes.trying(task.case, candidate) as results:
                    if is_first:
                        answer = _answer_of(*process, _START_SECONDS, end_time, cancel)
                    if not isinstance(answer, ProbeEnd):
                        process[0].send({"task": [task.case.operation, task.arguments, candidate]})
                        answer = _answer_of(*process, seconds, end_time, cancel)
                    result: Any = answer
                    if isinstance(answer, ProbeEnd):
                        if answer.is_late and answer.is_transient:
                            return False
                        if not answer.reason and not is_first:
                            break  # the way before has lost the device, which another process may have again
                        result = {"failed": answer.reason or "its process gave no answer"}
                        result |= {"passes" if answer.is_transient else "is_deadly": True}
                        deaths[task.case.operation, candidate] += 1
                    if not result.get("passes"):
                        results.append(result)
                del remaining[0]
                on_result(task, candidate, result)
        remaining = [entry for entry in remaining if deaths[entry[0].case.operation, entry[1]] < _MAX_DEATHS]
    return True
