"""The readers of untrusted files, which a program may run in a process with limits."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

_P = ParamSpec("_P")
_R = TypeVar("_R")


class Confinement:
    """The function that calls a reader in a process with limits, which a program sets once at its start."""

    run_reader: Callable[..., Any] | None = None


CONFINEMENT = Confinement()


def confined(reader: Callable[_P, _R]) -> Callable[_P, _R]:
    """Let a program choose the process in which this function reads an untrusted file.

    Its arguments and its result are plain data, and tuples, dicts and frozen dataclasses of these.
    """

    @wraps(reader)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        run_reader = CONFINEMENT.run_reader
        return reader(*args, **kwargs) if run_reader is None else run_reader(reader, *args, **kwargs)

    return call
