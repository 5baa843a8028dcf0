"""The measurement of several cases in other processes, since a rung may end the process that tries it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from cache.conv_routes import TRYING, ConvCase, RouteStore
from diffusers_helper.errors import LongtakeError

_log = logging.getLogger(__name__)

# The number of deaths in a run after which suspected rungs stay avoided.
_MAX_DEATHS = 3

RunMeasurements = Callable[[Sequence[tuple[str, Sequence[str]]]], str]
"""A function that measures cases, given as texts with the rungs to leave out, in another process. It returns
why the rung that was being tried has ended that process; "" if none has. It raises other errors."""


def measure_in_processes(
    cases: Sequence[ConvCase], routes: RouteStore, run: RunMeasurements, *, again: bool = False,
    on_death: Callable[[str, ConvCase], object] = lambda text, case: _log.warning("%s", text),
) -> None:  # fmt: skip
    """Measure cases, and reload the store. Each process leaves out the rungs that ended earlier ones."""
    deaths: list[tuple[ConvCase, str]] = []
    remaining = list(cases)
    while remaining:
        previous_routes = {case: routes.get(case) for case in remaining}
        reason = None
        tasks = [(str(case), sorted(_left_out(case, routes, deaths, again))) for case in remaining]
        try:
            reason = run(tasks)
        finally:
            routes.reload()
            being_tried = [
                (case, rung)
                for case in remaining
                for rung, why in routes.get(case).deadly.items()
                if why == TRYING
            ]
            if reason is None:  # `run` has raised an error, for which the rung is not to blame
                for case, _ in being_tried:
                    routes.put(case, previous_routes[case])
        if not reason:
            return
        if not being_tried:
            raise LongtakeError(f"The measurement has ended early: {reason}.", "Start it again.")
        case, rung = being_tried[0]
        on_death(f"{rung} ended the process at {case} ({reason}). It stays avoided there.", case)
        routes.block(case, rung, f"it ended the process that measured it: {reason}")
        deaths.append((case, rung))
        remaining = remaining[remaining.index(case) :]


def _left_out(
    case: ConvCase, routes: RouteStore, deaths: Sequence[tuple[ConvCase, str]], again: bool
) -> set[str]:
    """List the rungs that ended a process at a case, and after several `deaths` the suspected ones, too."""
    route = routes.get(case)
    suspected = routes.suspects(case) - set(route.measured) if len(deaths) >= _MAX_DEATHS else set[str]()
    if again:
        return suspected | {rung for dead_case, rung in deaths if dead_case == case}
    return suspected | set(route.deadly)
