"""Helpers for tests that run on a GPU, and where that means something on its double, the CPU, too."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

_MARKS = (
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that torch sees"),
)
DEVICES = ["cpu", pytest.param("cuda", marks=_MARKS)]
# Of the driver's own memory for a process, which comes and goes without the process's doing.
SLACK_BYTES = 64 * 2**20


def on_gpu(test: Callable[..., None]) -> Callable[..., None]:
    """Mark a test that means nothing without a GPU."""
    for mark in _MARKS:
        test = mark(test)
    return test


def held_bytes(device: str, pid: int | None = None) -> int:
    """Return the memory of a device that is taken, by all programs.

    Args:
        device: "cuda" for the first GPU, whose driver is asked; "cpu" for the main memory of one process.
        pid: The process, for a CPU; 0 bytes if it is gone.
    """
    if device == "cuda":
        free, total = torch.cuda.mem_get_info(0)
        return total - free
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
