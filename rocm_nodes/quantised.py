"""Diffusion models in GGUF files for ComfyUI, whose weights stay in the file's blocks until they compute.

ComfyUI builds the model and computes with its own operations. Only the tensors are of another kind: they show
the shape of the weight, hold its blocks, and take these apart whenever an operation reads their values.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import gguf
import torch
from diffusers.quantizers.gguf.utils import GGUFParameter, dequantize_functions
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from diffusers_helper.errors import InputError
from diffusers_helper.loading.tensors import read_tensors
from diffusers_helper.weights.reading import read_contents
from rocm_nodes.host import comfy

_aten: Any = torch.ops.aten
# The metadata in which a converter notes the shape of a weight that it had to bring into another one.
_SHAPE_KEY = "comfy.gguf.orig_shape."
# The type in which weights are shown to ComfyUI, which chooses the type that computes as for such a file.
_DTYPE = torch.bfloat16


class BlockWeight(Tensor):
    """A weight in blocks of GGUF, which shows the shape of the weight that the blocks stand for.

    It can be copied and moved. Any other operation gets the plain weight. It cannot be written to. `patches`
    are what ComfyUI adds to the weight, such as LoRAs, as `calculate_weight` takes it.
    """

    blocks: Tensor
    quant_type: gguf.GGMLQuantizationType
    patches: tuple[Any, ...]

    @staticmethod
    def __new__(
        cls, blocks: Tensor, quant_type: Any, shape: Sequence[int], patches: tuple[Any, ...] = ()
    ) -> Any:
        weight = torch.Tensor._make_wrapper_subclass(
            cls, torch.Size(shape), dtype=_DTYPE, device=blocks.device
        )
        weight.blocks, weight.quant_type, weight.patches = blocks, quant_type, patches
        return weight

    def __init__(self, *_: Any, **__: Any) -> None:
        pass  # a tensor takes no arguments here

    def like(self, blocks: Tensor, patches: tuple[Any, ...] | None = None) -> BlockWeight:
        return BlockWeight(blocks, self.quant_type, self.shape, self.patches if patches is None else patches)

    def dequantised(self, dtype: torch.dtype, device: torch.device | None = None) -> Tensor:
        """Compute the weight in fp32 from the blocks and the patches, as the library `gguf` does."""
        size, num_bytes = gguf.GGML_QUANT_SIZES[self.quant_type]
        rows = self.blocks.to(device or self.blocks.device).reshape(-1, num_bytes)
        values = dequantize_functions[self.quant_type](rows, size, num_bytes, torch.float32)
        weight = values.reshape(self.shape)
        for patches, key in self.patches:
            weight = comfy("comfy.lora").calculate_weight(patches, weight, key)
        return weight.to(dtype)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = kwargs or {}
        weight = args[0]
        # In inference mode, as in ComfyUI, operations that consist of others arrive whole.
        if (result := func.decompose(*args, **options)) is not NotImplemented:
            return result
        if func in (_aten.detach.default, _aten.alias.default):
            return weight.like(weight.blocks)
        if func is _aten.clone.default:
            return weight.like(weight.blocks.clone())
        if func is _aten._to_copy.default:
            dtype, device = options.get("dtype"), options.get("device") or weight.device
            if dtype in (None, _DTYPE):
                return weight.like(weight.blocks.to(device))
            return weight.dequantised(dtype, device)
        if func is _aten.empty_like.default:
            dtype, device = options.get("dtype") or weight.dtype, options.get("device") or weight.device
            return torch.empty(weight.shape, dtype=dtype, device=device)
        if func is _aten.copy_.default and not isinstance(weight, cls):
            # The blocks are moved, since they are smaller.
            return weight.copy_(args[1].dequantised(weight.dtype, weight.device))
        if func._schema.is_mutable and isinstance(weight, cls):
            raise TypeError(f"{func} would write to a weight in blocks of GGUF")
        return func(*_dequantise_all(args), **_dequantise_all(options))


def _dequantise_all(values: Any) -> Any:
    return tree_map_only(BlockWeight, lambda weight: weight.dequantised(weight.dtype), values)


class _BlockLayer(nn.Module):
    """A layer of ComfyUI that keeps blocks as its weight where the file has them."""

    def _load_from_state_dict(
        self, state_dict: Mapping[str, Any], prefix: str, local_metadata: Any, *args: Any
    ) -> None:
        if isinstance(state_dict.get(f"{prefix}weight"), BlockWeight):
            local_metadata = {**local_metadata, "assign_to_params_buffers": True}
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *args)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        # ComfyUI adds up these bytes, and plans its memory with them.
        weight = destination.get(f"{prefix}weight")
        if isinstance(weight, BlockWeight):
            destination[f"{prefix}weight"] = weight.blocks


def load_gguf(file: Path) -> Any:
    """Load a model from a GGUF file as `comfy.sd.load_diffusion_model` does, or raise InputError."""
    loader = comfy("comfy.sd").load_diffusion_model_state_dict
    # Newer versions can move weights between disk and card by their bytes, which need not fit these tensors.
    options = {"disable_dynamic": True} if "disable_dynamic" in inspect.signature(loader).parameters else {}
    model = loader(_weights(file), model_options={"custom_operations": _operations()}, **options)
    if model is None:
        raise InputError(f"ComfyUI does not know the model in {file.name}.", "Choose a diffusion model.")
    model.__class__ = _patcher(type(model))
    return model


def _weights(file: Path) -> dict[str, Tensor]:
    try:
        tensors = read_tensors([file])
        shapes = _shapes(file)
    except ValueError as error:
        raise InputError(f"{error}.") from error
    return {
        name: BlockWeight(tensor.as_tensor(), cast(Any, tensor).quant_type, shapes[name])
        if isinstance(tensor, GGUFParameter)
        else tensor.reshape(shapes[name])
        for name, tensor in tensors.items()
    }


def _shapes(file: Path) -> dict[str, tuple[int, ...]]:
    """Read the shapes of the weights by name, for which a converter may have noted another one."""
    contents = read_contents(file)
    shapes = {name: tuple(tensor.shape) for name, tensor in contents.tensors.items()}
    if any(name.startswith(_SHAPE_KEY) for name in contents.metadata):
        for name, field in gguf.GGUFReader(file).fields.items():
            if name.startswith(_SHAPE_KEY):
                shapes[name.removeprefix(_SHAPE_KEY)] = tuple(map(int, field.contents()))
    return shapes


def _operations() -> type:
    base = comfy("comfy.ops").manual_cast
    layers: dict[str, Any] = {
        name: type(name, (_BlockLayer, layer_class), {})
        for name in dir(base)
        if isinstance(layer_class := getattr(base, name), type) and issubclass(layer_class, nn.Module)
    }
    return type("BlockOperations", (base,), layers)


def _patcher(base_class: Any) -> type:
    """Derive a `ModelPatcher` of ComfyUI that adds LoRAs to blocks when these compute."""

    class BlockPatcher(base_class):
        def patch_weight_to_device(self, key: str, device_to: Any = None, *args: Any, **kwargs: Any) -> Any:
            weight = comfy("comfy.utils").get_attr(self.model, key)
            has_block_patches = isinstance(weight, BlockWeight) and key in self.patches
            if not has_block_patches or kwargs.get("return_weight"):
                return super().patch_weight_to_device(key, device_to, *args, **kwargs)
            original = self.backup.setdefault(key, SimpleNamespace(weight=weight, inplace_update=False))
            patched = original.weight.like(
                weight.blocks.to(device_to or weight.device), ((self.patches[key], key),)
            )
            comfy("comfy.utils").set_attr_param(self.model, key, patched)
            return patched

    return BlockPatcher
