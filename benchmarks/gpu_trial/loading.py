"""Part 7: the transformer's weights on the device in several ways, from a file in the kernel's memory."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import torch
from diffusers import HunyuanVideoFramepackTransformer3DModel
from safetensors.torch import load_file
from torch import Tensor, nn

from benchmarks.gpu_trial.trial import Case, Figures, Trial, host_peak
from diffusers_helper.memory.residency import Resident
from diffusers_helper.memory.staging import Staging
from diffusers_helper.weights.reading import weight_files

_THREADS, _PIECE_BYTES = 4, 64 * 1024**2


def resident(trial: Trial) -> Iterator[Case]:
    """Yield each way to make the weights resident."""
    (file,) = weight_files(trial.model / "transformer")
    ways: dict[str, Callable[[], Any]] = {
        "longtake": partial(_placed, trial),
        "mapped, then .to()": lambda: nn.Module.to(trial.network("transformer"), trial.torch_device),
        "safetensors, load_file": lambda: load_file(file, device=str(trial.torch_device)),
        "read by four threads into pinned memory": partial(read_by_threads, file, trial.torch_device),
        "diffusers, from_pretrained and .to()": partial(_pretrained, trial),
    }
    for name, work in ways.items():
        yield name, partial(_measured, trial, work, file.stat().st_size)


def _measured(trial: Trial, work: Callable[[], Any], size: int) -> Figures:
    kept = list[Any]()  # until it is measured
    with host_peak(trial.device) as host:
        figures = trial.speed(lambda: kept.append(work()), size, warm_up=0, runs=1)
    return {**figures, **host}


def _placed(trial: Trial) -> Resident:
    return Resident(trial.network("transformer"), Staging(trial.torch_device))


def _pretrained(trial: Trial) -> nn.Module:
    network: Any = HunyuanVideoFramepackTransformer3DModel.from_pretrained(
        trial.model / "transformer", dtype=trial.dtype
    )
    return network.to(trial.torch_device)


def read_by_threads(file: Path, device: torch.device) -> Tensor:
    """Return a file's bytes on the device, read by threads that have one pinned buffer each."""
    size = file.stat().st_size
    target = torch.empty(size, dtype=torch.uint8, device=device)
    begins = range(0, size, _PIECE_BYTES)

    def read(first: int) -> None:
        buffer = torch.empty(_PIECE_BYTES, dtype=torch.uint8, pin_memory=device.type == "cuda")
        for begin in begins[first::_THREADS]:
            count = os.preadv(descriptor, [buffer.numpy().data], begin)
            target[begin : begin + count].copy_(buffer[:count])  # while it waits, the others read

    descriptor = os.open(file, os.O_RDONLY)
    try:
        with ThreadPoolExecutor(_THREADS) as threads:
            list(threads.map(read, range(_THREADS)))
    finally:
        os.close(descriptor)
    return target
