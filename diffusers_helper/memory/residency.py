"""The networks on the device, and the functions by which FramePack's scripts move models to and from it.

A job uses `store.Store`. The functions, too, stream the blocks that do not fit. None returns memory to the
driver.
"""

import logging
from collections.abc import Sequence
from contextlib import ExitStack

import torch
from torch import nn

from diffusers_helper.memory.device import open_device
from diffusers_helper.memory.staging import Staging
from diffusers_helper.memory.status import report
from diffusers_helper.memory.streaming import Streamer
from diffusers_helper.memory.weights import sizes_of, weights_of
from diffusers_helper.models.sizes import Weights
from diffusers_helper.planning.budget import RING_BLOCKS, Budget, Stage, plan_stage
from diffusers_helper.units import GB, gb_bytes

_log = logging.getLogger(__name__)


class Resident:
    """A network on the device until it is closed, except for the blocks that are streamed."""

    def __init__(
        self,
        module: nn.Module,
        staging: Staging,
        *,
        preserved_bytes: int = 0,
        blocks: Sequence[nn.Module] = (),
        streamed: Sequence[int] = (),
        num_slots: int = RING_BLOCKS,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Move the network. If this fails, all of it leaves the device.

        `blocks` are in the order in which they run; the indices `streamed` ascend.
        """
        self.streamed = tuple(streamed)
        self._name = type(module).__name__
        self._weights = weights_of(module, dtype)
        self._streamer: Streamer | None = None
        by_tensor = {id(weight.tensor): weight for weight in self._weights}
        streamed_blocks = [
            (block, [by_tensor[id(tensor)] for tensor in (*block.parameters(), *block.buffers())])
            for block in (blocks[index] for index in self.streamed)
        ]
        streamed_ids = {id(weight) for _, weights in streamed_blocks for weight in weights}
        self.num_bytes = sum(weight.num_bytes for weight in self._weights if id(weight) not in streamed_ids)
        with ExitStack() as undo:
            undo.callback(self.close)
            for weight in self._weights:
                if id(weight) not in streamed_ids:
                    weight.to_device(staging)
            if streamed_blocks:
                self._streamer = Streamer(module, streamed_blocks, staging.device, num_slots)
            undo.pop_all()
        if not streamed_blocks:
            report(_log, "Loaded %s to %s as complete.", self._name, staging.device)
        else:
            report(
                _log, "Moving %s to %s with preserved memory: %.2f GB (%d of %d blocks are streamed)",
                self._name, staging.device, preserved_bytes / GB, len(streamed_blocks), len(blocks),
            )  # fmt: skip

    @property
    def bytes_streamed(self) -> int:
        return self._streamer.bytes_copied if self._streamer else 0

    def close(self) -> None:
        if self._streamer is not None:
            self._streamer.close()
        for weight in self._weights:
            weight.to_host()
        report(_log, "Unloaded %s as complete.", self._name)


cpu = torch.device("cpu")


def __getattr__(name: str) -> torch.device:
    """Look up `gpu` at each use, which is the first GPU, or `cpu` without one."""
    if name != "gpu":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return open_device().torch_device


_residents: dict[nn.Module, Resident] = {}


def load_model_as_complete(model: nn.Module, target_device: torch.device | str, unload: bool = True) -> None:
    """Move a whole model to a device, after those that these functions have loaded if `unload` is set."""
    if unload:
        unload_complete_models()
    _unload(model)
    _residents[model] = Resident(model, Staging(open_device(torch.device(target_device)).torch_device))


def unload_complete_models(*models: nn.Module) -> None:
    """Move these models, and all models that these functions have loaded, to main memory as a whole.

    The allocator keeps the memory until `flush_rocm_allocator` returns it to the driver.
    """
    for model in list(_residents):
        _unload(model)
    for model in models:
        nn.Module.to(model, "cpu")


def move_model_to_device_with_memory_preservation(
    model: nn.Module, target_device: torch.device | str, preserved_memory_gb: float = 0.0
) -> None:
    """Move a model to a device, but leave some of the device's free memory unused, or raise DoesNotFit.

    Blocks that do not fit stay in main memory and are copied to the device ahead of their turn. They are the
    modules in its lists, such as `transformer_blocks`, which have to run in their order.
    """
    _unload(model)
    device = open_device(torch.device(target_device))
    lists = (child for child in model.children() if isinstance(child, nn.ModuleList))
    blocks = [block for blocks in lists for block in blocks]
    weights = Weights(type(model).__name__, *sizes_of(model, blocks))
    budget = Budget(device.total_bytes, device.free_bytes(), gb_bytes(preserved_memory_gb), reserve_bytes=0)
    streamed = plan_stage(budget, Stage(weights.name, weights, 0)).streamed_blocks
    _residents[model] = Resident(
        model, Staging(device.torch_device), preserved_bytes=budget.preserved_bytes, blocks=blocks,
        streamed=streamed,
    )  # fmt: skip


def offload_model_from_device_for_memory_preservation(
    model: nn.Module, target_device: torch.device | str, preserved_memory_gb: float = 0.0
) -> None:
    """Free some memory of a device by streaming blocks of a model that is on it, or raise DoesNotFit.

    Before the VAE decodes, use `unload_complete_models` instead, since blocks of the transformer that stay
    keep the memory fragmented.
    """
    if model in _residents:
        device = open_device(torch.device(target_device))
        if device.free_bytes() >= gb_bytes(preserved_memory_gb):
            return
        values = type(model).__name__, device.torch_device, preserved_memory_gb
        report(_log, "Offloading %s from %s to preserve memory: %.2f GB", *values)
    move_model_to_device_with_memory_preservation(model, target_device, preserved_memory_gb)


def _unload(model: nn.Module) -> None:
    if resident := _residents.pop(model, None):
        resident.close()
