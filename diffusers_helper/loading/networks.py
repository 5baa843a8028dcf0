"""The networks of a model, made empty and filled with the weights of files without a second copy."""

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
from diffusers_helper.families.registry import network_named, networks_of
from diffusers_helper.loading.casting import (
    CASTABLE,
    EIGHT_BIT,
    add_scales,
    cast_weights,
    rotation_of,
    unrotated,
)
from diffusers_helper.loading.keys import is_llama_cpp, library_names, replace_embeddings, rows_in_order
from diffusers_helper.loading.quick_vae import speed_up
from diffusers_helper.loading.tensors import read_tensors
from diffusers_helper.machine.sysfs import keeps_bf16
from diffusers_helper.models.registry import ModelInfo
from diffusers_helper.models.sizes import TRANSFORMERS, class_named, compute_type
from diffusers_helper.untrusted.limited_json import read_json
from diffusers_helper.weights.reading import read_contents, weight_files
from diffusers_helper.weights.recognition import names_problem

_FLOAT_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True, slots=True)
class LoadedNetwork:
    """A network with its weights mapped from the files; a scaled one keeps their type."""

    network: nn.Module
    dtype: torch.dtype
    is_scaled: bool
    keeps_bf16: bool


def config_of(
    component: str, path: Path, config: Mapping[str, Any] | None, expected: str = ""
) -> dict[str, Any]:
    network_config = dict(config if config is not None else read_json(path / "config.json"))
    class_names = [expected] if expected else [network.class_name for network in networks_of(component)]
    family_network = network_named(component, class_named(network_config))
    if family_network is None or family_network.class_name not in class_names:
        raise ValueError(
            f"its config is for {class_named(network_config)}; expected {' or '.join(class_names)}"
        )
    return network_config


def load_scheduler(folder: Path, family: Family) -> Any:
    config: dict[str, Any] = read_json(folder / "scheduler_config.json")
    class_name = class_named(config)
    if class_name not in family.schedulers:
        raise ValueError(f"its config is for {class_name}; expected {' or '.join(family.schedulers)}")
    if reason := family.scheduler_fault(config):
        raise ValueError(reason)
    return getattr(diffusers, class_name).from_config(config)


def empty_network(component: str, config: Mapping[str, Any]) -> nn.Module:
    family_network = network_named(component, class_named(config))
    assert family_network is not None  # as `config_of` says
    class_name = family_network.class_name
    network_class: Any = getattr(diffusers, class_name, None) or getattr(transformers, class_name)
    with init_empty_weights():
        if issubclass(network_class, ModelMixin):
            own_config = {name: value for name, value in config.items() if not name.startswith("_")}
            return cast(nn.Module, cast(Any, network_class).from_config(own_config))
        config_class: type[PretrainedConfig] = network_class.config_class
        network: nn.Module = network_class(config_class.from_dict(dict(config)))
    for name, source in _tied(network).items():  # one layer, which the device then has once
        network.set_submodule(name.rpartition(".")[0], network.get_submodule(source.rpartition(".")[0]))
    return network


def _tied(network: nn.Module) -> dict[str, str]:
    tied = getattr(network, "_tied_weights_keys", None)
    return dict(cast(Mapping[str, str], tied)) if isinstance(tied, dict) else {}


def load_network(
    component: str, path: Path, config: Mapping[str, Any] | None = None, expected: str = ""
) -> LoadedNetwork:
    """Load a network with the weights of its files, mapped into memory, or raise ValueError.

    `config` is None for a folder, which holds it; `expected` is a class, "" for any that the component can
    have.
    """
    network_config = config_of(component, path, config, expected)
    network = empty_network(component, network_config)
    tensors, scales, is_permuted = _matching_tensors(component, path, network, network_config)
    if is_permuted:
        tensors = rows_in_order(tensors, network_config)
    is_gguf = any(isinstance(tensor, GGUFParameter) for tensor in tensors.values())
    num_bytes = sum(tensor.nbytes for tensor in tensors.values())
    is_bf16_kept = keeps_bf16(num_bytes, is_quantised=_is_quantised(tensors))
    compute_dtype = _compute_dtype(path, tensors)
    fixed_dtypes = {name: dtype for name in tensors if (dtype := _fixed_dtype(network, name, compute_dtype))}
    tensors |= {
        name: _in_fixed_dtype(tensors[name], dtype, scales.pop(name, None))
        for name, dtype in fixed_dtypes.items()
    }
    if is_gguf:
        _replace_with_gguf_linear(network, compute_dtype, tensors)
        replace_embeddings(network, tensors)
    layers = {name for name, layer in network.named_modules() if type(layer) in CASTABLE}
    for name, tensor in tensors.items():
        owner, _, leaf = name.rpartition(".")
        layer = network.get_submodule(owner)
        scale = scales.get(name)
        is_eight_bit = leaf == "weight" and owner in layers and tensor.dtype in EIGHT_BIT
        if isinstance(tensor, GGUFParameter) or is_eight_bit:
            if scale is not None:
                add_scales(layer, scale)
        elif name not in fixed_dtypes:
            tensor = _dequantised(tensor, compute_dtype, scale)
        if leaf in layer._buffers:
            layer._buffers[leaf] = tensor
        else:
            if not isinstance(tensor, nn.Parameter):
                tensor = nn.Parameter(tensor, requires_grad=False)
            layer._parameters[leaf] = tensor
    cast_weights(network, compute_dtype)
    if component == "vae":
        speed_up(network)
    network.eval().requires_grad_(False)
    return LoadedNetwork(network, compute_dtype, is_gguf or bool(scales), is_bf16_kept)


