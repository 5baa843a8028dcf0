"""Weights that are stored in a smaller type than the one that computes, by diffusers' layerwise casting.

A layer's weight is cast when the layer computes, and stays on the device in the smaller type otherwise. The
type is fp8, or int8 with a scale for each row, or bf16 where a network computes in fp32.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
from diffusers.hooks import HookRegistry
from diffusers.hooks.layerwise_casting import DEFAULT_SKIP_MODULES_PATTERN, LayerwiseCastingHook
from diffusers.quantizers.gguf.utils import GGUFLinear
from torch import Tensor, nn

from diffusers_helper.cancel import CancelToken
from diffusers_helper.loading.keys import GGUFEmbedding
from diffusers_helper.memory.weights import row_scales

_HOOK = "layerwise_casting"  # the name by which diffusers finds the type that a network computes in
# The layers of many values. Those of convolutions are few, and convolutions have methods of their own.
# Derived classes are left out, since torch's own attention reads the weight of such a layer itself.
CASTABLE = (nn.Linear, nn.Embedding)
SCALE = "weight_scale"
_FOUND = "found_row_scales"  # the attribute of a weight that keeps its scales between jobs with other types
_TELL_SECONDS = 1.0
# The type that each value of the setting `weight_dtype` names.
WEIGHT_DTYPES = {
    "bf16": torch.bfloat16, "fp16": torch.float16,
    "fp8_e4m3fn": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2, "int8": torch.int8,
}  # fmt: skip
EIGHT_BIT = (torch.float8_e4m3fn, torch.float8_e5m2, torch.int8)


class KeptCasting(LayerwiseCastingHook):
    """Diffusers' hook, which here puts the stored weight back after use instead of casting it a second time.

    So the weight stays in the file's mapping or in the slot from which it is streamed. If the layer has
    scales, as scaled fp8 and int8 have, the weight is multiplied with them. Of an embedding in bf16, only the
    rows in use are cast.
    """

    def __init__(self, storage_dtype: torch.dtype, compute_dtype: torch.dtype) -> None:
        super().__init__(storage_dtype, compute_dtype, non_blocking=False)
        self._stored: Tensor | None = None

    def initialize_hook(self, module: nn.Module) -> nn.Module:
        """Tell the memory management the type that the weight has on the device, and its scales in int8."""
        weight = cast(Any, module.weight)
        weight.storage_dtype = self.storage_dtype
        if self.storage_dtype == torch.int8 != weight.dtype:
            weight.row_scales = _known_scales(module)
            add_scales(module, weight.row_scales.detach())
        return module

    def deinitalize_hook(self, module: nn.Module) -> nn.Module:
        """Let the weight have its own type on the device."""
        weight = cast(Any, module.weight)
        del weight.storage_dtype
        if hasattr(weight, "row_scales"):
            del weight.row_scales
            delattr(module, SCALE)
        return module

    def pre_forward(self, module: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        stored: Tensor = module.weight.data
        if self.storage_dtype == torch.bfloat16:
            if isinstance(module, nn.Embedding):
                self._stored = stored
                return args, kwargs
            # T5 casts the input of some layers to the type in which their weights are stored.
            args = tuple(one.to(self.compute_dtype) for one in args)
        self._stored, weight = stored, stored.to(self.compute_dtype)
        scale = getattr(module, SCALE, None)
        module.weight.data = weight if scale is None else weight.mul_(scale)
        return args, kwargs

    def post_forward(self, module: Any, output: Any) -> Any:
        module.weight.data, self._stored = self._stored, None
        return output.to(self.compute_dtype)


def _known_scales(layer: nn.Module) -> Tensor:
    """Return the scales by which a layer's weight is rounded to int8, which are found only once."""
    weight = cast(Any, layer.weight)
    if not hasattr(weight, _FOUND):
        setattr(weight, _FOUND, row_scales(weight.data))
    return getattr(weight, _FOUND)


