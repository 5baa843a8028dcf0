"""The networks of a model, made empty and filled with the weights of files without a second copy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import diffusers
import torch
import transformers
from accelerate import init_empty_weights
from diffusers import ModelMixin
from diffusers.quantizers.gguf.utils import (
    GGUFParameter,
    _quant_shape_from_byte_shape,
    _replace_with_gguf_linear,
    dequantize_gguf_tensor,
)
from gguf import GGML_QUANT_SIZES
from torch import Tensor, nn
from transformers import PretrainedConfig

from diffusers_helper.errors import InputError
from diffusers_helper.families.family import Family
from diffusers_helper.families.known import network_named, networks_of
from diffusers_helper.loading.casting import CASTABLE, EIGHT_BIT, add_scales, cast_weights
from diffusers_helper.loading.keys import (
    is_llama_cpp,
    own_names,
    replace_embeddings,
    rows_in_order,
)
from diffusers_helper.loading.quick_vae import quicken
from diffusers_helper.loading.tensors import read_tensors
from diffusers_helper.machine.sysfs import keeps_bf16
from diffusers_helper.models.registry import ModelInfo
from diffusers_helper.models.sizes import class_named
from diffusers_helper.strangers.limited_json import read_json
from diffusers_helper.weights.reading import read_contents, weight_files
from diffusers_helper.weights.recognition import names_problem
from diffusers_helper.weights.safetensors_file import origin_in

_WHOLE = (torch.float32, torch.float16, torch.bfloat16)
# Quantised weights say nothing about the type that computes.
_QUANTISED_COMPUTE = torch.bfloat16


@dataclass(frozen=True, slots=True)
class LoadedNetwork:
    """A network with its weights.

    Attributes:
        network: The network, whose weights are mapped from the files.
        dtype: The type that it computes in, unless the job or the device asks for another one.
        is_scaled: Whether its weights have scales or are blocks of GGUF, so that they keep their type.
        keeps_bf16: Whether a CPU computes in bf16 if that is the type; see `machine.sysfs.keeps_bf16`.
    """

    network: nn.Module
    dtype: torch.dtype
    is_scaled: bool
    keeps_bf16: bool


def config_of(part: str, place: Path, config: Mapping[str, Any] | None, expected: str = "") -> dict[str, Any]:
    """Return the configuration of a network, as `load_network` takes it.

    Raises:
        OSError: If the folder has no configuration.
        ValueError: If it is for another class.
    """
    found = dict(config if config is not None else read_json(place / "config.json"))
    kinds = [expected] if expected else [one.kind for one in networks_of(part)]
    known = network_named(part, class_named(found))
    if known is None or known.kind not in kinds:
        raise ValueError(f"its config is for {class_named(found)}; expected {' or '.join(kinds)}")
    return found


def load_scheduler(folder: Path, family: Family) -> Any:
    """Return the scheduler of a model of a family.

    Raises:
        OSError: If there is no configuration.
        ValueError: If it is for a scheduler that cannot be used.
    """
    config: dict[str, Any] = read_json(folder / "scheduler_config.json")
    named = class_named(config)
    if named not in family.schedulers:
        raise ValueError(f"its config is for {named}; expected {' or '.join(family.schedulers)}")
    if reason := family.refuses(config):
        raise ValueError(reason)
    return getattr(diffusers, named).from_config(config)


def empty_network(part: str, config: Mapping[str, Any]) -> nn.Module:
    """Return a network without values, which takes no memory."""
    known = network_named(part, class_named(config))
    assert known is not None  # as `config_of` says
    kind: Any = getattr(diffusers, known.kind, None) or getattr(transformers, known.kind)
    with init_empty_weights():
        if issubclass(kind, ModelMixin):
            plain = {name: value for name, value in config.items() if not name.startswith("_")}
            return cast(nn.Module, cast(Any, kind).from_config(plain))
        kept: type[PretrainedConfig] = kind.config_class
        network: nn.Module = kind(kept.from_dict(dict(config)))
    for name, source in _tied(network).items():  # one layer, which the device then has once
        network.set_submodule(name.rpartition(".")[0], network.get_submodule(source.rpartition(".")[0]))
    return network


def _tied(network: nn.Module) -> dict[str, str]:
    """Return the weights of a network that are others under a second name, by their names."""
    tied = getattr(network, "_tied_weights_keys", None)
    return dict(cast(Mapping[str, str], tied)) if isinstance(tied, dict) else {}


def load_network(
    part: str, place: Path, config: Mapping[str, Any] | None = None, expected: str = ""
) -> LoadedNetwork:
    """Return a network with the weights of its files, which are mapped into memory.

    Args:
        config: The configuration for a single file; None for a folder, which holds it.
        expected: The name of its class; "" for any that the part can have.

    Raises:
        OSError: If a file cannot be read.
        ValueError: If the files do not hold this network.
    """
    known = config_of(part, place, config, expected)
    network = empty_network(part, known)
    found, scales, is_permuted = _fitting(part, place, network, known)
    if is_permuted:
        found = rows_in_order(found, known)
    is_gguf = any(isinstance(tensor, GGUFParameter) for tensor in found.values())
    keeps = keeps_bf16(sum(one.nbytes for one in found.values()), is_quantised=_is_quantised(found))
    compute = _compute_dtype(place, found)
    kept = {name: wanted for name in found if (wanted := _kept_type(network, name, compute))}
    found |= {name: _kept(found[name], wanted, scales.pop(name, None)) for name, wanted in kept.items()}
    if is_gguf:
        _replace_with_gguf_linear(network, compute, found)
        replace_embeddings(network, found)
    layers = {name for name, layer in network.named_modules() if type(layer) in CASTABLE}
    for name, tensor in found.items():
        owner, _, leaf = name.rpartition(".")
        layer, scale = network.get_submodule(owner), scales.get(name)
        if isinstance(tensor, GGUFParameter) or (
            leaf == "weight" and owner in layers and tensor.dtype in EIGHT_BIT
        ):
            _assign(layer, leaf, tensor)
            if scale is not None:
                add_scales(layer, scale)
        else:
            _assign(layer, leaf, tensor if name in kept else _whole(tensor, compute, scale))
    cast_weights(network, compute)
    if part == "vae":
        quicken(network)
    return LoadedNetwork(network.eval().requires_grad_(False), compute, is_gguf or bool(scales), keeps)


def check_network(part: str, place: Path, config: Mapping[str, Any] | None = None) -> None:
    """Check that files hold a network: all of its tensors, in its shapes. No tensor is read.

    Raises:
        OSError: If a file cannot be read.
        ValueError: If they do not.
    """
    known = config_of(part, place, config)
    network = empty_network(part, known)
    _compute_dtype(place, _fitting(part, place, network, known)[0])


def _fitting(
    part: str, place: Path, network: nn.Module, config: Mapping[str, Any]
) -> tuple[dict[str, Tensor], dict[str, Tensor], bool]:
    """Return the tensors of the files by the network's names, the scales of its weights, and a sign.

    The sign says whether llama.cpp has written them, so that some rows are in another order.
    """
    files = weight_files(place)
    if not files:
        raise FileNotFoundError(f"{place} has no safetensors file")
    tied = _tied(network)
    expected = {name: tensor for name, tensor in network.state_dict().items() if name not in tied}
    width = config.get("num_attention_heads", 0) * config.get("attention_head_dim", 0)
    try:
        tensors = read_tensors(files)
        found, scales = own_names(tensors, expected, width if part == "transformer" else 0)
        for name in tied.keys() & found.keys():
            found.setdefault(tied[name], found[name])
            del found[name]
        if problem := names_problem(found, expected):
            raise ValueError(problem)
        shaped = {name: _shaped(name, tensor, expected[name].shape) for name, tensor in found.items()}
        for name, tensor in shaped.items():
            is_scaled = tensor.dtype == torch.int8 and name in scales
            if not (tensor.is_floating_point() or isinstance(tensor, GGUFParameter) or is_scaled):
                raise _foreign_type(tensor.dtype)
    except ValueError as error:
        text = str(error)
        named = text if text.startswith(tuple(file.name for file in files)) else f"{place.name} {text}"
        raise ValueError(named) from error
    return shaped, scales, is_llama_cpp(tensors)


def _shaped(name: str, tensor: Tensor, shape: torch.Size) -> Tensor:
    """Return a tensor in the shape that the network has, which GGUF flattens beyond four sides."""
    found = tuple(tensor.shape)
    if isinstance(tensor, GGUFParameter):
        block, size = GGML_QUANT_SIZES[cast(Any, tensor).quant_type]
        found = _quant_shape_from_byte_shape(found, size, block)
        if found == tuple(shape) and len(shape) == 2:
            return tensor
    elif found == tuple(shape):
        return tensor
    elif tensor.numel() == shape.numel() and len(shape) > 4:
        return tensor.reshape(shape)
    raise ValueError(
        f"contains {name} in the shape {'x'.join(map(str, found))}, where the model has "
        f"{'x'.join(map(str, shape))}; choose a file for this model"
    )


def _foreign_type(dtype: torch.dtype) -> ValueError:
    name = str(dtype).removeprefix("torch.")
    expected = "F32, F16, BF16, fp8, int8 with a scale for each row, or GGUF"
    return ValueError(f"stores {name}, which cannot be loaded; expected {expected}")


def _is_quantised(tensors: Mapping[str, Tensor]) -> bool:
    return any(one.dtype in EIGHT_BIT or isinstance(one, GGUFParameter) for one in tensors.values())


def _compute_dtype(place: Path, tensors: Mapping[str, Tensor]) -> torch.dtype:
    """Return the type of most values; that of their origin for quantised ones, or bf16."""
    counts: Counter[torch.dtype] = Counter()
    for tensor in tensors.values():
        counts[tensor.dtype] += tensor.numel()
    if _is_quantised(tensors):
        origin = origin_in(read_contents(weight_files(place)[0]).metadata)
        return getattr(torch, origin.compute_dtype) if origin else _QUANTISED_COMPUTE
    most = max(counts, key=lambda kind: (kind in _WHOLE, counts[kind]))
    if most not in _WHOLE:
        raise _foreign_type(most)
    return most


def _kept_type(network: nn.Module, name: str, compute: torch.dtype) -> torch.dtype | None:
    """Return the type that a tensor is always in, by the list of its class; None for any type.

    diffusers keeps what the list names in fp32, and transformers only beside fp16. Their layers take their
    input in the type of these weights, which can therefore not be in 8 bit.
    """
    listed = cast(Any, network)._keep_in_fp32_modules or ()
    if not any(part in listed for part in name.split(".")):
        return None
    return torch.float32 if isinstance(network, ModelMixin) or compute == torch.float16 else compute


def _kept(tensor: Tensor, wanted: torch.dtype, scale: Tensor | None) -> Tensor:
    """Return a tensor whole, and in fp32 on the device, too, if that is the type."""
    if isinstance(tensor, GGUFParameter):
        tensor = cast(Tensor, dequantize_gguf_tensor(tensor))
    whole = nn.Parameter(_whole(tensor, wanted, scale), requires_grad=False)
    if wanted == torch.float32:
        cast(Any, whole).storage_dtype = wanted
    return whole


def _whole(tensor: Tensor, compute: torch.dtype, scale: Tensor | None) -> Tensor:
    """Return a tensor in the type that computes, multiplied with its scales."""
    whole = tensor.to(compute)
    return whole if scale is None else (whole * scale.reshape(-1, *[1] * (whole.dim() - 1))).to(compute)


def _assign(owner: nn.Module, leaf: str, tensor: Tensor) -> None:
    if leaf in owner._buffers:
        owner._buffers[leaf] = tensor
    elif isinstance(tensor, nn.Parameter):
        owner._parameters[leaf] = tensor
    else:
        owner._parameters[leaf] = nn.Parameter(tensor, requires_grad=False)


def check_fit(info: ModelInfo, value: Callable[[str, str], Any]) -> None:
    """Check that the inputs and outputs of the parts have matching sizes.

    Args:
        value: Returns the value of a name in the configuration of a part; None if it is not there.

    Raises:
        InputError: If they do not match.
    """
    for part, key, fact, other in info.family.fits:
        found, wanted = value(part, key), value(*other) if isinstance(other, tuple) else other
        if None not in (found, wanted) and found != wanted:
            raise InputError(
                f"The parts of model {info.name} do not match: {fact % found}; expected {wanted}.",
                "Use parts that were made for each other.",
                setting="model",
            )
