"""The networks on the device, and the functions that move them between the device and main memory.

The functions have the same names as in FramePack. They do not return memory to the driver, which happens only
between stages. Those at the end are for scripts that move whole models; a job uses `store.Store` instead,
which knows how much memory each stage needs. They, too, stream the blocks that do not fit.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import torch
from torch import nn

from diffusers_helper.memory.device import Device, open_device
from diffusers_helper.memory.staging import Staging
from diffusers_helper.memory.status import report
from diffusers_helper.memory.streaming import Streamer, Trace
from diffusers_helper.memory.weights import Weight, sizes_of, weights_of
from diffusers_helper.models.sizes import Weights
from diffusers_helper.planning.budget import RING_BLOCKS, Budget, Stage, StagePlan, plan_stage
from diffusers_helper.units import GB, gb_bytes

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Placed:
    """A network that is on the device, as a whole or with some of its blocks streamed."""

    module: nn.Module
    weights: list[Weight]
    dtype: torch.dtype | None
    streamer: Streamer | None = None
    streamed: frozenset[int] = field(default_factory=frozenset[int])


class Residency:
    """The networks that are on one device. `trace` is called with the events of the streaming."""

    def __init__(self, device: torch.device, trace: Trace | None = None) -> None:
        self.device, self.trace = device, trace
        self._staging = Staging(device)
        self._placed: dict[int, _Placed] = {}
        self._bytes_streamed = 0

    @property
    def bytes_streamed(self) -> int:
        streamers = (placed.streamer for placed in self._placed.values())
        return self._bytes_streamed + sum(streamer.bytes_copied for streamer in streamers if streamer)

    def is_on_device(self, module: nn.Module, streamed: Sequence[int] = ()) -> bool:
        """Return whether a network is on the device with exactly these blocks streamed."""
        placed = self._placed.get(id(module))
        return placed is not None and placed.streamed == frozenset(streamed)

    def move_model_to_device_with_memory_preservation(
        self,
        module: nn.Module,
        *,
        preserved_bytes: int = 0,
        blocks: Sequence[nn.Module] = (),
        streamed: Sequence[int] = (),
        num_slots: int = RING_BLOCKS,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Move a network to the device, except for the blocks that are streamed to preserve memory.

        If it is there as a whole, these blocks leave. If this fails, it is taken off the device again.

        Args:
            blocks: The network's blocks in the order in which they run.
            streamed: The indices of the blocks to stream, ascending; none for a network as a whole.
            num_slots: The number of streamed blocks that are on the device at a time.
        """
        placed = self._placed.get(id(module))
        if placed is None or placed.streamed or placed.dtype != dtype or not streamed:
            self.unload_complete_models(module)
            placed = _Placed(module, weights_of(module, dtype), dtype)
        is_there = id(module) in self._placed
        members = _members(placed.weights, blocks, streamed)
        elsewhere = {id(weight) for block in members.values() for weight in block}
        with ExitStack() as undo:
            self._placed[id(module)] = placed
            undo.callback(self.unload_complete_models, module)
            for weight in placed.weights:
                if id(weight) in elsewhere:
                    weight.to_host()
                elif not is_there:
                    weight.to_device(self._staging)
            placed.streamed = frozenset(members)
            if members:
                parts = [(index, blocks[index], members[index]) for index in members]
                placed.streamer = Streamer(
                    module, parts, device=self.device, num_slots=num_slots, trace=self.trace
                )
            undo.pop_all()
        name, preserved = type(module).__name__, preserved_bytes / GB
        if not streamed:
            report(_log, "Loaded %s to %s as complete.", name, self.device)
        elif is_there:
            report(_log, "Offloading %s from %s to preserve memory: %.2f GB", name, self.device, preserved)
        else:
            report(
                _log, "Moving %s to %s with preserved memory: %.2f GB (%d of %d blocks are streamed)",
                name, self.device, preserved, len(streamed), len(blocks),
            )  # fmt: skip

    def unload_complete_models(self, *modules: nn.Module) -> list[nn.Module]:
        """Take these networks off the device, or all of them if none is given, and return those removed."""
        wanted = {id(module) for module in modules} or set(self._placed)
        gone: list[nn.Module] = []
        for key in [key for key in self._placed if key in wanted]:
            placed = self._placed.pop(key)
            if placed.streamer is not None:
                placed.streamer.close()
                self._bytes_streamed += placed.streamer.bytes_copied
            for weight in placed.weights:
                weight.to_host()
            gone.append(placed.module)
            report(_log, "Unloaded %s as complete.", type(placed.module).__name__)
        return gone


