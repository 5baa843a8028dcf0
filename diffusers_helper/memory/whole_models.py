"""FramePack's functions for whole models, for scripts that move models without the plan of a job.

A job uses `store.Store` instead, which knows how much each stage needs. Here as there, what does not fit is
streamed block by block: nothing stays behind half moved, and a model works wherever its blocks are.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import nn

from diffusers_helper.memory.device import Device, open_device
from diffusers_helper.memory.residency import Residency
from diffusers_helper.memory.weights import sizes_of
from diffusers_helper.planning.budget import Budget, Stage, StagePlan, Weights, plan_stage
from diffusers_helper.units import gb_bytes

cpu = torch.device("cpu")


def __getattr__(name: str) -> torch.device:
    """Return `gpu`: the first GPU, or `cpu` where there is none. It is looked up when it is first used."""
    if name != "gpu":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return open_device().torch_device


class _Place:
    """One device, and the models that these functions have put there."""

    def __init__(self, device: Device) -> None:
        self.device, self.residency = device, Residency(device.torch_device)


@cache
def _places() -> dict[torch.device, _Place]:
    return {}


def _place(target_device: torch.device | str) -> _Place:
    device = open_device(torch.device(target_device))
    return _places().setdefault(device.torch_device, _Place(device))


def load_model_as_complete(model: nn.Module, target_device: torch.device | str, unload: bool = True) -> None:
    """Move a whole model onto a device.

    Args:
        model: The model.
        target_device: The device, such as "cuda".
        unload: Whether the models that these functions have loaded leave first.
    """
    if unload:
        unload_complete_models()
    _place(target_device).residency.load_model_as_complete(model)


def unload_complete_models(*models: nn.Module) -> None:
    """Move these models to main memory whole, and those that these functions have loaded.

    The allocator keeps the memory until `flush_rocm_allocator` gives it back.
    """
    for place in _places().values():
        place.residency.unload_complete_models()
    for model in models:
        nn.Module.to(model, "cpu")


def move_model_to_device_with_memory_preservation(
    model: nn.Module, target_device: torch.device | str, preserved_memory_gb: float = 0.0
) -> None:
    """Move a model onto a device and leave some of its free memory alone.

    Blocks for which there is no room stay in main memory and are copied in ahead of their turn.

    Args:
        model: The model. The blocks are the modules of its lists, such as `transformer_blocks`, which have to
            run in their order.
        target_device: The device, such as "cuda".
        preserved_memory_gb: The free memory in GB of 1024^3 bytes that is left.

    Raises:
        DoesNotFit: If the rest of the model does not fit either; then nothing was moved.
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
    """Stream as many blocks of a model that is on a device as it takes to have some memory free there.

    Before the VAE decodes, use `unload_complete_models` instead: whatever stays of the transformer keeps the
    memory in pieces.

    Args:
        model: A model that one of these functions has moved there; its blocks are as described above.
        target_device: The device that it is on.
        preserved_memory_gb: The memory in GB of 1024^3 bytes that is to be free.

    Raises:
        DoesNotFit: If the rest of the model does not fit either; then it stays as it was.
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


def _plan(place: _Place, model: nn.Module, free_bytes: int, preserved_gb: float) -> StagePlan:
    """Return the plan for a model within the free memory."""
    name = type(model).__name__
    budget = Budget(place.device.total_bytes, free_bytes, gb_bytes(preserved_gb), reserve_bytes=0)
    return plan_stage(budget, Stage(name, Weights(name, *sizes_of(model, _blocks(model))), 0))
