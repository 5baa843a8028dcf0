"""The measurement of the rungs' speed at a case on this device, which also checks their results."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import cast

import torch
from torch import Tensor

from cache.conv import classify
from cache.conv_routes import ConvCase, RouteStore
from cache.conv_rungs import RUNGS, Convolution, FlatConvolution, Rung, output_shape, window_of

MIN_RUNS, MAX_RUNS, ENOUGH_SECONDS = 3, 9, 0.08
# A rung that takes this many times as long as the fastest one is timed only twice.
HOPELESS = 2.0
# A rung further down the ladder has to be faster by this factor to be chosen, so that noise does not decide.
GAIN = 1.1
# The largest ratio of the error's root mean square to that of the result. Kernels that transform their input
# (Winograd) or multiply in TF32 have errors up to this and can be used; that of a wrong result is about 1.
MAX_ERROR = {torch.float32: 2e-3, torch.float16: 1e-2, torch.bfloat16: 3e-2}
_WINDOW = 8  # the side in pixels of the parts that are compared with the CPU's result


@dataclass(frozen=True, slots=True)
class Measurement:
    """The measurement of one case.

    Attributes:
        milliseconds: The times of the rungs whose results were right.
        failed: The reasons why the other rungs cannot be used.
        first_seconds: The time of each rung's first call, in which a library may search and compile.
    """

    milliseconds: dict[str, float] = field(default_factory=dict[str, float])
    failed: dict[str, str] = field(default_factory=dict[str, str])
    first_seconds: dict[str, float] = field(default_factory=dict[str, float])

    @property
    def rung(self) -> str:
        """Return the rung to use, or "" if none gave the right result."""
        if not self.milliseconds:
            return ""
        fastest = min(self.milliseconds.values())
        return next(name for name in RUNGS if self.milliseconds.get(name, math.inf) <= fastest * GAIN)

    @property
    def reason(self) -> str:
        times = ", ".join(f"{name} {value:.3g} ms" for name, value in self.milliseconds.items())
        errors = "".join(f"; {name}: {text}" for name, text in self.failed.items())
        return f"measured {times or 'nothing'}{errors}"


def measure(
    case: ConvCase,
    device: torch.device,
    routes: RouteStore,
    *,
    leave_out: Collection[str] | None = None,
) -> Measurement:
    """Time the rungs for a case, and store the fastest one whose result is right.

    During a rung's first call, the store keeps a note, which identifies the rung if the process dies. Before
    measuring, call `condemn_interrupted`.

    Args:
        leave_out: The rungs not to try; None for those that may end the process.

    Raises:
        RuntimeError: If a rung raises an unknown error.
    """
    inputs, found = _Inputs(case, device), Measurement()
    leave_out = risky_rungs(case, routes) if leave_out is None else leave_out
    seconds: dict[str, list[float]] = {}
    for rung in _candidates(case):
        if rung.name in leave_out or (rung.name == "cpu" and seconds):
            continue  # the CPU is the last resort, and takes long to try
        begin = time.perf_counter()
        with routes.trying(case, rung.name):
            failure = _failure(partial(inputs.run_checked, rung), device)
        found.first_seconds[rung.name] = time.perf_counter() - begin
        if failure is None:
            seconds[rung.name] = []
        else:
            found.failed[rung.name] = failure
    # The rungs take turns, so that other work of the machine slows down all of them alike.
    while waiting := _unsettled(seconds):
        for name in waiting:
            start = time.perf_counter()
            failure = _failure(partial(inputs.run, RUNGS[name]), device)
            seconds[name].append(time.perf_counter() - start)
            if failure is not None:
                found.failed[name] = failure
                del seconds[name]
    found.milliseconds.update((name, min(times) * 1000) for name, times in seconds.items())
    routes.add_measured(case, found.milliseconds, found.failed, found.rung, found.reason)
    return found


def risky_rungs(case: ConvCase, routes: RouteStore) -> set[str]:
    """Return the rungs that ended a process at a case, and suspected ones that were never measured for it."""
    route = routes.get(case)
    return {*route.deadly, *(routes.suspects(case) - set(route.measured))}


def multiplications(case: ConvCase) -> int:
    """Estimate the number of multiplications that a case takes, as if there were no borders."""
    return math.prod(case.shape) * math.prod(case.weight[2:]) * case.weight[0] // math.prod(case.stride)


def spread(cases: Sequence[ConvCase], count: int) -> list[ConvCase]:
    """Return some cases, evenly spread by their multiplications, which represent all."""
    ordered = sorted(cases, key=multiplications)
    return [ordered[(2 * n + 1) * len(cases) // (2 * count)] for n in range(count)]


def condemn_interrupted(routes: RouteStore, arch: str) -> tuple[ConvCase, str] | None:
    """Block a rung if a process died while measuring it. No other process may be measuring.

    Returns:
        The case and the rung, or None if no process died.
    """
    found = routes.take_interrupted(arch)
    if found is not None:
        routes.block(*found, "the process ended while this was being measured")
    return found


def _candidates(case: ConvCase) -> list[Rung]:
    rungs = [rung for rung in RUNGS.values() if rung.supports(case) is None]
    if case.arch == "cpu":  # on a CPU, the other rungs are the same as the plain call
        rungs = [rung for rung in rungs if rung.name in ("miopen", "taps", "tiles")]
    return rungs


class _WrongResult(Exception):
    """The error for a rung that ran but gave a wrong result."""


class _Inputs:
    """The random inputs of a case, with the expected values of some parts of the result."""

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
        """Return the boxes of two corners and of the middle, which are parts with and without edges."""
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
        """Make a first call, in which a rung may also search and compile, and check the result."""
        self.check(self.run(rung))

    def check(self, result: Tensor) -> None:
        """Compare a result with the expected values.

        Raises:
            _WrongResult: If they differ by more than rounding.
        """
        if tuple(result.shape) != self.shape:
            raise _WrongResult(f"wrong shape {tuple(result.shape)}; expected {self.shape}")
        if not bool(result.isfinite().all()):
            raise _WrongResult("wrong result: not all numbers are finite")
        for (top, left, height, width), expected in self.expected:
            part = result[..., top : top + height, left : left + width].to("cpu", torch.float32)
            error = float((part - expected).square().mean().sqrt() / expected.square().mean().sqrt())
            if error > MAX_ERROR.get(result.dtype, 2e-3):
                raise _WrongResult(f"wrong result: relative error {error:.2g}")


def _failure(attempt: Callable[[], object], device: torch.device) -> str | None:
    """Return the reason why a rung cannot be used, or None if its attempt succeeds."""
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
    """Return the rungs that need another timed run."""
    fastest = min((min(times) for times in seconds.values() if times), default=0.0)
    return [
        name
        for name, times in seconds.items()
        if len(times) < MAX_RUNS
        and (len(times) < MIN_RUNS or sum(times) < ENOUGH_SECONDS)
        and (len(times) < 2 or min(times) <= HOPELESS * fastest)
    ]
