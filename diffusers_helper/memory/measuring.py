"""The measurement of time and peak memory of work on a device, after a warm-up."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from diffusers_helper.memory.device import Device


@dataclass(frozen=True, slots=True)
class Measured:
    """The time of each run, without the warm-up, and the most that tensors took and that torch held."""

    seconds: tuple[float, ...]
    peak_bytes: int
    peak_reserved_bytes: int = 0

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def spread(self) -> float:
        return (max(self.seconds) - min(self.seconds)) / self.median if self.median else 0.0


def wait_for(device: Device) -> None:
    if device.has_gpu:
        torch.cuda.synchronize(device.torch_device)


def measure(work: Callable[[], object], device: Device, *, warm_up: int = 1, runs: int = 3) -> Measured:
    seconds: list[float] = []
    with device:
        for run in range(warm_up + max(1, runs)):
            if run == warm_up:
                wait_for(device)
                device.reset_peak()
            start_time = time.perf_counter()
            work()
            wait_for(device)
            if run >= warm_up:
                seconds.append(time.perf_counter() - start_time)
    return Measured(tuple(seconds), device.peak_bytes(), device.peak_reserved_bytes())
