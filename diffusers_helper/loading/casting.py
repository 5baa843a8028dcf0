"""Weights that are stored in a smaller type than the one that computes, by diffusers' layerwise casting.

A layer's weight is cast when the layer computes, and stays on the device in the smaller type otherwise. The
type is fp8, or int8 with a scale for each row, or bf16 where a network computes in fp32.
"""

import re
import time
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, cast

import torch
from diffusers.hooks import HookRegistry
from diffusers.hooks.layerwise_casting import DEFAULT_SKIP_MODULES_PATTERN, LayerwiseCastingHook
from diffusers.quantizers.gguf.utils import GGUFLinear
from torch import Tensor, nn

from diffusers_helper.attention.fused import ROTATION, SCALE
from diffusers_helper.cancel import CancelToken
from diffusers_helper.loading.keys import GGUFEmbedding
from diffusers_helper.memory.weights import row_scales

_HOOK = "layerwise_casting"  # the name by which diffusers finds the type that a network computes in
# The layers with many values. Convolutions have few, and methods of their own. Derived classes are left out,
# since torch's attention reads the weight of such a layer itself.
CASTABLE = (nn.Linear, nn.Embedding)
_SCALES_ATTRIBUTE = "found_row_scales"  # keeps a weight's scales between jobs with other types
_REPORT_SECONDS = 1.0
# The type that each value of the setting `weight_dtype` names.
WEIGHT_DTYPES = {
    "bf16": torch.bfloat16, "fp16": torch.float16,
    "fp8_e4m3fn": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2, "int8": torch.int8,
}  # fmt: skip
EIGHT_BIT = (torch.float8_e4m3fn, torch.float8_e5m2, torch.int8)


