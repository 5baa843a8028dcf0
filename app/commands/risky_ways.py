"""The measurement of ways that may end a process, made in a separate process."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from app.jobs.stdio import prepare_streams
from diffusers_helper.machine.signals import ignore_ctrl_c

if TYPE_CHECKING:
    import torch

    from cache.conv_routes import ConvCase, RouteStore

# The number of deaths after which the remaining ways stay avoided.
_MOST_DEATHS = 3


def measure_risky(
    cases: list[ConvCase], device: torch.device, folder: Path, say: Callable[[str], None], *, again: bool
) -> None:
    """Measure the cases with the rungs that were left out because they may end the process.

    Args:
        cases: The cases to measure.
        device: The device on which to measure.
        folder: The folder of the routes.
        say: Prints a sentence about the progress.
        again: Whether to try also the rungs that have ended a process in the same case.
    """
    from cache.conv_probe import condemn_interrupted
    from cache.conv_routes import RouteStore

    waiting = [case for case in cases if _left_out(case, RouteStore(folder), again)]
    if not waiting:
        return
    say(f"{len(waiting)} shapes have ways that may end a process; a separate process tries them")
    for _ in range(_MOST_DEATHS):
        process = multiprocessing.get_context("spawn").Process(
            target=_measure, args=(list(map(str, waiting)), str(device), folder, again), daemon=True
        )
        process.start()
        try:
            process.join()
        finally:
            process.kill()  # Ctrl-C ends it, too
        if process.exitcode == 0:
            return
        death = condemn_interrupted(RouteStore(folder), cases[0].arch)
        if death is None:
            say("The separate process ended for another reason; these ways stay avoided.")
            return
        say(f"{death[1]} ended the process at {death[0]}. It stays avoided there.")
        waiting = waiting[waiting.index(death[0]) + 1 :]
    say(f"{_MOST_DEATHS} processes have ended, so the remaining ways stay avoided.")


def _left_out(case: ConvCase, routes: RouteStore, again: bool) -> bool:
    from cache.conv_probe import risky_rungs

    risky = risky_rungs(case, routes)
    return bool(risky if again else risky - set(routes.get(case).blocklist))


def _measure(cases: list[str], device: str, folder: Path, again: bool) -> None:
    """Measure the cases; this function runs in the separate process."""
    import torch

    from cache.conv_probe import measure
    from cache.conv_routes import ConvCase, RouteStore
    from diffusers_helper.miopen_fallback import classify

    prepare_streams()
    ignore_ctrl_c()  # the parent ends this process
    routes = RouteStore(folder)
    for case in map(ConvCase.from_text, cases):
        leave_out = () if again else tuple(routes.get(case).blocklist)
        measure(case, torch.device(device), routes, classify, leave_out=leave_out)
