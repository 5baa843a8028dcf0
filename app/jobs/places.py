"""The places of jobs in a queue, which are numbers with gaps for the jobs that are moved between others."""

from __future__ import annotations

# Places are seconds since the epoch, which a float resolves to 2.4e-7.
_LEAST_ROOM, _NEW_ROOM = 2.0**-20, 2.0**-6


def places(place: float, others: list[float], number: int) -> list[float]:
    """Return the place of a job that moves in front of `others[number]`, and new places of those behind it.

    If the gap between the neighbours is too small, jobs behind move until there are gaps for many more moves.
    """
    low = others[number - 1] if number else (others[0] if others else place) - 2.0
    for end in range(number, len(others) + 1):
        count = 1 + end - number
        high = others[end] if end < len(others) else low + count + 1.0
        step = (high - low) / (count + 1)
        if step >= (_LEAST_ROOM if count == 1 else _NEW_ROOM):
            return [low + step * (index + 1) for index in range(count)]
    raise AssertionError("there is space after the last job")
