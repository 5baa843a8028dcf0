"""Work that is done again after an error that something can be done about."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")


def retry(work: Callable[[], _T], cure_for: Callable[[Exception], Callable[[], None] | None]) -> _T:
    """Do the work, and do it again after each error that has a cure.

    Args:
        work: What to do, from its beginning.
        cure_for: Given an error, returns what to do against it, or None to let the error pass. It must not
            keep the error, whose frames hold tensors. The cure runs when they are gone; what it raises ends
            the work.
    """
    while True:
        try:
            return work()
        except Exception as error:
            cure = cure_for(error)
            if cure is None:
                raise
            traceback.clear_frames(error.__traceback__)
        # Out here the exception is gone, and with it the tensors of its frames.
        cure()
