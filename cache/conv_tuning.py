"""The measurement of several cases in other processes, since a rung may end the process that tries it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from cache.conv_routes import TRYING, ConvCase, RouteStore
from diffusers_helper.errors import LongtakeError

_log = logging.getLogger(__name__)

# The number of deaths in a run after which suspected rungs stay avoided.
_MOST_DEATHS = 3

Run = Callable[[Sequence[tuple[str, Sequence[str]]]], str]
"""A function that measures cases, given as texts with the rungs to leave out, in another process. It returns
"" if that has come to an orderly end, or else why the rung that was being tried has ended it. It raises an
error if no rung is to blame."""


def measure_in_processes(
    cases: Sequence[ConvCase], routes: RouteStore, run: Run, *, again: bool = False,
    said: Callable[[str, ConvCase], object] = lambda text, case: _log.warning("%s", text),
) -> None:  # fmt: skip
    """Measure cases, and let the store know the results. The next process leaves out what ended the last one.

    Args:
        again: Whether what ended processes before this run is tried.
        said: Called with a sentence about each rung that has ended a process, and the case.

    Raises:
        LongtakeError: If a process ends although no rung is being tried.
    """
    dead, waiting = list[tuple[ConvCase, str]](), list(cases)
    while waiting:
        before, reason = {case: routes.get(case) for case in waiting}, None
        tasks = [(str(case), sorted(_left_out(case, routes, dead, again))) for case in waiting]
        try:
            reason = run(tasks)
        finally:
            routes.reload()
            trying = [
                (case, rung)
                for case in waiting
                for rung, why in routes.get(case).deadly.items()
                if why == TRYING
            ]
            for case, _ in trying if reason is None else ():
                routes.put(case, before[case])  # the rung is not to blame
        if not reason:
            return
        if not trying:
            raise LongtakeError(f"The measurement has ended early: {reason}.", "Start it again.")
        case, rung = trying[0]
        said(f"{rung} ended the process at {case} ({reason}). It stays avoided there.", case)
        routes.block(case, rung, f"it ended the process that measured it: {reason}")
        dead.append((case, rung))
        waiting = waiting[waiting.index(case) :]


def _left_out(
    case: ConvCase, routes: RouteStore, dead: Sequence[tuple[ConvCase, str]], again: bool
) -> set[str]:
    """Return the rungs that ended a process at a case, and after several deaths those that may do so, too.

    Args:
        dead: The cases and rungs at which processes of this run ended.
    """
    route = routes.get(case)
    risky = routes.suspects(case) - set(route.measured) if len(dead) >= _MOST_DEATHS else set[str]()
    return risky | ({rung for where, rung in dead if where == case} if again else set(route.deadly))
