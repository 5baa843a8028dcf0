"""Measurements of how fast each rung computes a case on this device, and whether its result is right."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import cast

import torch
from torch import Tensor

from cache.conv import ErrorKind
from cache.conv_routes import ConvCase, Route, RouteStore
from cache.conv_rungs import RUNGS, Convolution, FlatConvolution, Rung, output_shape, window_of

MIN_RUNS, MAX_RUNS, ENOUGH_SECONDS = 3, 9, 0.08
# A rung that takes this many times as long as the fastest is not timed again after its second run.
HOPELESS = 2.0
# A rung further down has to be this much faster to be chosen, so that noise does not decide.
GAIN = 1.1
# Root mean square of the error over that of the result. Kernels that transform their input (Winograd) or
# multiply in TF32 are this far off and still of use; a wrong result is off by about 1.
MAX_ERROR = {torch.float32: 2e-3, torch.float16: 1e-2, torch.bfloat16: 3e-2}
# The time to make numbers and to compare results: seconds per case, and a factor. They were fitted to the
# demo model's VAE on two cores.
_OVERHEAD_SECONDS, _CHECKING = 0.02, 1.2
_WINDOW = 8  # pixels: height and width of the parts that are compared with the CPU's result


@dataclass(frozen=True, slots=True)
class Measurement:
    """The times of one case.

    Attributes:
        milliseconds: The times of the rungs whose result was right.
        failed: The reasons of the others, by rung.
    """

    milliseconds: dict[str, float] = field(default_factory=dict[str, float])
    failed: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def rung(self) -> str:
        """Return the rung to use; empty if none gave the right result."""
        if not self.milliseconds:
            return ""
        fastest = min(self.milliseconds.values())
        return next(name for name in RUNGS if self.milliseconds.get(name, math.inf) <= fastest * GAIN)

    @property
    def reason(self) -> str:
        """Return the reason for the choice, in words."""
        times = ", ".join(f"{name} {value:.3g} ms" for name, value in self.milliseconds.items())
        errors = "".join(f"; {name}: {text}" for name, text in self.failed.items())
        return f"measured {times or 'nothing'}{errors}"


def measure(
    case: ConvCase,
    device: torch.device,
    routes: RouteStore,
    classify: Callable[[BaseException], ErrorKind | None],
    *,
    leave_out: Collection[str] | None = None,
) -> Measurement:
    """Time the rungs for a case and store the fastest one whose result is right.

    While a rung is tried for the first time, the store keeps a note of it, so that a rung that ends the
    process can be identified: call `condemn_interrupted` first.

    Args:
        case: The convolution.
        device: The device to measure.
        routes: The store of the result.
        classify: See `cache.conv.ConvLadder`.
        leave_out: The rungs that are not tried; None for those that may end the process.

    Raises:
        RuntimeError: A rung's own error, if it is unknown.
    """
    inputs, found = _Inputs(case, device), Measurement()
    leave_out = risky_rungs(case, routes) if leave_out is None else leave_out
    seconds: dict[str, list[float]] = {}
    for rung in _candidates(case):
        if rung.name in leave_out or (rung.name == "cpu" and seconds):
            continue  # the CPU is the last resort, and slow to try
        with routes.trying(case, rung.name):
            failure = _failure(partial(inputs.run_checked, rung), device, classify)
        if failure is None:
            seconds[rung.name] = []
        else:
            found.failed[rung.name] = failure
    # The rungs take turns, so that other work of the machine slows all of them down alike.
    while waiting := _unsettled(seconds):
        for name in waiting:
            start = time.perf_counter()
            failure = _failure(partial(inputs.run, RUNGS[name]), device, classify)
            seconds[name].append(time.perf_counter() - start)
            if failure is not None:
                found.failed[name] = failure
                del seconds[name]
    found.milliseconds.update((name, min(times) * 1000) for name, times in seconds.items())
    routes.add_measured(case, found.milliseconds, found.failed, found.rung, found.reason)
    return found


def risky_rungs(case: ConvCase, routes: RouteStore) -> set[str]:
    """Return the rungs that ended a process at a case, or are suspected there and were never measured."""
    route = routes.get(case)
    return {*route.deadly, *(set(routes.suspects(case)) - set(route.measured))}


def multiplications(case: ConvCase) -> int:
    """Return roughly how many multiplications a case takes; borders are left out."""
    return math.prod(case.shape) * math.prod(case.weight[2:]) * case.weight[0] // math.prod(case.stride)


def rates_of(routes: Mapping[str, Route], like: ConvCase) -> dict[str, float]:
    """Return seconds per multiplication by rung, from measurements with the card and dtype of `like`."""
    seconds: dict[str, float] = {}
    work: dict[str, int] = {}
    for text, route in routes.items():
        case = ConvCase.from_text(text)
        if (case.rocm, case.torch, case.dtype) == (like.rocm, like.torch, like.dtype):
            for name, milliseconds in route.measured.items():
                seconds[name] = seconds.get(name, 0.0) + milliseconds / 1000
                work[name] = work.get(name, 0) + multiplications(case)
    return {name: seconds[name] / max(1, work[name]) for name in seconds}


def expected_seconds(case: ConvCase, rates: Mapping[str, float]) -> float:
    """Estimate how long `measure` will take, without MIOpen's own search for kernels.

    Args:
        rates: Seconds per multiplication by rung.
    """
    times = [rates[rung.name] * multiplications(case) for rung in _candidates(case) if rung.name in rates]
    runs = 0.0
    for seconds in times:
        count = min(MAX_RUNS, max(MIN_RUNS, ENOUGH_SECONDS / max(seconds, 1e-9)))
        runs += seconds * (1 + (count if seconds <= HOPELESS * min(times) else 2))
    return _OVERHEAD_SECONDS + _CHECKING * runs


def condemn_interrupted(routes: RouteStore, arch: str) -> tuple[ConvCase, str] | None:
    """Mark the rung as deadly that a process was trying when it died; nobody else may be measuring.

    Returns:
        The case and the rung, or None if no process died.
    """
    found = routes.take_interrupted(arch)
    if found is not None:
        routes.add_deadly(*found, "the process ended while this was being measured")
    return found


def _candidates(case: ConvCase) -> list[Rung]:
    rungs = [rung for rung in RUNGS.values() if rung.supports(case) is None]
    if case.arch == "cpu":  # where the other rungs are the plain call
        rungs = [rung for rung in rungs if rung.name in ("miopen", "taps", "tiles")]
    return rungs


class _WrongResult(Exception):
    """The error of a rung that ran and computed something else."""


class _Inputs:
    """Random numbers in the shapes of a case, and the values that parts of the result must have."""

    def __init__(self, case: ConvCase, device: torch.device) -> None:
        generator = torch.Generator().manual_seed(0)
        dtype: torch.dtype = getattr(torch, case.dtype)

        def random(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator).to(device, dtype)

        self.x = random(*case.shape)
        weight = random(*case.weight) / math.sqrt(math.prod(case.weight[1:]))
        bias = random(case.weight[0])
        kind = FlatConvolution if case.is_flat else Convolution
        self.conv = kind(weight, bias, case.stride, case.padding, case.dilation, case.groups)
        self.shape = output_shape(case.shape, case.weight, case)
        self.expected = [(box, self._on_cpu(box)) for box in self._boxes()]

    def _boxes(self) -> list[tuple[int, int, int, int]]:
        """Return two corners and the middle: parts with and without an edge."""
        sides = [(side, min(_WINDOW, side)) for side in self.shape[3:]]
        return [
            (*(int((side - size) * place) for side, size in sides), *(size for _, size in sides))
            for place in (0, 0.5, 1)
        ]  # pyright: ignore[reportReturnType]

    def _on_cpu(self, box: tuple[int, int, int, int]) -> Tensor:
        conv, bias = self.conv, cast(Tensor, self.conv.bias)
        on_cpu = replace(
            conv,
            weight=conv.weight.to("cpu", torch.float32),
            bias=bias.to("cpu", torch.float32),
            padding=(conv.padding[0], 0, 0),
        )
        return on_cpu(window_of(self.x, conv, box).to("cpu", torch.float32))

    def run(self, rung: Rung) -> Tensor:
        """Compute the result and wait until it is complete."""
        result = rung.run(self.x, self.conv)
        if result.is_cuda:
            torch.cuda.synchronize(result.device)
        return result

    def run_checked(self, rung: Rung) -> None:
        """Make a first call, in which a rung may also search and compile, and check its result."""
        self.check(self.run(rung))

    def check(self, result: Tensor) -> None:
        """Compare a result with the expected values.

        Raises:
            _WrongResult: If it is not the convolution.
        """
        if tuple(result.shape) != self.shape:
            raise _WrongResult(f"wrong shape {tuple(result.shape)}; expected {self.shape}")
        if not bool(result.isfinite().all()):
            raise _WrongResult("wrong result: not all numbers are finite")
        for (top, left, height, width), expected in self.expected:
            part = result[..., top : top + height, left : left + width].to("cpu", torch.float32)
            error = float((part - expected).square().mean().sqrt() / expected.square().mean().sqrt())
            if error > MAX_ERROR.get(result.dtype, 2e-3):
                raise _WrongResult(f"wrong result: off by {error:.2g} of its size")


def _failure(
    attempt: Callable[[], object],
    device: torch.device,
    classify: Callable[[BaseException], ErrorKind | None],
) -> str | None:
    """Return why a rung cannot be used, or None if it can."""
    try:
        attempt()
    except _WrongResult as error:
        return str(error)
    except RuntimeError as error:
        if classify(error) is None:
            raise
        reason = str(error)
    else:
        return None
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return reason


def _unsettled(seconds: dict[str, list[float]]) -> list[str]:
    """Return the rungs that are worth another run."""
    fastest = min((min(times) for times in seconds.values() if times), default=0.0)
    return [
        name
        for name, times in seconds.items()
        if len(times) < MAX_RUNS
        and (len(times) < MIN_RUNS or sum(times) < ENOUGH_SECONDS)
        and (len(times) < 2 or min(times) <= HOPELESS * fastest)
    ]
