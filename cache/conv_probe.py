"""The measurement of the rungs' speed at a case on this device, which also checks their results."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from itertools import accumulate

import torch
from torch import Tensor

from cache.conv import MEMORY_TROUBLES, classify
from cache.conv_routes import ConvCase, RouteStore
from cache.conv_rungs import RUNGS, Convolution, FlatConvolution, Rung, cpu, input_of, output_shape

RUNS = 3
# A later rung of the ladder has to be faster by this factor to be chosen, so that noise does not decide.
MIN_GAIN = 1.1
# The largest ratio of the error's root mean square to that of the result. Kernels that transform their input
# (Winograd) or multiply in TF32 have errors up to this. The ratio of a wrong result is about 1.
MAX_ERROR = {torch.float32: 2e-3, torch.float16: 1e-2, torch.bfloat16: 3e-2}
# A rung that takes longer than this, and this many times as long as the fastest, is not timed again.
_SLOW_SECONDS, _SLOW_FACTOR = 1.0, 2.0
_BOX_SIDE = 8  # the side in pixels of the parts that are compared with the CPU's result


@dataclass(frozen=True, slots=True)
class Measurement:
    """The measurement of one case: `milliseconds` of right results, and why other rungs `failed`."""

    milliseconds: dict[str, float] = field(default_factory=dict[str, float])
    failed: dict[str, str] = field(default_factory=dict[str, str])
    first_seconds: dict[str, float] = field(default_factory=dict[str, float])

    @property
    def rung(self) -> str:
        if not self.milliseconds:
            return ""
        fastest = min(self.milliseconds.values())
        return next(name for name in RUNGS if self.milliseconds.get(name, math.inf) <= fastest * MIN_GAIN)

    @property
    def reason(self) -> str:
        times = ", ".join(f"{name} {value:.3g} ms" for name, value in self.milliseconds.items())
        errors = "".join(f"; {name}: {text}" for name, text in self.failed.items())
        return f"measured {times or 'nothing'}{errors}"


def measure(
    case: ConvCase, device: torch.device, routes: RouteStore, excluded: Collection[str] = ()
) -> Measurement:
    """Time the rungs for a case, each blocked during its first call, and store the fastest right one."""
    inputs = _Inputs(case, device)
    measurement = Measurement()
    seconds: dict[str, list[float]] = {}
    for rung in _candidates(case):
        if rung.name in excluded or (rung.name == "cpu" and seconds):
            continue  # the CPU is the last resort, and takes long to try
        start = time.perf_counter()
        with routes.trying(case, rung.name):
            failure = inputs.failure(rung, is_checked=True)
        measurement.first_seconds[rung.name] = time.perf_counter() - start
        if failure:
            measurement.failed[rung.name] = failure
        else:
            seconds[rung.name] = []
    # The rungs take turns, so that other work of the machine slows down all of them alike.
    for name in list(seconds) * RUNS:
        fastest = min((min(times) for times in seconds.values() if times), default=math.inf)
        slow_seconds = max(_SLOW_SECONDS, _SLOW_FACTOR * fastest)
        if name in measurement.failed or min(seconds[name], default=0.0) > slow_seconds:
            continue
        start = time.perf_counter()
        failure = inputs.failure(RUNGS[name])
        seconds[name].append(time.perf_counter() - start)
        if failure:
            measurement.failed[name] = failure
            del seconds[name]
    measurement.milliseconds.update((name, min(times) * 1000) for name, times in seconds.items())
    # A lack of memory may be gone in a job, so it counts as no fault of the rung.
    failed = {
        name: text
        for name, text in measurement.failed.items()
        if classify(RuntimeError(text)) not in MEMORY_TROUBLES
    }
    times = measurement.milliseconds
    if times or failed:
        routes.add_measured(case, times, failed, measurement.rung, measurement.reason)
    return measurement


def multiplications(case: ConvCase) -> int:
    return math.prod(case.shape) * math.prod(case.weight[2:]) * case.weight[0] // math.prod(case.stride)


def spread(cases: Collection[ConvCase], count: int) -> list[ConvCase]:
    sorted_cases = sorted(cases, key=multiplications)
    return [sorted_cases[(2 * index + 1) * len(cases) // (2 * count)] for index in range(count)]


def heaviest(calls: Mapping[ConvCase, int], share: float) -> list[ConvCase]:
    """List the cases with the most multiplications, the largest first, until they make this share of all."""
    work = {case: multiplications(case) * count for case, count in calls.items()}
    sorted_cases = sorted(work, key=lambda case: -work[case])
    sums = accumulate(work[case] for case in sorted_cases)
    limit = share * sum(work.values())
    return [case for case, total in zip(sorted_cases, sums, strict=True) if total - work[case] < limit]


def _candidates(case: ConvCase) -> list[Rung]:
    rungs = [rung for rung in RUNGS.values() if rung.supports(case)]
    if case.arch == "cpu":  # on a CPU, the other rungs are the same as the plain call
        rungs = [rung for rung in rungs if rung.name in ("miopen", "taps", "tiles")]
    return rungs


class _Inputs:
    def __init__(self, case: ConvCase, device: torch.device) -> None:
        generator = torch.Generator().manual_seed(0)
        dtype: torch.dtype = getattr(torch, case.dtype)

        def random(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator).to(device, dtype)

        self._x = random(*case.shape)
        weight = random(*case.weight) / math.sqrt(math.prod(case.weight[1:]))
        conv_class = FlatConvolution if case.is_flat else Convolution
        self._conv = conv_class(
            weight, random(case.weight[0]), case.stride, case.padding, case.dilation, case.groups
        )
        self._shape = output_shape(case.shape, case.weight, case)
        unpadded_conv = replace(self._conv, padding=(case.padding[0], 0, 0))
        boxes = _boxes(*self._shape[3:])
        self._expected = [(box, cpu(input_of(self._x, self._conv, box), unpadded_conv)) for box in boxes]

    def failure(self, rung: Rung, *, is_checked: bool = False) -> str:
        """Run a rung, and say why it cannot be used; "" if it can. Unknown errors are raised."""
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
        if tuple(result.shape) != self._shape:
            return f"wrong shape {tuple(result.shape)}; expected {self._shape}"
        if not bool(result.isfinite().all()):
            return "wrong result: not all numbers are finite"
        for (top, left, height, width), expected_part in self._expected:
            actual = result[..., top : top + height, left : left + width].cpu().float()
            expected = expected_part.cpu().float()
            error = float((actual - expected).square().mean().sqrt() / expected.square().mean().sqrt())
            if error > MAX_ERROR.get(result.dtype, 2e-3):
                return f"wrong result: relative error {error:.2g}"
        return ""


def _boxes(height: int, width: int) -> list[tuple[int, int, int, int]]:
    size = min(_BOX_SIDE, height), min(_BOX_SIDE, width)
    return [(int((height - size[0]) * share), int((width - size[1]) * share), *size) for share in (0, 0.5, 1)]
