"""The work of a convolution for the trial of its rungs, whose results are compared with the CPU's."""

import math
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any, cast

import torch
from torch import Tensor

from cache.conv_rungs import RUNGS, ConvCase, Convolution, FlatConvolution, cpu, input_of, output_shape
from cache.trial import TrialWork
from diffusers_helper.machine.routes import RouteStore, Task

# Kernels that transform their input (Winograd) or multiply in TF32 have errors up to this.
_MAX_ERROR = {torch.float32: 2e-3, torch.float16: 1e-2, torch.bfloat16: 3e-2}
_BOX_SIDE = 8  # the side in pixels of the parts that are compared


def trials(cases: Iterable[ConvCase], routes: RouteStore, *, again: bool = False) -> list[Task]:
    """List the rungs to try for the cases that were not measured; the CPU is the last resort, and takes long.

    Those that ended a process are tried `again` only.
    """
    tasks = list[Task]()
    for case in cases:
        route = routes.get(case)
        if again or not route.is_measured:
            deadly = () if again else route.deadly
            names = [name for name in candidates(case) if name not in deadly]
            tasks.append(Task(case, [asdict(case)], names))
    return tasks


def candidates(case: ConvCase) -> list[str]:
    """List the rungs that differ from the plain call on this device; on a CPU, some do not."""
    names: Sequence[str] = [name for name in RUNGS if name != "cpu"]
    if case.rocm == "none":  # cuDNN chooses well among its own kernels
        names = ("miopen", "taps", "tiles") if case.arch == "cpu" else ("miopen", "channels")
    return [name for name in names if RUNGS[name].supports(case)]


def convolution_work(fields: Mapping[str, Any], *, device: torch.device) -> TrialWork:
    """Prepare the convolution of a `ConvCase` with these fields."""
    values = {name: value if isinstance(value, str | int) else (*value,) for name, value in fields.items()}
    case = ConvCase(**cast(dict[str, Any], values))
    generator = torch.Generator().manual_seed(0)
    dtype: torch.dtype = getattr(torch, case.dtype)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(device, dtype)

    x = random(*case.shape)
    weight = random(*case.weight) / math.sqrt(math.prod(case.weight[1:]))
    conv = (FlatConvolution if case.is_flat else Convolution)(
        weight, random(case.weight[0]), case.stride, case.padding, case.dilation, case.groups
    )
    unpadded_conv = replace(conv, padding=(case.padding[0], 0, 0))

    @contextmanager
    def prepared(rung: str) -> Generator[tuple[Callable[[], Sequence[Tensor]], str]]:
        yield lambda: [RUNGS[rung].run(x, conv)], ""

    parts = [
        (0, (..., slice(top, top + height), slice(left, left + width)),
         cpu(input_of(x, conv, (top, left, height, width)), unpadded_conv).cpu().float())
        for top, left, height, width in _boxes(*output_shape(case.shape, case.weight, case)[3:])
    ]  # fmt: skip
    return TrialWork(prepared, parts, _MAX_ERROR.get(dtype, 2e-3))


def _boxes(height: int, width: int) -> list[tuple[int, int, int, int]]:
    size = min(_BOX_SIDE, height), min(_BOX_SIDE, width)
    return [(int((height - size[0]) * share), int((width - size[1]) * share), *size) for share in (0, 0.5, 1)]