def _members(
    weights: Sequence[Weight], blocks: Sequence[nn.Module], indices: Sequence[int]
) -> dict[int, list[Weight]]:
    known = {id(weight.tensor): weight for weight in weights}
    return {
        index: [known[id(tensor)] for tensor in (*blocks[index].parameters(), *blocks[index].buffers())]
        for index in sorted(indices)
    }


cpu = torch.device("cpu")


def __getattr__(name: str) -> torch.device:
    """Return `gpu`, which is the first GPU, or `cpu` without one. It is looked up at each use."""
    if name != "gpu":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return open_device().torch_device


_places: dict[torch.device, Residency] = {}


def _place(target_device: torch.device | str) -> tuple[Device, Residency]:
    """Return a device with the models that these functions have moved to it."""
    device = open_device(torch.device(target_device))
    return device, _places.setdefault(device.torch_device, Residency(device.torch_device))


def load_model_as_complete(model: nn.Module, target_device: torch.device | str, unload: bool = True) -> None:
    """Move a whole model to a device, after those that these functions have loaded if `unload` is set."""
    if unload:
        unload_complete_models()
    _, residency = _place(target_device)
    residency.move_model_to_device_with_memory_preservation(model)


def unload_complete_models(*models: nn.Module) -> None:
    """Move these models, and all models that these functions have loaded, to main memory as a whole.

    The allocator keeps the memory until `flush_rocm_allocator` returns it to the driver.
    """
    for residency in _places.values():
        residency.unload_complete_models()
    for model in models:
        nn.Module.to(model, "cpu")


def move_model_to_device_with_memory_preservation(
    model: nn.Module, target_device: torch.device | str, preserved_memory_gb: float = 0.0
) -> None:
    """Move a model to a device, but leave some of the device's free memory unused.

    Blocks that do not fit stay in main memory and are copied to the device ahead of their turn.

    Args:
        model: Its blocks are the modules in its lists, such as `transformer_blocks`, which have to run in
            their order.
        preserved_memory_gb: The GB of 1024^3 bytes to leave free, as far as the model can be streamed.

    Raises:
        DoesNotFit: If the model does not fit even if all blocks are streamed. Nothing was moved then.
    """
    (device, residency), blocks = _place(target_device), _blocks(model)
    residency.unload_complete_models(model)
    plan = _plan(device, model, device.free_bytes(), preserved_memory_gb)
    residency.move_model_to_device_with_memory_preservation(
        model, preserved_bytes=gb_bytes(preserved_memory_gb), blocks=blocks, streamed=plan.streamed_blocks
    )


def offload_model_from_device_for_memory_preservation(
    model: nn.Module, target_device: torch.device | str, preserved_memory_gb: float = 0.0
) -> None:
    """Free some memory of a device by streaming blocks of a model that is on it.

    Before the VAE decodes, use `unload_complete_models` instead, since any part of the transformer that stays
    keeps the memory fragmented.

    The arguments are those of `move_model_to_device_with_memory_preservation`.

    Raises:
        DoesNotFit: If the model does not fit even if all blocks are streamed. It stays as it was then.
    """
    (device, residency), blocks = _place(target_device), _blocks(model)
    if not residency.is_on_device(model):
        move_model_to_device_with_memory_preservation(model, target_device, preserved_memory_gb)
        return
    free = device.free_bytes() + sizes_of(model, blocks)[0]
    if streamed := _plan(device, model, free, preserved_memory_gb).streamed_blocks:
        residency.move_model_to_device_with_memory_preservation(
            model, preserved_bytes=gb_bytes(preserved_memory_gb), blocks=blocks, streamed=streamed
        )


def _blocks(model: nn.Module) -> list[nn.Module]:
    lists = (child for child in model.children() if isinstance(child, nn.ModuleList))
    return [block for blocks in lists for block in blocks]


def _plan(device: Device, model: nn.Module, free_bytes: int, preserved_gb: float) -> StagePlan:
    name = type(model).__name__
    budget = Budget(device.total_bytes, free_bytes, gb_bytes(preserved_gb), reserve_bytes=0)
    return plan_stage(budget, Stage(name, Weights(name, *sizes_of(model, _blocks(model))), 0))
