"""Copies of large weights from mapped files to a GPU, by way of pinned memory.

From pageable memory, the driver copies through a small buffer of its own: 4 GB/s on an H200, where the link
takes 30. Here, one piece goes to the device while the next is copied into pinned memory.
"""

from __future__ import annotations

import logging
from itertools import cycle
from typing import Any

import torch
from torch import Tensor

from diffusers_helper.errors import first_line

_log = logging.getLogger(__name__)
PIECE_BYTES = 32 * 1024**2
# Smaller tensors are copied as they are, which takes no longer.
LEAST_BYTES = 1024**2


class Staging:
    """Two pinned buffers for one device, which are allocated when they are first needed."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._buffers: list[tuple[Tensor, Any]] | None = None
        self._is_possible = device.type == "cuda"

    def copy(self, source: Tensor, target: Tensor) -> None:
        """Copy a tensor in main memory into one of the same size and type on the device.

        The copy is in the order of the device's current stream, and the source may change afterwards.
        """
        if source.nbytes < LEAST_BYTES or not source.is_contiguous() or not self._is_ready():
            target.copy_(source)
            return
        assert self._buffers is not None
        given, taken = _bytes_of(source), _bytes_of(target)
        pieces = zip(given.split(PIECE_BYTES), taken.split(PIECE_BYTES), strict=True)
        for (buffer, copied), (piece, place) in zip(cycle(self._buffers), pieces, strict=False):
            copied.synchronize()  # the earlier piece must have left the buffer
            pinned = buffer[: len(piece)]
            pinned.copy_(piece)
            place.copy_(pinned, non_blocking=True)
            copied.record(torch.cuda.current_stream(self.device))

    def _is_ready(self) -> bool:
        """Return whether there are buffers; a system without room for them copies as it can."""
        if self._is_possible and self._buffers is None:
            try:
                self._buffers = [self._new_buffer() for _ in range(2)]
            except RuntimeError as error:
                _log.warning("weights are copied without pinned memory: %s", first_line(error))
                self._is_possible = False
        return self._is_possible

    def _new_buffer(self) -> tuple[Tensor, Any]:
        with torch.inference_mode(False):
            return torch.empty(PIECE_BYTES, dtype=torch.uint8, pin_memory=True), torch.cuda.Event()


def _bytes_of(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1).view(torch.uint8)
