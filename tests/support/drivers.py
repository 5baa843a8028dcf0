"""A driver that fails on demand, for tests of the convolution ladder."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import handle_torch_function, has_torch_function

from cache.conv import ConvLadder
from cache.conv_rungs import RUNGS, Rung
from diffusers_helper.machine.routes import RouteStore

NO_ALGORITHM = "MIOpen Error: No suitable algorithm was found to execute the required convolution"
MEMORY = "HIP out of memory. Tried to allocate 2.00 GiB"
ONE, NONE = (1, 1, 1), (0, 0, 0)
# Error messages of drivers that the product recognises.
TEXTS = {
    "miopenStatusUnknownError": "miopen",
    "miopenStatusInternalError": "miopen",
    "miopenStatusNotInitialized": "miopen",
    "MIOpen Error: No suitable algorithm was found to execute the required convolution": "miopen",
    "MIOpen Error: /MIOpen/src/ocl/convolutionocl.cpp: workspace size should be at least 1": "miopen",
    "Code object build failed. Source: naive_conv.cpp": "miopen",
    "GET was unable to find an engine to execute this computation": "kernel",
    "HIP error: invalid device function": "kernel",
    "HIP error: no kernel image is available for execution on the device": "kernel",
    "CUDA error: device kernel image is invalid": "kernel",
    "CUDA error: invalid kernel file": "kernel",
    "CUDA error: HIPBLAS_STATUS_INTERNAL_ERROR when calling `hipblasGemmEx(handle)`": "blas",
    "rocblas_status_internal_error": "blas",
    "could not create a primitive descriptor for the convolution": "kernel",
    "HIP out of memory. Tried to allocate 16.00 MiB. GPU 0 has a total capacity": "device_memory",
    "MIOpen Error: hipMalloc: out of memory": "host_memory",
    "miopenStatusAllocFailed": "device_memory",
    "HSA exception: MemoryRegion::BlockAllocator::alloc failed.": "device_memory",
    "Memory critical error by agent node-0 (Agent handle: 0x55)": "device_memory",
    "[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory": "host_memory",
    "HIP error: an illegal memory access was encountered": "device",
    "hipErrorIllegalAddress": "device",
    "CUDA error: unspecified launch failure": "device",
    "hipErrorLaunchFailure": "device",
    "HW Exception by GPU node-1 (Agent handle: 0x5899c75e9d60) reason :GPU Hang": "device",
    "HSA_STATUS_ERROR_EXCEPTION: An HSAIL operation resulted in a hardware exception.": "device",
}


class Driver:
    """A stand-in for a driver, whose `fails` decides which calls of conv3d raise an error."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fails: Callable[[Tensor, Tensor], bool] = lambda x, weight: False
        self.error: BaseException | None = None
        self.text = NO_ALGORITHM
        self.failed = 0
        self.shapes: list[tuple[int, ...]] = []
        self._plain = functional.conv3d
        monkeypatch.setattr(functional, "conv3d", as_torchs(self))

    def __call__(self, x: Tensor, weight: Tensor, *rest: Any) -> Tensor:
        self.shapes.append(tuple(x.shape))
        if self.fails(x, weight):
            self.failed += 1
            raise self.error or RuntimeError(self.text)
        return self._plain(x, weight, *rest)


def as_torchs(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a stand-in for a function of torch, whose calls a `TorchFunctionMode` sees as torch's own."""

    def call(*given: Any, **named: Any) -> Tensor:
        if has_torch_function(given):
            return handle_torch_function(call, given, *given, **named)
        return function(*given, **named)

    return call


def break_rungs(monkeypatch: pytest.MonkeyPatch, *names: str, text: str = NO_ALGORITHM) -> list[str]:
    """Make rungs fail, and return a list to which each call of them appends the rung's name."""
    asked: list[str] = []

    def failing(name: str) -> Callable[..., Tensor]:
        def run(*call: Any) -> Tensor:
            asked.append(name)
            raise RuntimeError(text)

        return run

    for name in names:
        monkeypatch.setitem(RUNGS, name, Rung(name, failing(name), RUNGS[name].supports))
    return asked


def ladder(folder: Path | None = None, **settings: Any) -> ConvLadder:
    return ConvLadder(RouteStore(folder), **settings)


def some_call() -> tuple[Any, ...]:
    """Return the arguments of a convolution that every rung can compute."""
    generator = torch.Generator().manual_seed(3)
    x, weight = (torch.randn(*shape, generator=generator) for shape in ((1, 3, 4, 6, 8), (5, 3, 3, 3, 3)))
    return x, weight, torch.randn(5, generator=generator), ONE, ONE, ONE, 1