def find_scales(
    network: nn.Module, storage: torch.dtype | None, begin: Callable[[], None], cancel: CancelToken,
    on_bytes: Callable[[int, int], None],
) -> None:  # fmt: skip
    """Find the scales for int8 that are not known yet, for which all weights that are cast are read once.

    Args:
        network: The network, which has to be in main memory.
        storage: The type of its weights on the device; None for that of the file.
        begin: A function that is called first if there is anything to do.
        cancel: The token that ends this between two layers. What was found until then stays known.
        on_bytes: A function that is called about once a second with the bytes that are read, and all bytes.

    Raises:
        GenerationCancelled: If the job was cancelled.
    """
    layers = [
        cast(Any, layer)
        for _, layer, wanted in layer_types(network, storage)
        if wanted == torch.int8 != cast(Any, layer.weight).dtype and not hasattr(layer.weight, _FOUND)
    ]
    if not layers:
        return
    begin()
    done, total, reported = 0, sum(layer.weight.nbytes for layer in layers), time.monotonic()
    for layer in layers:
        cancel.check()
        _known_scales(layer)
        done += layer.weight.nbytes
        if (now := time.monotonic()) - reported >= _TELL_SECONDS:
            reported = now
            on_bytes(done, total)


def add_scales(layer: nn.Module, scales: Tensor) -> None:
    """Let a layer multiply its weight with scales, which the memory management counts with the weight."""
    cast(Any, scales).storage_dtype = scales.dtype
    layer.register_buffer(SCALE, scales, persistent=False)


def cast_weights(
    network: nn.Module, compute: torch.dtype, storage: torch.dtype | None = None,
    *, keeps_narrow: bool = False,
) -> None:  # fmt: skip
    """Set the type in which a network's layers keep their weights on the device, and the one that computes.

    In 8 bit, embedders and norms keep their precision, by diffusers' list for the network.

    Args:
        network: The network, which has to be in main memory.
        storage: The type on the device; None for that of the file. Only 8 bit are cast layer by layer.
        keeps_narrow: Whether weights in bf16 are cast layer by layer, too, for a network that computes in
            fp32. On the device they then take half the memory.
    """
    for layer in network.modules():
        if isinstance(layer, GGUFLinear | GGUFEmbedding):
            layer.compute_dtype = compute
    narrow = (*EIGHT_BIT, torch.bfloat16) if keeps_narrow else EIGHT_BIT
    for _, layer, wanted in layer_types(network, storage):
        _set_hook(layer, wanted if wanted in narrow else None, compute)


def layer_types(
    network: nn.Module, storage: torch.dtype | None
) -> Iterator[tuple[str, nn.Module, torch.dtype]]:
    """Yield the layers whose weights can be cast: the name, the layer, and the type of its weight.

    Args:
        storage: The type that is asked for; None for that of the file.
    """
    patterns = [
        *DEFAULT_SKIP_MODULES_PATTERN, *(getattr(network, "_skip_layerwise_casting_patterns", None) or ())
    ]  # fmt: skip
    for name, layer in network.named_modules():
        if type(layer) in CASTABLE:
            is_precise = any(re.search(pattern, name) for pattern in patterns)
            is_kept = storage is None or (is_precise and storage in EIGHT_BIT)
            yield name, layer, cast(torch.dtype, layer.weight.dtype) if is_kept else cast(Any, storage)


def _set_hook(layer: nn.Module, storage: torch.dtype | None, compute: torch.dtype) -> None:
    if storage is None and not hasattr(layer, "_diffusers_hook"):
        return
    registry = HookRegistry.check_if_exists_or_initialize(layer)
    hook = cast(KeptCasting | None, registry.get_hook(_HOOK))
    if hook is not None and (hook.storage_dtype, hook.compute_dtype) == (storage, compute):
        return
    if hook is not None:
        registry.remove_hook(_HOOK, recurse=False)
    if storage is not None:
        registry.register_hook(KeptCasting(storage, compute), _HOOK)
