"""The networks on the device, and the functions that move them between the device and main memory.

The functions at the end, with FramePack's names, are for scripts that move whole models; a job uses
`store.Store`. They, too, stream the blocks that do not fit. None returns memory to the driver.
"""

import logging
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import torch
from torch import nn

from diffusers_helper.memory.device import Device, open_device
from diffusers_helper.memory.staging import Staging
from diffusers_helper.memory.status import report
from diffusers_helper.memory.streaming import Streamer
from diffusers_helper.memory.weights import Weight, sizes_of, weights_of
from diffusers_helper.models.sizes import Weights
from diffusers_helper.planning.budget import RING_BLOCKS, Budget, Stage, plan_stage
from diffusers_helper.units import GB, gb_bytes

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _ResidentNetwork:
    module: nn.Module
    weights: list[Weight]
    dtype: torch.dtype | None
    streamer: Streamer | None = None
    streamed: frozenset[int] = field(default_factory=frozenset[int])


class Residency:
    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._staging = Staging(device)
        self._residents: dict[int, _ResidentNetwork] = {}
        self._bytes_streamed = 0

    @property
    def bytes_streamed(self) -> int:
        streamers = (resident.streamer for resident in self._residents.values())
        return self._bytes_streamed + sum(streamer.bytes_copied for streamer in streamers if streamer)

    def is_on_device(self, module: nn.Module, streamed: Sequence[int] = ()) -> bool:
        resident = self._residents.get(id(module))
        return resident is not None and resident.streamed == frozenset(streamed)

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

        If the network is there as a whole, these blocks leave. If this fails, all of it leaves the device.
        `blocks` are in the order in which they run; the indices `streamed` ascend.
        """
        resident = self._residents.get(id(module))
        if resident is None or resident.streamed or resident.dtype != dtype or not streamed:
            self.unload_complete_models(module)
            resident = _ResidentNetwork(module, weights_of(module, dtype), dtype)
        was_resident = id(module) in self._residents
        by_tensor = {id(weight.tensor): weight for weight in resident.weights}
        weights = {
            index: [by_tensor[id(tensor)] for tensor in (*block.parameters(), *block.buffers())]
            for index, block in ((index, blocks[index]) for index in sorted(streamed))
        }
        streamed_ids = {id(weight) for block in weights.values() for weight in block}
        with ExitStack() as undo:
            self._residents[id(module)] = resident
            undo.callback(self.unload_complete_models, module)
            for weight in resident.weights:
                if id(weight) in streamed_ids:
                    weight.to_host()
                elif not was_resident:
                    weight.to_device(self._staging)
            resident.streamed = frozenset(weights)
            if weights:
                streamed_blocks = [(blocks[index], weights[index]) for index in weights]
                resident.streamer = Streamer(module, streamed_blocks, self.device, num_slots)
            undo.pop_all()
        name = type(module).__name__
        preserved = preserved_bytes / GB
        if not streamed:
            report(_log, "Loaded %s to %s as complete.", name, self.device)
        elif was_resident:
            report(_log, "Offloading %s from %s to preserve memory: %.2f GB", name, self.device, preserved)
        else:
            report(
                _log, "Moving %s to %s with preserved memory: %.2f GB (%d of %d blocks are streamed)",
                name, self.device, preserved, len(streamed), len(blocks),
            )  # fmt: skip

    def unload_complete_models(self, *modules: nn.Module) -> list[nn.Module]:
        """Take these networks off the device, or all of them without any, and list those removed."""
        keys = {id(module) for module in modules} or set(self._residents)
        removed: list[nn.Module] = []
        for key in [key for key in self._residents if key in keys]:
            resident = self._residents.pop(key)
            if resident.streamer is not None:
                resident.streamer.close()
                self._bytes_streamed += resident.streamer.bytes_copied
            for weight in resident.weights:
                weight.to_host()
            removed.append(resident.module)
            report(_log, "Unloaded %s as complete.", type(resident.module).__name__)
        return removed


cpu = torch.device("cpu")


def __getattr__(name: str) -> torch.device:
    """Look up `gpu` at each use, which is the first GPU, or `cpu` without one."""
    if name != "gpu":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return open_device().torch_device


_residencies: dict[torch.device, Residency] = {}


def _residency_on(target_device: torch.device | str) -> tuple[Device, Residency]:
    device = open_device(torch.device(target_device))
    return device, _residencies.setdefault(device.torch_device, Residency(device.torch_device))


def load_model_as_complete(model: nn.Module, target_device: torch.device | str, unload: bool = True) -> None:
    """Move a whole model to a device, after those that these functions have loaded if `unload` is set."""
    if unload:
        unload_complete_models()
    _, residency = _residency_on(target_device)
    residency.move_model_to_device_with_memory_preservation(model)


def unload_complete_models(*models: nn.Module) -> None:
    """Move these models, and all models that these functions have loaded, to main memory as a whole.

    The allocator keeps the memory until `flush_rocm_allocator` returns it to the driver.
    """
    for residency in _residencies.values():
        residency.unload_complete_models()
    for model in models:
        nn.Module.to(model, "cpu")


def move_model_to_device_with_memory_preservation(
    model: nn.Module, target_device: torch.device | str, preserved_memory_gb: float = 0.0
) -> None:
    """Move a model to a device, but leave some of the device's free memory unused, or raise DoesNotFit.

    Blocks that do not fit stay in main memory and are copied to the device ahead of their turn. They are the
    modules in its lists, such as `transformer_blocks`, which have to run in their order.
    """
    device, residency = _residency_on(target_device)
    residency.unload_complete_models(model)
    _move_as_planned(model, device, residency, preserved_memory_gb)


def offload_model_from_device_for_memory_preservation(
    model: nn.Module, target_device: torch.device | str, preserved_memory_gb: float = 0.0
) -> None:
    """Free some memory of a device by streaming blocks of a model that is on it, or raise DoesNotFit.

    Before the VAE decodes, use `unload_complete_models` instead, since blocks of the transformer that stay
    keep the memory fragmented.
    """
    device, residency = _residency_on(target_device)
    if residency.is_on_device(model):
        _move_as_planned(model, device, residency, preserved_memory_gb)
    else:
        move_model_to_device_with_memory_preservation(model, target_device, preserved_memory_gb)


def _move_as_planned(model: nn.Module, device: Device, residency: Residency, preserved_gb: float) -> None:
    lists = (child for child in model.children() if isinstance(child, nn.ModuleList))
    blocks = [block for blocks in lists for block in blocks]
    weights = Weights(type(model).__name__, *sizes_of(model, blocks))
    is_whole = residency.is_on_device(model)
    free_bytes = device.free_bytes() + (weights.total_bytes if is_whole else 0)
    budget = Budget(device.total_bytes, free_bytes, gb_bytes(preserved_gb), reserve_bytes=0)
    streamed = plan_stage(budget, Stage(weights.name, weights, 0)).streamed_blocks
    if streamed or not is_whole:
        residency.move_model_to_device_with_memory_preservation(
            model, preserved_bytes=budget.preserved_bytes, blocks=blocks, streamed=streamed
        )
