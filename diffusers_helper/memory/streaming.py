"""The streaming of blocks that do not fit on the device: they are copied in ahead of their turn.

A thread copies the next streamed blocks while the ones before them compute: from the memory-mapped file
through a pinned buffer, and from there on a second stream into a slot on the device; on a CPU straight into
the slot. As many slots as the plan says exist on each side and none is ever added, so both the device's and
the pinned memory are bounded, and weights are never in anonymous main memory.

diffusers' group offloading (0.42) has the same aim, but does not serve. It can keep no block resident: every
group leaves after its forward. Its prefetch runs in the thread that computes, which stands still while
weights are copied into pinned memory (`low_cpu_mem_usage=True`; otherwise all weights of the model stay
pinned), and it waits for the whole copy stream before each copy. To stream from disk it first writes the
model's weights into a second set of files. Streams need an accelerator, so that nothing could be tested on a
CPU.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from diffusers_helper.memory.weights import Layout, Weight

Event = Literal["copy", "copied", "wait", "run", "ran"]
# A function that is told what happens next, with the block's index, in the thread that does it.
Trace = Callable[[Event, int], None]


@dataclass(slots=True)
class _Slot:
    """Room for one block.

    Attributes:
        storage: On the device.
        pinned: The same size in main memory; None on a CPU.
        copied: On a GPU, the event after the copy into `storage`.
        released: On a GPU, the event after the block's computation.
    """

    storage: Tensor
    pinned: Tensor | None = None
    copied: Any = None
    released: Any = None


class Streamer:
    """The feeder of a network's streamed blocks: each comes to the device before the forward pass needs it.

    It works by hooks on the blocks, which are called in ascending order; blocks may be left out, as a step
    cache does, or begun again. The results are those of resident weights, to the bit.
    """

    def __init__(
        self,
        module: nn.Module,
        blocks: Sequence[tuple[int, nn.Module, Sequence[Weight]]],
        *,
        device: torch.device,
        num_slots: int = 2,
        trace: Trace | None = None,
    ) -> None:
        """Take the slots' memory and begin to copy.

        Args:
            module: The network; the first blocks are fetched when its forward begins.
            blocks: Index, block and weights of those to stream, in the order they run.
        """
        self._device, self._trace = device, trace
        self._indices = [index for index, _, _ in blocks]
        self._layouts = [Layout.of(weights, device) for _, _, weights in blocks]
        self.bytes_copied = 0
        size = max(layout.num_bytes for layout in self._layouts)
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._free = deque(self._new_slot(size) for _ in range(num_slots))
        self._ready: deque[tuple[int, _Slot]] = deque()
        self._wanted = deque(range(len(self._layouts)))
        self._copying: int | None = None
        self._pass = 0
        self._in_use: tuple[int, _Slot] | None = None
        self._error: Exception | None = None
        self._is_closed = False
        self._changed = threading.Condition()
        self._hooks = [module.register_forward_pre_hook(lambda *_: self._begin_pass())]
        for place, (_, block, _) in enumerate(blocks):
            self._hooks += [
                block.register_forward_pre_hook(lambda *_, place=place: self._enter(place)),
                block.register_forward_hook(lambda *_, place=place: self._leave(place), always_call=True),
            ]
        self._thread = threading.Thread(target=self._copy_all, name="weights", daemon=True)
        self._thread.start()

    def _new_slot(self, size: int) -> _Slot:
        with torch.inference_mode(False):  # else no other thread could write to it
            storage = torch.empty(size, dtype=torch.uint8, device=self._device)
            if self._stream is None:
                return _Slot(storage)
            pinned = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        return _Slot(storage, pinned, torch.cuda.Event(), torch.cuda.Event())

    def close(self) -> None:
        """End the copying, give the slots' memory back and leave all blocks in main memory.

        This works after an exception within a forward pass too. When it returns, the thread has ended.
        """
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join()
        if self._stream is not None:
            self._stream.synchronize()
        for hook in self._hooks:
            hook.remove()
        for layout in self._layouts:
            layout.to_host()
        self._in_use = None
        self._free.clear()
        self._ready.clear()

    def _tell(self, what: Event, place: int) -> None:
        if self._trace:
            self._trace(what, self._indices[place])

    def _enter(self, place: int) -> None:
        """Wait, before a block computes, until its weights are there."""
        self._tell("wait", place)
        slot = self._take(place)
        self._in_use = place, slot
        if self._stream is not None:
            torch.cuda.current_stream(self._device).wait_event(slot.copied)
        self._layouts[place].use(slot.storage)
        self._tell("run", place)

    def _leave(self, place: int) -> None:
        """Release a block's slot after the block has computed, or failed to."""
        if self._in_use is None or self._in_use[0] != place:
            return
        self._tell("ran", place)
        slot, self._in_use = self._in_use[1], None
        self._layouts[place].to_host()
        if self._stream is not None:
            slot.released.record(torch.cuda.current_stream(self._device))
        with self._changed:
            self._free.append(slot)
            self._changed.notify_all()

    def _take(self, place: int) -> _Slot:
        with self._changed:
            while True:
                if self._error is not None:
                    raise self._error
                while self._ready and self._ready[0][0] < place:
                    self._free.append(self._ready.popleft()[1])
                    self._changed.notify_all()
                if self._ready and self._ready[0][0] == place:
                    return self._ready.popleft()[1]
                if place not in self._wanted and self._copying != place:
                    self._want(place)
                self._changed.wait()

    def _begin_pass(self) -> None:
        """Fetch the first blocks, unless they are there already."""
        with self._changed:
            is_coming = self._copying == 0 or (self._wanted and self._wanted[0] == 0)
            if not (is_coming or (self._ready and self._ready[0][0] == 0)):
                self._want(0)

    def _want(self, place: int) -> None:
        """Ask for the blocks from `place` on, in this order, and no others."""
        self._pass += 1
        self._copying = None
        self._free.extend(slot for _, slot in self._ready)
        self._ready.clear()
        self._wanted = deque(range(place, len(self._layouts)))
        self._changed.notify_all()

    def _copy_all(self) -> None:
        """Do the thread's work."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_closed or (self._wanted and self._free))
                if self._is_closed:
                    return
                place, slot, number = self._wanted.popleft(), self._free.popleft(), self._pass
                self._copying = place
            error = self._try_copy(place, slot)
            with self._changed:
                self._error = self._error or error
                if number == self._pass:
                    self._copying = None
                    self._ready.append((place, slot))
                else:
                    self._free.append(slot)
                self._changed.notify_all()

    def _try_copy(self, place: int, slot: _Slot) -> Exception | None:
        self._tell("copy", place)
        try:
            self._copy(self._layouts[place], slot)
        except Exception as error:  # noqa: BLE001 - it belongs to the thread that waits for the block
            return error
        self._tell("copied", place)
        return None

    def _copy(self, layout: Layout, slot: _Slot) -> None:
        if self._stream is None or slot.pinned is None:
            layout.fill(slot.storage)
        else:
            slot.copied.synchronize()  # the former content of the pinned buffer has left it
            layout.fill(slot.pinned)
            with torch.cuda.stream(self._stream):
                self._stream.wait_event(slot.released)
                size = layout.num_bytes
                slot.storage[:size].copy_(slot.pinned[:size], non_blocking=True)
                slot.copied.record(self._stream)
        self.bytes_copied += sum(weight.num_bytes for weight, _ in layout.places)
