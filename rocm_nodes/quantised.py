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
_SHAPE = "comfy.gguf.orig_shape."
# The type in which weights are shown to ComfyUI, which chooses the type that computes as for such a file.
_SHOWN = torch.bfloat16


class BlockWeight(Tensor):
    """A weight in blocks of GGUF, which shows the shape of the weight that the blocks stand for.

    It can be copied and moved. Any other operation gets the plain weight. It cannot be written to. `patches`
    are what ComfyUI adds to the weight, such as LoRAs, as `calculate_weight` takes it.
    """

    blocks: Tensor
    kind: gguf.GGMLQuantizationType
    patches: tuple[Any, ...]

    @staticmethod
    def __new__(cls, blocks: Tensor, kind: Any, shape: Sequence[int], patches: tuple[Any, ...] = ()) -> Any:
        found = torch.Tensor._make_wrapper_subclass(
            cls, torch.Size(shape), dtype=_SHOWN, device=blocks.device
        )
        found.blocks, found.kind, found.patches = blocks, kind, patches
        return found

    def __init__(self, *_: Any, **__: Any) -> None:
        pass  # a tensor takes no arguments here

    def like(self, blocks: Tensor, patches: tuple[Any, ...] | None = None) -> BlockWeight:
        """Return the same weight with its blocks at another place, or with other patches."""
        return BlockWeight(blocks, self.kind, self.shape, self.patches if patches is None else patches)

    def plain(self, dtype: torch.dtype, device: torch.device | None = None) -> Tensor:
        """Return the weight, computed in fp32 from the blocks and the patches, as the library `gguf` does."""
        size, num_bytes = gguf.GGML_QUANT_SIZES[self.kind]
        rows = self.blocks.to(device or self.blocks.device).reshape(-1, num_bytes)
        weight = dequantize_functions[self.kind](rows, size, num_bytes, torch.float32).reshape(self.shape)
        for patches, key in self.patches:
            weight = comfy("comfy.lora").calculate_weight(patches, weight, key)
        return weight.to(dtype)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named, first = kwargs or {}, args[0]
        # In inference mode, as in ComfyUI, operations that consist of others arrive whole.
        if (found := func.decompose(*args, **named)) is not NotImplemented:
            return found
        if func in (_aten.detach.default, _aten.alias.default):
            return first.like(first.blocks)
        if func is _aten.clone.default:
            return first.like(first.blocks.clone())
        if func is _aten._to_copy.default:
            dtype, device = named.get("dtype"), named.get("device") or first.device
            if dtype in (None, _SHOWN):
                return first.like(first.blocks.to(device))
            return first.plain(dtype, device)
        if func is _aten.empty_like.default:
            dtype, device = named.get("dtype") or first.dtype, named.get("device") or first.device
            return torch.empty(first.shape, dtype=dtype, device=device)
        if func is _aten.copy_.default and not isinstance(first, cls):
            # The blocks are moved, since they are smaller.
            return first.copy_(args[1].plain(first.dtype, first.device))
        if func._schema.is_mutable and isinstance(first, cls):
            raise TypeError(f"{func} would write to a weight in blocks of GGUF")
        return func(*_all_plain(args), **_all_plain(named))


def _all_plain(values: Any) -> Any:
    return tree_map_only(BlockWeight, lambda weight: weight.plain(weight.dtype), values)


class _Keeping(nn.Module):
    """A layer of ComfyUI that keeps blocks as its weight where the file has them."""

    def _load_from_state_dict(
        self, state_dict: Mapping[str, Any], prefix: str, local_metadata: Any, *rest: Any
    ) -> None:
        if isinstance(state_dict.get(f"{prefix}weight"), BlockWeight):
            local_metadata = {**local_metadata, "assign_to_params_buffers": True}
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *rest)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        # ComfyUI adds up these bytes, and plans its memory with them.
        weight = destination.get(f"{prefix}weight")
        if isinstance(weight, BlockWeight):
            destination[f"{prefix}weight"] = weight.blocks


def load_gguf(file: Path) -> Any:
    """Return a model from a GGUF file, as `comfy.sd.load_diffusion_model` returns one from other files.

    If its blocks cannot be taken apart, or ComfyUI does not know the model, InputError is raised.
    """
    loader = comfy("comfy.sd").load_diffusion_model_state_dict
    # Newer versions can move weights between disk and card by their bytes, which need not fit these tensors.
    fixed = {"disable_dynamic": True} if "disable_dynamic" in inspect.signature(loader).parameters else {}
    model = loader(_weights(file), model_options={"custom_operations": _operations()}, **fixed)
    if model is None:
        raise InputError(f"ComfyUI does not know the model in {file.name}.", "Choose a diffusion model.")
    model.__class__ = _patcher(type(model))
    return model


def _weights(file: Path) -> dict[str, Tensor]:
    try:
        tensors, shapes = read_tensors([file]), _shapes(file)
    except ValueError as error:
        raise InputError(f"{error}.") from error
    return {
        name: BlockWeight(tensor.as_tensor(), cast(Any, tensor).quant_type, shapes[name])
        if isinstance(tensor, GGUFParameter)
        else tensor.reshape(shapes[name])
        for name, tensor in tensors.items()
    }


def _shapes(file: Path) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the weights by name, for which a converter may have noted another one."""
    contents = read_contents(file)
    found = {name: tuple(entry.shape) for name, entry in contents.tensors.items()}
    if any(name.startswith(_SHAPE) for name in contents.metadata):
        for name, field in gguf.GGUFReader(file).fields.items():
            if name.startswith(_SHAPE):
                found[name.removeprefix(_SHAPE)] = tuple(map(int, field.contents()))
    return found


def _operations() -> type:
    """Return ComfyUI's operations that cast weights as they compute, with layers that keep blocks."""
    plain = comfy("comfy.ops").manual_cast
    layers: dict[str, Any] = {
        name: type(name, (_Keeping, kind), {})
        for name in dir(plain)
        if isinstance(kind := getattr(plain, name), type) and issubclass(kind, nn.Module)
    }
    return type("BlockOperations", (plain,), layers)


def _patcher(kind: Any) -> type:
    """Return a kind of ComfyUI's `ModelPatcher` that adds LoRAs to blocks when these compute."""

    class BlockPatcher(kind):
        def patch_weight_to_device(self, key: str, device_to: Any = None, *rest: Any, **named: Any) -> Any:
            weight = comfy("comfy.utils").get_attr(self.model, key)
            is_ours = isinstance(weight, BlockWeight) and key in self.patches
            if not is_ours or named.get("return_weight"):
                return super().patch_weight_to_device(key, device_to, *rest, **named)
            original = self.backup.setdefault(key, SimpleNamespace(weight=weight, inplace_update=False))
            patched = original.weight.like(
                weight.blocks.to(device_to or weight.device), ((self.patches[key], key),)
            )
            comfy("comfy.utils").set_attr_param(self.model, key, patched)
            return patched

    return BlockPatcher