class RestoringCasting(LayerwiseCastingHook):
    """diffusers' hook, which here puts the stored weight back after use instead of casting it a second time.

    The weight therefore stays in the file's mapping or in the slot from which it is streamed. Weights with
    scales, in fp8 or int8, are multiplied with them. Of an embedding in bf16, only the rows in use are cast.
    """

    def __init__(self, storage_dtype: torch.dtype, compute_dtype: torch.dtype) -> None:
        super().__init__(storage_dtype, compute_dtype, non_blocking=False)
        self._stored_weight: Tensor | None = None

    def initialize_hook(self, module: nn.Module) -> nn.Module:
        """Tell the memory management the type that the weight has on the device, and its scales in int8."""
        weight = cast(Any, module.weight)
        weight.storage_dtype = self.storage_dtype
        if self.storage_dtype == torch.int8 != weight.dtype:
            weight.row_scales = _cached_row_scales(module)
            add_scales(module, weight.row_scales.detach())
        return module

    def deinitalize_hook(self, module: nn.Module) -> nn.Module:
        weight = cast(Any, module.weight)
        del weight.storage_dtype
        if hasattr(weight, "row_scales"):
            del weight.row_scales
            delattr(module, SCALE)
        return module

    def pre_forward(self, module: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        stored_weight: Tensor = module.weight.data
        if self.storage_dtype == torch.bfloat16:
            if isinstance(module, nn.Embedding):
                self._stored_weight = stored_weight
                return args, kwargs
            # T5 casts the input of some layers to the type in which their weights are stored.
            args = tuple(arg.to(self.compute_dtype) for arg in args)
        self._stored_weight = stored_weight
        weight = unrotated(stored_weight.to(self.compute_dtype), getattr(module, ROTATION, 0))
        scale = getattr(module, SCALE, None)
        module.weight.data = weight if scale is None else weight.mul_(scale)
        return args, kwargs

    def post_forward(self, module: Any, output: Any) -> Any:
        module.weight.data = self._stored_weight
        self._stored_weight = None
        return output.to(self.compute_dtype)


def _cached_row_scales(layer: nn.Module) -> Tensor:
    """Find the scales by which a layer's weight is rounded to int8, and keep them with the weight."""
    weight = cast(Any, layer.weight)
    if not hasattr(weight, _SCALES_ATTRIBUTE):
        setattr(weight, _SCALES_ATTRIBUTE, row_scales(weight.data))
    return getattr(weight, _SCALES_ATTRIBUTE)


def find_scales(
    network: nn.Module, storage_dtype: torch.dtype | None, on_start: Callable[[], None], cancel: CancelToken,
    on_bytes: Callable[[int, int], None],
) -> None:  # fmt: skip
    """Find the scales for int8 that are not known yet, for which the weights are read once."""
    layers = [
        cast(Any, layer)
        for _, layer, dtype in layer_types(network, storage_dtype)
        if dtype == torch.int8 != cast(Any, layer.weight).dtype
        and not hasattr(layer.weight, _SCALES_ATTRIBUTE)
    ]
    if not layers:
        return
    on_start()
    read_bytes = 0
    total_bytes = sum(layer.weight.nbytes for layer in layers)
    report_time = time.monotonic()
    for layer in layers:
        cancel.check()
        _cached_row_scales(layer)
        read_bytes += layer.weight.nbytes
        if (now := time.monotonic()) - report_time >= _REPORT_SECONDS:
            report_time = now
            on_bytes(read_bytes, total_bytes)


def add_scales(layer: nn.Module, scales: Tensor) -> None:
    """Let a layer multiply its weight with scales, which the memory management counts with the weight."""
    cast(Any, scales).storage_dtype = scales.dtype
    layer.register_buffer(SCALE, scales, persistent=False)
    setattr(layer, ROTATION, rotation_of(scales))


def rotation_of(scales: Tensor) -> int:
    """Get the size of the groups in which the weight of these scales is rotated; 0 if it is not."""
    return getattr(scales, "rotation", 0)


def unrotated(weight: Tensor, size: int) -> Tensor:
    """Undo the rotation of the values of each row in groups of a size; 0 for none.

    Its matrix is the one of comfy-kitchen, which is its own inverse.
    """
    if not size:
        return weight
    groups = weight.reshape(weight.shape[0], -1, size)
    return (groups @ _hadamard(size).to(weight)).reshape(weight.shape)


@lru_cache(maxsize=4)
def _hadamard(size: int) -> Tensor:
    base = 0.5 - torch.eye(4).flip(1)
    return base if size == 4 else torch.kron(_hadamard(size // 4), base)


def cast_weights(
    network: nn.Module, compute_dtype: torch.dtype, storage_dtype: torch.dtype | None = None,
    *, casts_bf16: bool = False,
) -> None:  # fmt: skip
    """Set the type in which a network's layers keep their weights on the device, and the one that computes.

    In 8 bit, embedders and norms keep their precision, by diffusers' list. With `casts_bf16`, weights in bf16
    are cast layer by layer, too, in a network that computes in fp32.
    """
    for layer in network.modules():
        if isinstance(layer, GGUFLinear | GGUFEmbedding):
            layer.compute_dtype = compute_dtype
    cast_dtypes = (*EIGHT_BIT, torch.bfloat16) if casts_bf16 else EIGHT_BIT
    for _, layer, dtype in layer_types(network, storage_dtype):
        _set_hook(layer, dtype if dtype in cast_dtypes else None, compute_dtype)


def layer_types(
    network: nn.Module, storage_dtype: torch.dtype | None
) -> Iterator[tuple[str, nn.Module, torch.dtype]]:
    patterns = [
        *DEFAULT_SKIP_MODULES_PATTERN, *(getattr(network, "_skip_layerwise_casting_patterns", None) or ())
    ]  # fmt: skip
    for name, layer in network.named_modules():
        if type(layer) in CASTABLE:
            is_precise = any(re.search(pattern, name) for pattern in patterns)
            keeps_dtype = storage_dtype is None or (is_precise and storage_dtype in EIGHT_BIT)
            yield name, layer, cast(torch.dtype, layer.weight.dtype if keeps_dtype else storage_dtype)


def _set_hook(layer: nn.Module, storage_dtype: torch.dtype | None, compute_dtype: torch.dtype) -> None:
    if storage_dtype is None and not hasattr(layer, "_diffusers_hook"):
        return
    registry = HookRegistry.check_if_exists_or_initialize(layer)
    hook = cast(RestoringCasting | None, registry.get_hook(_HOOK))
    if hook is not None and (hook.storage_dtype, hook.compute_dtype) == (storage_dtype, compute_dtype):
        return
    if hook is not None:
        registry.remove_hook(_HOOK, recurse=False)
    if storage_dtype is not None:
        registry.register_hook(RestoringCasting(storage_dtype, compute_dtype), _HOOK)
