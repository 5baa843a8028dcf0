"""What each part of the benchmark gets, and the measurements that several parts share."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch

from diffusers_helper.memory.device import Device, open_device
from diffusers_helper.memory.measuring import Measured, measure

Figures = dict[str, Any]
"""The figures of one case: numbers, short texts, and None for what cannot be measured here."""
Case = tuple[str, Callable[[], Figures] | str]
"""One case of a part: its label, and a function that measures it, or the reason why it is left out."""

_WATCH_SECONDS = 0.02


@dataclass(frozen=True)
class Context:
    """The machine and the wishes that a part measures for.

    Attributes:
        folder: The folder for files that later parts may use, too. The program removes it at the end.
        model: The name or folder of a FramePack model with real weights; "" for random ones.
    """

    level: Literal["quick", "standard", "full"]
    folder: Path
    environ: Mapping[str, str] = field(default_factory=dict[str, str])
    model: str = ""

    @cached_property
    def device(self) -> Device:
        return open_device()

    @property
    def torch_device(self) -> torch.device:
        return self.device.torch_device

    @property
    def has_gpu(self) -> bool:
        return self.device.has_gpu

    @property
    def is_quick(self) -> bool:
        return self.level == "quick"

    def time(self, work: Callable[[], object], *, warm_up: int = 1, runs: int = 3) -> Measured:
        """Measure work on the device; see `memory.measuring.measure`."""
        with torch.inference_mode():
            return measure(work, self.device, warm_up=warm_up, runs=runs)


def peaks(planned_bytes: int, measured_bytes: int) -> Figures:
    """Return the figures by which a report judges a plan: the planned and the measured peak in bytes."""
    return {"planned_bytes": planned_bytes, "measured_bytes": measured_bytes}


@contextmanager
def driver_peak(device: Device) -> Iterator[Figures]:
    """Watch what the driver says of the card's memory, which includes what torch does not see.

    Yields:
        The figures `driver_start_bytes` and `driver_peak_bytes`, the memory in use on the whole card. They
        are complete when the context ends, and None without a GPU.
    """
    found: Figures = {"driver_start_bytes": None, "driver_peak_bytes": None}
    if not device.has_gpu:
        yield found
        return
    is_over = threading.Event()

    def used() -> int:
        free, total = torch.cuda.mem_get_info(device.torch_device)
        return total - free

    def watch() -> None:
        while not is_over.wait(_WATCH_SECONDS):
            found["driver_peak_bytes"] = max(found["driver_peak_bytes"], used())

    found["driver_start_bytes"] = found["driver_peak_bytes"] = used()
    thread = threading.Thread(target=watch, name="driver", daemon=True)
    thread.start()
    try:
        yield found
    finally:
        found["driver_peak_bytes"] = max(found["driver_peak_bytes"], used())
        is_over.set()
        thread.join()
