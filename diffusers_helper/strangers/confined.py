"""The readers of files of unknown origin, which a program may move into a process with limits."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

_P = ParamSpec("_P")
_R = TypeVar("_R")


class Confinement:
    """The place where a program reads files of unknown origin.

    Attributes:
        elsewhere: A function that calls a reader with its arguments in a process with limits of memory and
            time. A program sets it once at its start; None for this process.
    """

    elsewhere: Callable[..., Any] | None = None


CONFINEMENT = Confinement()


def confined(reader: Callable[_P, _R]) -> Callable[_P, _R]:
    """Let a program choose where this function, which reads a file of unknown origin, is called.

    Its arguments and its result are plain data: numbers, texts, bytes, paths, and tuples, dicts and frozen
    dataclasses of such.
    """

    @wraps(reader)
    def call(*args: _P.args, **named: _P.kwargs) -> _R:
        elsewhere = CONFINEMENT.elsewhere
        return reader(*args, **named) if elsewhere is None else elsewhere(reader, *args, **named)

    return call
