"""A function that repeats work after errors that have a cure."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")


def retry(work: Callable[[], _T], cure_for: Callable[[Exception], Callable[[], None] | None]) -> _T:
    """Do the work, and repeat it after each error that has a cure.

    Args:
        cure_for: A function that returns the cure for an error, or None to raise the error. It must not keep
            a reference to the error, whose frames hold tensors. The cure runs after they are freed. If the
            cure raises an exception, the work is not repeated.
    """
    while True:
        try:
            return work()
        except Exception as error:
            cure = cure_for(error)
            if cure is None:
                raise
            traceback.clear_frames(error.__traceback__)
        # At this point the exception and the tensors in its frames are freed.
        cure()
