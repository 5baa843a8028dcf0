"""The streaming of blocks that do not fit on the device, which are copied to it ahead of their turn.

A thread copies the next streamed blocks while the earlier ones compute: piece by piece from the mapped file
through two pinned buffers, on a second CUDA stream, into one of the plan's slots on the device. Weights are
never held in other main memory.

diffusers' group offloading (0.42) keeps no block resident. Its prefetch runs in the computing thread, or
keeps all weights pinned. To stream from disk, it first writes them to a second set of files.
"""

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from cache.replaced import BENEATH, replace_forward
from diffusers_helper.memory.staging import Staging
from diffusers_helper.memory.weights import Layout, Weight


@dataclass(slots=True)
class _Slot:
    """The memory for one block, with CUDA events after the copy into it and after its computation."""

    storage: Tensor
    copied_event: Any = None
    released_event: Any = None


_STREAMER_ATTRIBUTE = "weight_streamer"


class Streamer:
    """A streamer that brings each streamed block of a network to the device before the forward pass needs it.

    It wraps the blocks' forward functions. The blocks have to run in ascending order; some may be skipped, as
    a step cache does, and a pass may start again. The results are bit-identical to those with resident
    weights.
    """

    def __init__(
        self,
        module: nn.Module,
        blocks: Sequence[tuple[nn.Module, Sequence[Weight]]],
        device: torch.device,
        num_slots: int = 2,
    ) -> None:
        """Allocate the slots and start the thread that copies; blocks are in the order in which they run."""
        self._device = device
        self._layouts = [Layout.of(weights, device) for _, weights in blocks]
        self._pieces = [list(layout.pieces()) for layout in self._layouts]
        self._staging = Staging(device)
        self.bytes_copied = 0
        slot_bytes = max(layout.num_bytes for layout in self._layouts)
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._free = deque(self._new_slot(slot_bytes) for _ in range(num_slots))
        self._ready: deque[tuple[int, _Slot]] = deque()
        self._requested = deque(range(len(self._layouts)))
        self._copying: int | None = None
        self._pass_number = 0
        self._in_use: tuple[int, _Slot] | None = None
        self._error: Exception | None = None
        self._is_closed = False
        self._changed = threading.Condition()
        self._is_on_demand = self._continues = False
        self._module = module
        module.__dict__[_STREAMER_ATTRIBUTE] = self
        self._hook = module.register_forward_pre_hook(self._before_pass)
        self._blocks = [block for block, _ in blocks]
        # Hooks of torch would run before a step cache, which wraps these functions, could skip a block.
        module.__dict__[BENEATH] = self._forwards = {block: block.forward for block in self._blocks}
        self._restores = [
            replace_forward(block, partial(self._run, index, block))
            for index, block in enumerate(self._blocks)
        ]
        self._thread = threading.Thread(target=self._copy_requested, name="weights", daemon=True)
        self._thread.start()

    def _new_slot(self, size: int) -> _Slot:
        with torch.inference_mode(False):  # other threads could not write to an inference tensor
            storage = torch.empty(size, dtype=torch.uint8, device=self._device)
            if self._stream is None:
                return _Slot(storage)
        released = torch.cuda.Event()
        # Kernels in flight may still use the memory, which the allocator gave to another tensor before.
        released.record(torch.cuda.current_stream(self._device))
        return _Slot(storage, torch.cuda.Event(), released)

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join()
        if self._stream is not None:
            self._stream.synchronize()
        self._hook.remove()
        for restore in self._restores:
            restore()
        del self._module.__dict__[_STREAMER_ATTRIBUTE], self._module.__dict__[BENEATH]
        for layout in self._layouts:
            layout.to_host()
        self._in_use = None
        self._free.clear()
        self._ready.clear()

    def _run(self, index: int, block: nn.Module, *args: Any, **kwargs: Any) -> Any:
        with self._block_on_device(index):
            return self._forwards[block](*args, **kwargs)

    @contextmanager
    def on_demand(self) -> Iterator[None]:
        """Fetch no block ahead within the context, until `continue_pass` is called."""
        self._is_on_demand = True
        try:
            yield
        finally:
            self._is_on_demand = False

    @contextmanager
    def first_block(self, block: nn.Module) -> Iterator[None]:
        """Keep a pass's first block on the device, if it is streamed, without the blocks after it.

        If the pass is not continued, the block stays there for the next pass.
        """
        self._continues = False
        if block not in self._blocks:
            yield
            return
        with self._block_on_device(self._blocks.index(block), is_only_block=True):
            yield

    def continue_pass(self) -> None:
        self._continues = True
        self._begin_pass()

    @contextmanager
    def _block_on_device(self, index: int, *, is_only_block: bool = False) -> Iterator[None]:
        if self._in_use is not None and self._in_use[0] == index:
            yield
            return
        slot = self._wait_for_slot(index, index + 1 if is_only_block else len(self._layouts))
        self._in_use = index, slot
        if self._stream is not None:
            torch.cuda.current_stream(self._device).wait_event(slot.copied_event)
        self._layouts[index].use(slot.storage)
        try:
            yield
        finally:
            self._release_block(index, keep_for_next_pass=is_only_block and not self._continues)

    def _release_block(self, index: int, *, keep_for_next_pass: bool) -> None:
        if self._in_use is None:
            return
        slot, self._in_use = self._in_use[1], None
        self._layouts[index].to_host()
        if self._stream is not None:
            slot.released_event.record(torch.cuda.current_stream(self._device))
        with self._changed:
            if keep_for_next_pass:
                self._ready.appendleft((index, slot))
            else:
                self._free.append(slot)
            self._changed.notify_all()

    def _wait_for_slot(self, index: int, end: int) -> _Slot:
        """Wait for a block. If it was not requested, request all blocks up to `end`."""
        with self._changed:
            while True:
                if self._error is not None:
                    raise self._error
                while self._ready and self._ready[0][0] < index:
                    self._free.append(self._ready.popleft()[1])
                    self._changed.notify_all()
                if self._ready and self._ready[0][0] == index:
                    return self._ready.popleft()[1]
                if index not in self._requested and self._copying != index:
                    self._request(index, end)
                self._changed.wait()

    def _before_pass(self, *_: object) -> None:
        if not self._is_on_demand:
            self._begin_pass()

    def _begin_pass(self) -> None:
        """Request all blocks after the one in use, unless the first is there or on its way."""
        first = 0 if self._in_use is None else self._in_use[0] + 1
        with self._changed:
            is_coming = self._copying == first or (self._requested and self._requested[0] == first)
            if not (is_coming or (self._ready and self._ready[0][0] == first)):
                self._request(first, len(self._layouts))

    def _request(self, index: int, end: int) -> None:
        self._pass_number += 1
        self._copying = None
        self._free.extend(slot for _, slot in self._ready)
        self._ready.clear()
        self._requested = deque(range(index, end))
        self._changed.notify_all()

    def _copy_requested(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_closed or (self._requested and self._free))
                if self._is_closed:
                    return
                index = self._requested.popleft()
                slot = self._free.popleft()
                pass_number = self._pass_number
                self._copying = index
            error = None
            try:
                self._copy(index, slot)
            except Exception as raised:  # noqa: BLE001 - it belongs to the thread that waits for the block
                error = raised
            with self._changed:
                self._error = self._error or error
                if pass_number == self._pass_number:
                    self._copying = None
                    self._ready.append((index, slot))
                else:
                    self._free.append(slot)
                self._changed.notify_all()

    def _copy(self, index: int, slot: _Slot) -> None:
        with torch.cuda.stream(self._stream) if self._stream else nullcontext():
            if self._stream:
                self._stream.wait_event(slot.released_event)
            for piece in self._pieces[index]:
                self._staging.send(piece.write, slot.storage[piece.start : piece.end])
            if self._stream:
                slot.copied_event.record(self._stream)
        self.bytes_copied += sum(weight.num_bytes for weight, _ in self._layouts[index].placements)


def streamer_of(network: nn.Module) -> Streamer | None:
    return network.__dict__.get(_STREAMER_ATTRIBUTE)