def check_network(component: str, path: Path, config: Mapping[str, Any] | None = None) -> None:
    network_config = config_of(component, path, config)
    network = empty_network(component, network_config)
    _compute_dtype(path, _matching_tensors(component, path, network, network_config)[0])


def _matching_tensors(
    component: str, path: Path, network: nn.Module, config: Mapping[str, Any]
) -> tuple[dict[str, Tensor], dict[str, Tensor], bool]:
    """Read the tensors by the network's names, their scales, and whether llama.cpp ordered the rows."""
    files = weight_files(path)
    if not files:
        raise FileNotFoundError(f"{path} has no safetensors file")
    tied = _tied(network)
    expected = {name: tensor for name, tensor in network.state_dict().items() if name not in tied}
    width = config.get("num_attention_heads", 0) * config.get("attention_head_dim", 0)
    try:
        tensors = read_tensors(files)
        converted, scales = library_names(tensors, expected, width if component in TRANSFORMERS else 0)
        for name in tied.keys() & converted.keys():
            converted.setdefault(tied[name], converted[name])
            del converted[name]
        if problem := names_problem(converted, expected):
            raise ValueError(problem)
        reshaped = {name: _in_shape(name, tensor, expected[name].shape) for name, tensor in converted.items()}
        for name, tensor in reshaped.items():
            is_scaled = tensor.dtype == torch.int8 and name in scales
            if not (tensor.is_floating_point() or isinstance(tensor, GGUFParameter) or is_scaled):
                raise _unsupported_dtype(tensor.dtype)
    except ValueError as error:
        text = str(error)
        problem = text if text.startswith(tuple(file.name for file in files)) else f"{path.name} {text}"
        raise ValueError(problem) from error
    return reshaped, scales, is_llama_cpp(tensors)


def _in_shape(name: str, tensor: Tensor, shape: torch.Size) -> Tensor:
    """Give a tensor the shape that the network has, which GGUF flattens beyond four dimensions."""
    actual = tuple(tensor.shape)
    if isinstance(tensor, GGUFParameter):
        block, size = GGML_QUANT_SIZES[cast(Any, tensor).quant_type]
        actual = _quant_shape_from_byte_shape(actual, size, block)
        if actual == tuple(shape) and len(shape) == 2:
            return tensor
    elif actual == tuple(shape):
        return tensor
    elif tensor.numel() == shape.numel() and len(shape) > 4:
        return tensor.reshape(shape)
    raise ValueError(
        f"contains {name} in the shape {'x'.join(map(str, actual))}, where the model has "
        f"{'x'.join(map(str, shape))}; choose a file for this model"
    )


def _unsupported_dtype(dtype: torch.dtype) -> ValueError:
    name = str(dtype).removeprefix("torch.")
    expected = "F32, F16, BF16, fp8, int8 with a scale for each row, or GGUF"
    return ValueError(f"stores {name}, which cannot be loaded; expected {expected}")


def _is_quantised(tensors: Mapping[str, Tensor]) -> bool:
    return any(tensor.dtype in EIGHT_BIT or isinstance(tensor, GGUFParameter) for tensor in tensors.values())


def _compute_dtype(path: Path, tensors: Mapping[str, Tensor]) -> torch.dtype:
    counts = Counter[str]()
    for tensor in tensors.values():
        counts[str(tensor.dtype).removeprefix("torch.")] += tensor.numel()
    metadata = read_contents(weight_files(path)[0]).metadata if _is_quantised(tensors) else None
    dtype: torch.dtype = getattr(torch, compute_type(counts, metadata))
    if dtype not in _FLOAT_DTYPES:
        raise _unsupported_dtype(dtype)
    return dtype


def _fixed_dtype(network: nn.Module, name: str, compute_dtype: torch.dtype) -> torch.dtype | None:
    """Find the type that a tensor always has, by the list of its class; None for any type.

    diffusers keeps the tensors on the list in fp32, transformers only if it computes in fp16. Their layers
    take their input in the type of these weights, which therefore cannot be an 8-bit type.
    """
    patterns = cast(Any, network)._keep_in_fp32_modules or ()
    if not any(name_part in patterns for name_part in name.split(".")):
        return None
    is_fp32 = isinstance(network, ModelMixin) or compute_dtype == torch.float16
    return torch.float32 if is_fp32 else compute_dtype


def _in_fixed_dtype(tensor: Tensor, dtype: torch.dtype, scale: Tensor | None) -> Tensor:
    if isinstance(tensor, GGUFParameter):
        tensor = cast(Tensor, dequantize_gguf_tensor(tensor))
    parameter = nn.Parameter(_dequantised(tensor, dtype, scale), requires_grad=False)
    if dtype == torch.float32:
        cast(Any, parameter).storage_dtype = dtype
    return parameter


def _dequantised(tensor: Tensor, compute_dtype: torch.dtype, scale: Tensor | None) -> Tensor:
    values = tensor.to(compute_dtype)
    if scale is None:
        return values
    values = unrotated(values, rotation_of(scale))
    return (values * scale.reshape(-1, *[1] * (values.dim() - 1))).to(compute_dtype)


def check_fit(info: ModelInfo, value: Callable[[str, str], Any]) -> None:
    for component, key, description, reference in info.family.requirements:
        actual = value(component, key)
        expected = value(*reference) if isinstance(reference, tuple) else reference
        if None not in (actual, expected) and actual != expected:
            raise InputError(
                f"The parts of model {info.name} do not match: {description % actual}; expected {expected}.",
                "Use parts that were made for each other.",
                setting="model",
            )
