"""Copies of weights from main memory to a GPU, by way of pinned memory.

From pageable memory, the driver copies 4 GB/s on an H200, where the link takes 30. Here, one piece goes to
the device while the next is written into pinned memory.
"""

import logging
import time
from collections.abc import Callable
from math import inf
from typing import Any

import torch
from torch import Tensor, nn

from diffusers_helper.errors import first_line

_log = logging.getLogger(__name__)
PIECE_BYTES = 32 * 1024**2
# Smaller pieces are written to the device directly, which takes no longer, and so are larger ones.
MIN_PIECE_BYTES = 1024**2
_SAMPLE_BYTES = 256 * 1024**2


class Staging:
    """Two pinned buffers for one device and one thread, which are allocated when they are first needed."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._buffers: list[tuple[Tensor, Any]] = []
        self._is_available = device.type == "cuda"

    def send(self, write: Callable[[Tensor], object], target: Tensor) -> None:
        """Let `write` fill a pinned tensor of bytes, and copy that to a tensor on the device.

        The copy is in the order of the device's current stream.
        """
        if not MIN_PIECE_BYTES <= target.nbytes <= PIECE_BYTES or not self._is_ready():
            write(target)
            return
        buffer, copied_event = self._buffers[0]
        self._buffers.reverse()
        copied_event.synchronize()  # the earlier piece must have left the buffer
        pinned = buffer[: target.nbytes]
        write(pinned)
        target.copy_(pinned, non_blocking=True)
        copied_event.record(torch.cuda.current_stream(self.device))

    def _is_ready(self) -> bool:
        """Allocate the buffers. Without room for them, weights are copied without pinned memory."""
        if self._is_available and not self._buffers:
            try:
                self._buffers = [self._new_buffer() for _ in range(2)]
            except RuntimeError as error:
                _log.warning("weights are copied without pinned memory: %s", first_line(error))
                self._is_available = False
        return self._is_available

    def _new_buffer(self) -> tuple[Tensor, Any]:
        with torch.inference_mode(False):
            buffer = torch.empty(PIECE_BYTES, dtype=torch.uint8, pin_memory=True)
        # With `blocking`, a thread that waits for the event sleeps: a streamed piece may wait for a block.
        return buffer, torch.cuda.Event(blocking=True)


def host_copy_speed(network: nn.Module) -> float | None:
    """Measure the bytes per second at which mapped weights are written into a buffer in main memory.

    This is how they are copied on their way to a card, by all threads of torch. The speed is None if the
    network's largest file is too small to measure it.
    """
    storage = max((tensor.untyped_storage() for tensor in network.parameters()), key=len)
    if len(storage) < _SAMPLE_BYTES:
        return None
    sample = torch.empty(0, dtype=torch.uint8).set_(storage)[:_SAMPLE_BYTES]  # type: ignore[call-overload]
    buffer = torch.empty(PIECE_BYTES, dtype=torch.uint8)
    seconds = inf
    for _ in range(3):  # pages that are used for the first time take longer, and so does a busy machine
        start_time = time.perf_counter()
        for piece in sample.split(PIECE_BYTES):
            buffer[: len(piece)].copy_(piece)
        seconds = min(seconds, time.perf_counter() - start_time)
    return _SAMPLE_BYTES / seconds
