"""Repetition of work after errors that have a cure."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")


def retry(work: Callable[[], _T], cure_for: Callable[[Exception], Callable[[], None] | None]) -> _T:
    """Do the work, and repeat it after each error that has a cure.

    Args:
        work: The work, from its beginning.
        cure_for: A function that returns the cure for an error, or None to let the error pass. It must not
            keep the error, whose frames hold tensors. The cure runs when they are gone; an exception of the
            cure ends the work.
    """
    while True:
        try:
            return work()
        except Exception as error:
            cure = cure_for(error)
            if cure is None:
                raise
            traceback.clear_frames(error.__traceback__)
        # At this point the exception is gone, and the tensors of its frames with it.
        cure()
