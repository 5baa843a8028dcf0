"""Copies of weights from main memory to a GPU, by way of pinned memory.

From pageable memory, the driver copies through a small buffer of its own: 4 GB/s on an H200, where the link
takes 30. Here, one piece goes to the device while the next is written into pinned memory. The buffers are as
large as what torch takes for them, which is a power of two.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from diffusers_helper.errors import first_line

_log = logging.getLogger(__name__)
PIECE_BYTES = 32 * 1024**2
# Smaller pieces are written to the device as they are, which takes no longer, and so are larger ones.
LEAST_BYTES = 1024**2


class Staging:
    """Two pinned buffers for one device and one thread, which are allocated when they are first needed."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._buffers: list[tuple[Tensor, Any]] = []
        self._is_possible = device.type == "cuda"

    def send(self, write: Callable[[Tensor], object], target: Tensor) -> None:
        """Copy what `write` writes into a tensor of bytes to one of the same size on the device.

        The copy is in the order of the device's current stream.
        """
        if not LEAST_BYTES <= target.nbytes <= PIECE_BYTES or not self._is_ready():
            write(target)
            return
        buffer, copied = self._buffers[0]
        self._buffers.reverse()
        copied.synchronize()  # the earlier piece must have left the buffer
        pinned = buffer[: target.nbytes]
        write(pinned)
        target.copy_(pinned, non_blocking=True)
        copied.record(torch.cuda.current_stream(self.device))

    def _is_ready(self) -> bool:
        """Return whether there are buffers; a system without room for them copies as it can."""
        if self._is_possible and not self._buffers:
            try:
                self._buffers = [self._new_buffer() for _ in range(2)]
            except RuntimeError as error:
                _log.warning("weights are copied without pinned memory: %s", first_line(error))
                self._is_possible = False
        return self._is_possible

    def _new_buffer(self) -> tuple[Tensor, Any]:
        with torch.inference_mode(False):
            buffer = torch.empty(PIECE_BYTES, dtype=torch.uint8, pin_memory=True)
        # Who waits for it sleeps, since a piece that is streamed may wait for a block to compute.
        return buffer, torch.cuda.Event(blocking=True)
