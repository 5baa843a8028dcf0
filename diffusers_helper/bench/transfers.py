"""The speeds of main memory, of the disk, and of the bus between main memory and the card."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial

import torch

from diffusers_helper.bench.context import Case, Context, Figures
from diffusers_helper.files import replacing
from diffusers_helper.machine.local import disk_speed
from diffusers_helper.memory.measuring import wait_for

_SAMPLE_BYTES = 128 * 1024**2
_COPIES = 4


def host(context: Context) -> Iterator[Case]:
    """Yield a copy within main memory, and writing and reading of a file in the folder for files."""
    yield "copy within main memory", lambda: {"host_copy_bytes_per_second": _host_copy(context)}
    yield "disk", partial(_disk, context)


def _host_copy(context: Context) -> float:
    source, target = (torch.ones(_SAMPLE_BYTES, dtype=torch.uint8) for _ in range(2))
    return _SAMPLE_BYTES / context.time(lambda: target.copy_(source)).median


def _disk(context: Context) -> Figures:
    """Measure writing with a sync, and reads that bypass the kernel's memory where the system allows it."""
    sample, content = context.folder / "sample", torch.randint(256, (_SAMPLE_BYTES,), dtype=torch.uint8)
    begin = time.perf_counter()
    with replacing(sample) as temporary:
        temporary.write_bytes(content.numpy().data)
    seconds = time.perf_counter() - begin
    read = disk_speed(sample)
    sample.unlink()
    return {"disk_write_bytes_per_second": _SAMPLE_BYTES / seconds, "disk_read_bytes_per_second": read}


def bus(context: Context) -> Iterator[Case]:
    """Yield copies in both directions, from and to pinned and ordinary main memory."""
    for name, is_pinned in (("", False), ("pinned_", True)):
        yield f"{name}copies".replace("_", " "), partial(_bus, context, name, is_pinned)


def _bus(context: Context, name: str, is_pinned: bool) -> Figures:
    size = 2 * _SAMPLE_BYTES
    on_host = torch.ones(size, dtype=torch.uint8, pin_memory=is_pinned)
    on_card = torch.ones(size, dtype=torch.uint8, device=context.torch_device)

    def speed(target: torch.Tensor, source: torch.Tensor) -> float:
        def copy() -> None:
            for _ in range(_COPIES):
                target.copy_(source, non_blocking=is_pinned)

        return _COPIES * size / context.time(copy).median

    found = {
        f"host_to_device_{name}bytes_per_second": speed(on_card, on_host),
        f"device_to_host_{name}bytes_per_second": speed(on_host, on_card),
    }
    wait_for(context.device)
    return found
