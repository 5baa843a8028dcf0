"""The measurement of the rungs' speed at a case on this device, which also checks their results."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from itertools import accumulate

import torch
from torch import Tensor

from cache.conv import OUT_OF_MEMORY, classify
from cache.conv_routes import ConvCase, RouteStore
from cache.conv_rungs import RUNGS, Convolution, FlatConvolution, Rung, cpu, output_shape, window_of

RUNS = 3
# A rung further down the ladder has to be faster by this factor to be chosen, so that noise does not decide.
GAIN = 1.1
# The largest ratio of the error's root mean square to that of the result. Kernels that transform their input
# (Winograd) or multiply in TF32 have errors up to this and can be used; that of a wrong result is about 1.
MAX_ERROR = {torch.float32: 2e-3, torch.float16: 1e-2, torch.bfloat16: 3e-2}
# A rung that takes longer than this, and this many times as long as the fastest, is not timed again.
_SLOW_SECONDS, _SLOWER = 1.0, 2.0
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
    case: ConvCase, device: torch.device, routes: RouteStore, leave_out: Collection[str] = ()
) -> Measurement:
    """Time the rungs for a case, and store the fastest one whose result is right.

    During a rung's first call it is blocked, and stays so if the process ends. One that is far slower than
    another is timed only once.

    Raises:
        RuntimeError: If a rung raises an unknown error.
    """
    inputs, found = _Inputs(case, device), Measurement()
    seconds: dict[str, list[float]] = {}
    for rung in _candidates(case):
        if rung.name in leave_out or (rung.name == "cpu" and seconds):
            continue  # the CPU is the last resort, and takes long to try
        begin = time.perf_counter()
        with routes.trying(case, rung.name):
            failure = inputs.failure(rung, is_checked=True)
        found.first_seconds[rung.name] = time.perf_counter() - begin
        if failure:
            found.failed[rung.name] = failure
        else:
            seconds[rung.name] = []
    # The rungs take turns, so that other work of the machine slows down all of them alike.
    for name in list(seconds) * RUNS:
        fastest = min((min(times) for times in seconds.values() if times), default=math.inf)
        if name in found.failed or min(seconds[name], default=0.0) > max(_SLOW_SECONDS, _SLOWER * fastest):
            continue
        start = time.perf_counter()
        failure = inputs.failure(RUNGS[name])
        seconds[name].append(time.perf_counter() - start)
        if failure:
            found.failed[name] = failure
            del seconds[name]
    found.milliseconds.update((name, min(times) * 1000) for name, times in seconds.items())
    # A lack of memory may be gone in a job, so it counts as no fault of the rung.
    lasting = {
        name: text for name, text in found.failed.items() if classify(RuntimeError(text)) not in OUT_OF_MEMORY
    }
    if found.milliseconds or lasting:
        routes.add_measured(case, found.milliseconds, lasting, found.rung, found.reason)
    return found


def multiplications(case: ConvCase) -> int:
    """Return the number of multiplications of one call."""
    return math.prod(case.shape) * math.prod(case.weight[2:]) * case.weight[0] // math.prod(case.stride)


def spread(cases: Collection[ConvCase], count: int) -> list[ConvCase]:
    """Return some cases, evenly spread by their multiplications, which represent all."""
    ordered = sorted(cases, key=multiplications)
    return [ordered[(2 * n + 1) * len(cases) // (2 * count)] for n in range(count)]


def heaviest(calls: Mapping[ConvCase, int], share: float) -> list[ConvCase]:
    """Return the cases that make this share of all multiplications, given their calls, the largest first."""
    work = {case: multiplications(case) * count for case, count in calls.items()}
    ordered, wanted = sorted(work, key=lambda case: -work[case]), share * sum(work.values())
    done = accumulate(work[case] for case in ordered)
    return [case for case, sum_so_far in zip(ordered, done, strict=True) if sum_so_far - work[case] < wanted]


def _candidates(case: ConvCase) -> list[Rung]:
    rungs = [rung for rung in RUNGS.values() if rung.supports(case)]
    if case.arch == "cpu":  # on a CPU, the other rungs are the same as the plain call
        rungs = [rung for rung in rungs if rung.name in ("miopen", "taps", "tiles")]
    return rungs


class _Inputs:
    """The random inputs of a case, with the expected values of some parts of the result."""

    def __init__(self, case: ConvCase, device: torch.device) -> None:
        generator = torch.Generator().manual_seed(0)
        dtype: torch.dtype = getattr(torch, case.dtype)

        def random(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator).to(device, dtype)

        self._x = random(*case.shape)
        weight = random(*case.weight) / math.sqrt(math.prod(case.weight[1:]))
        kind = FlatConvolution if case.is_flat else Convolution
        self._conv = kind(
            weight, random(case.weight[0]), case.stride, case.padding, case.dilation, case.groups
        )
        self._shape = output_shape(case.shape, case.weight, case)
        in_time = replace(self._conv, padding=(case.padding[0], 0, 0))
        self._expected = [
            (box, cpu(window_of(self._x, self._conv, box), in_time)) for box in _boxes(*self._shape[3:])
        ]

    def failure(self, rung: Rung, *, is_checked: bool = False) -> str:
        """Compute the result and wait for it, and return why the rung cannot be used; "" if it can.

        Raises:
            RuntimeError: If the rung raises an unknown error.
        """
        try:
            result = rung.run(self._x, self._conv)
            if result.is_cuda:
                torch.cuda.synchronize(result.device)
            return self._fault(result) if is_checked else ""
        except RuntimeError as error:
            if classify(error) is None:
                raise
            reason = str(error)
        if self._x.is_cuda:
            torch.cuda.empty_cache()
        return reason

    def _fault(self, result: Tensor) -> str:
        """Return what is wrong with a result besides rounding; "" if nothing is."""
        if tuple(result.shape) != self._shape:
            return f"wrong shape {tuple(result.shape)}; expected {self._shape}"
        if not bool(result.isfinite().all()):
            return "wrong result: not all numbers are finite"
        for (top, left, height, width), right in self._expected:
            part = result[..., top : top + height, left : left + width].cpu().float()
            expected = right.cpu().float()
            error = float((part - expected).square().mean().sqrt() / expected.square().mean().sqrt())
            if error > MAX_ERROR.get(result.dtype, 2e-3):
                return f"wrong result: relative error {error:.2g}"
        return ""


def _boxes(height: int, width: int) -> list[tuple[int, int, int, int]]:
    """Return the boxes of two corners and of the middle, which are parts with and without edges."""
    tall, wide = min(_WINDOW, height), min(_WINDOW, width)
    return [(int((height - tall) * place), int((width - wide) * place), tall, wide) for place in (0, 0.5, 1)]
