"""FramePack's functions for whole models, for scripts that move models without the plan of a job.

A job uses `store.Store` instead, which knows how much memory each stage needs. These functions, too, stream
the blocks that do not fit, so a model works with any part of its blocks on the device.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import nn

from diffusers_helper.memory.device import Device, open_device
from diffusers_helper.memory.residency import Residency
from diffusers_helper.memory.weights import sizes_of
from diffusers_helper.models.sizes import Weights
from diffusers_helper.planning.budget import Budget, Stage, StagePlan, plan_stage
from diffusers_helper.units import gb_bytes

cpu = torch.device("cpu")


def __getattr__(name: str) -> torch.device:
    """Return `gpu`, which is the first GPU, or `cpu` without one. It is looked up at each use."""
    if name != "gpu":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return open_device().torch_device


class _Residence:
    """A device with the models that these functions have moved to it."""

    def __init__(self, device: Device) -> None:
        self.device, self.residency = device, Residency(device.torch_device)


@cache
def _places() -> dict[torch.device, _Residence]:
    return {}


def _place(target_device: torch.device | str) -> _Residence:
    device = open_device(torch.device(target_device))
    return _places().setdefault(device.torch_device, _Residence(device))


def load_model_as_complete(model: nn.Module, target_device: torch.device | str, unload: bool = True) -> None:
    """Move a whole model to a device.

    Args:
        target_device: The device, such as "cuda".
        unload: Whether to unload the models that these functions have loaded first.
    """
    if unload:
        unload_complete_models()
    _place(target_device).residency.load_model_as_complete(model)


def unload_complete_models(*models: nn.Module) -> None:
    """Move these models, and all models that these functions have loaded, to main memory as a whole.

    The allocator keeps the memory until `flush_rocm_allocator` returns it to the driver.
    """
    for place in _places().values():
        place.residency.unload_complete_models()
    for model in models:
        nn.Module.to(model, "cpu")


def move_model_to_device_with_memory_preservation(
    model: nn.Module, target_device: torch.device | str, preserved_memory_gb: float = 0.0
) -> None:
    """Move a model to a device, but leave some of the device's free memory unused.

    Blocks that do not fit stay in main memory and are copied to the device ahead of their turn.

    Args:
        model: The model. Its blocks are the modules in its lists, such as `transformer_blocks`, which have to
            run in their order.
        target_device: The device, such as "cuda".
        preserved_memory_gb: The memory to leave free, in GB of 1024^3 bytes, as far as the model can be
            streamed.

    Raises:
        DoesNotFit: If the model does not fit even if all blocks are streamed. Nothing was moved then.
    """
    place, blocks = _place(target_device), _blocks(model)
    place.residency.unload_complete_models(model)
    plan = _plan(place, model, place.device.free_bytes(), preserved_memory_gb)
    place.residency.move_model_to_device_with_memory_preservation(
        model, preserved_bytes=gb_bytes(preserved_memory_gb), blocks=blocks, streamed=plan.streamed_blocks
    )


def offload_model_from_device_for_memory_preservation(
    model: nn.Module, target_device: torch.device | str, preserved_memory_gb: float = 0.0
) -> None:
    """Free some memory of a device by streaming blocks of a model that is on it.

    Before the VAE decodes, use `unload_complete_models` instead, since any part of the transformer that stays
    keeps the memory fragmented.

    Args:
        model: A model that one of these functions has moved to the device. Its blocks are those described in
            `move_model_to_device_with_memory_preservation`.
        preserved_memory_gb: The memory to leave free, in GB of 1024^3 bytes, as far as the model can be
            streamed.

    Raises:
        DoesNotFit: If the model does not fit even if all blocks are streamed. It stays as it was then.
    """
    place, blocks = _place(target_device), _blocks(model)
    if not place.residency.is_on_device(model):
        move_model_to_device_with_memory_preservation(model, target_device, preserved_memory_gb)
        return
    free = place.device.free_bytes() + sizes_of(model, blocks)[0]
    if streamed := _plan(place, model, free, preserved_memory_gb).streamed_blocks:
        place.residency.offload_model_from_device_for_memory_preservation(
            model, preserved_bytes=gb_bytes(preserved_memory_gb), blocks=blocks, streamed=streamed
        )


def _blocks(model: nn.Module) -> list[nn.Module]:
    lists = (child for child in model.children() if isinstance(child, nn.ModuleList))
    return [block for blocks in lists for block in blocks]


def _plan(place: _Residence, model: nn.Module, free_bytes: int, preserved_gb: float) -> StagePlan:
    name = type(model).__name__
    budget = Budget(place.device.total_bytes, free_bytes, gb_bytes(preserved_gb), reserve_bytes=0)
    return plan_stage(budget, Stage(name, Weights(name, *sizes_of(model, _blocks(model))), 0))
