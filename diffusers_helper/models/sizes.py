"""The sizes of a model's networks, from a table or from the headers of their files, alone and with LoRAs."""

import json
import math
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

from diffusers_helper.errors import InputError, LongtakeError, short_repr
from diffusers_helper.families.family import LORA, Family, FamilyNetwork, ParameterCounts, is_eight_bit
from diffusers_helper.families.registry import FAMILIES, network_named, networks_of
from diffusers_helper.files import file_signature
from diffusers_helper.machine.sysfs import keeps_bf16, slow_types
from diffusers_helper.models.added import PUT_BACK
from diffusers_helper.models.registry import ComponentSource, ModelInfo
from diffusers_helper.untrusted.confined import confined
from diffusers_helper.untrusted.limited_json import read_json
from diffusers_helper.weights.lora_files import LoraFile, Pair, loras_of, read_lora
from diffusers_helper.weights.lora_keys import Target
from diffusers_helper.weights.reading import read_contents, weight_files
from diffusers_helper.weights.recognition import SCALE, is_extra, is_precise
from diffusers_helper.weights.safetensors_file import origin_in, read_safetensors
from diffusers_helper.weights.tensors import BITS, NotWeights, TensorInfo

# A model with two transformers samples with the second one at low noise.
TRANSFORMERS = ("transformer", "transformer_2")
NETWORKS = ("text_encoder", "text_encoder_2", "vae", "image_encoder", *TRANSFORMERS)
_FLOAT_DTYPES = ("float32", "float16", "bfloat16")
_EIGHT_BIT = ("float8_e4m3fn", "float8_e5m2", "int8")
# Quantised weights say nothing about the type that computes.
_QUANTISED_COMPUTE = "bfloat16"
# The bytes that a value takes while blocks of GGUF are dequantised: halves, whole numbers and the result.
GGUF_CAST_BYTES = 10
# diffusers' lists of blocks by the names of HunyuanVideo's authors and of llama.cpp
_DIFFUSERS_LISTS = {
    "double_blocks": "transformer_blocks", "single_blocks": "single_transformer_blocks", "blk": "layers",
}  # fmt: skip
_MAX_CONFIG_SIZE = 2**20
_EMBEDDINGS = ("embed_tokens.weight", "token_embd.weight")  # only the rows in use are dequantised
_TABLES = (*_EMBEDDINGS, "shared.weight", "_embedding.weight")


@dataclass(frozen=True, slots=True)
class Weights:
    """The sizes of a model's weights on the device; blocks that can be streamed are in their order."""

    name: str
    total_bytes: int
    block_bytes: tuple[int, ...] = ()

    @property
    def fixed_bytes(self) -> int:
        return self.total_bytes - sum(self.block_bytes)


@dataclass(frozen=True, slots=True)
class Network:
    """One network, in the number format that it computes in.

    Attributes:
        dtype_bytes: The bytes per value in the computation.
        cast_bytes: The largest memory that one layer's weight takes while it is cast for use; 0 if none is.
    """

    weights: Weights
    config: Mapping[str, Any] = field(hash=False)
    dtype_bytes: int
    file_bytes: int
    cast_bytes: int = 0


def published_bytes(component: str, family: str = "framepack", dtype: str = "") -> int:
    """Count the bytes of a published network's files, by default in its family's type; 0 for no network."""
    if component == LORA:
        pairs = (pair for lora in _published_loras(FAMILIES[family]) for pair in lora.pairs)
        return sum(_MIN_DTYPE_BYTES * values for pair in pairs for _, values in _layer_values(pair))
    network = FAMILIES[family].networks.get(component)
    if network is None:
        return 0
    file_dtype = (component in TRANSFORMERS and dtype) or network.dtype
    return network.total.num_bytes(BITS[file_dtype] // 8, "default")


def networks(
    info: ModelInfo,
    *,
    on_cpu: bool,
    dtype_bytes: Mapping[str, int | None] = MappingProxyType({}),
    weight_dtype: str = "default",
    has_bf16: bool = True,
) -> dict[str, Network]:
    """Describe all networks of a model, by the names of their components, from their files or the table.

    On a CPU, networks in a type that is slow there compute in another one.
    `dtype_bytes` are the bytes per value of networks that do not compute in their stored type. Without bf16,
    the weights of networks in bf16 are cast to fp32 layer by layer, except the VAE's.
    """
    by_name: dict[str, Network] = {}
    for name in filter(info.components.__contains__, NETWORKS):
        storage = weight_dtype if name in TRANSFORMERS else "default"
        sizes = _sizes_of(name, info.components[name], info.family.networks[name])
        value_bytes = dtype_bytes.get(name)
        casts_bf16 = not has_bf16 and name != "vae" and value_bytes is None
        by_name[name] = sizes.network(name, value_bytes, storage, on_cpu=on_cpu, casts_bf16=casts_bf16)
    return by_name


@dataclass(frozen=True, slots=True)
class _Sizes:
    """The values of one network as its files have them, with the most values in a layer that is cast."""

    total: ParameterCounts
    blocks: tuple[ParameterCounts, ...]
    config: Mapping[str, Any]
    compute_dtype: str
    keeps_bf16: bool
    file_bytes: int
    largest: int
    largest_linear: int
    unlayered: int
    largest_block: int
    is_fixed: bool = False

    def network(
        self, name: str, dtype_bytes: int | None, storage: str, *, on_cpu: bool, casts_bf16: bool
    ) -> Network:
        """Size the network in the types that it is stored and computes in, or raise InputError."""
        if self.is_fixed and storage != "default":
            raise InputError(
                setting="weight_dtype", value=storage,
                expected=f"default, as the {name} is stored in GGUF or with scales, which stays as it is",
                remedy="Set `weight_dtype` to default, or choose another `model`.",
            )  # fmt: skip
        if dtype_bytes is None:
            dtype = self.compute_dtype
            dtype = type_on_cpu(name, dtype, is_bf16_kept=self.keeps_bf16) if on_cpu else dtype
            dtype_bytes = 2 if storage in ("bf16", "fp16") else BITS[dtype] // 8
        is_cast = is_eight_bit(storage) or (self.total.eight_bit and storage == "default")
        stored_bytes = dtype_bytes
        cast_values = self.largest if is_cast else 0
        extra_bytes = 0
        if casts_bf16 and self.compute_dtype == "bfloat16" and storage not in ("bf16", "fp16"):
            stored_bytes = 2
            dtype_bytes = 4
            cast_values = max(cast_values, self.largest_linear)
            extra_bytes = 2 * self.unlayered
        total = self.total.num_bytes(stored_bytes, storage) + extra_bytes
        blocks = tuple(block.num_bytes(stored_bytes, storage) for block in self.blocks)
        cast_bytes = max(cast_values * dtype_bytes, self.largest_block * GGUF_CAST_BYTES)
        return Network(Weights(name, total, blocks), self.config, dtype_bytes, self.file_bytes, cast_bytes)


def type_on_cpu(name: str, stored: str, *, is_bf16_kept: bool) -> str:
    """Choose the type in which a component computes on a CPU: the stored one, except for 16 bit.

    CPUs compute fp16 slowly, if at all, and bf16 well only with AVX-512 or the like. Without it, the demo
    model takes more than ten minutes in bf16 and half a minute in fp32. The large text encoder then computes
    in bf16, which takes no more memory than its files, and the smaller components in fp32.
    """
    if stored not in slow_types(is_bf16_kept=is_bf16_kept):
        return stored
    return "bfloat16" if name == "text_encoder" else "float32"


def _sizes_of(name: str, source: ComponentSource, network: FamilyNetwork) -> _Sizes:
    if source.is_missing:
        size = network.total.num_bytes(BITS[network.dtype] // 8, "default")
        facts = network.total, network.blocks, network.config, network.dtype, True, size
        return _Sizes(*facts, network.largest_layer, network.largest_layer, 0, 0)
    path = source.folder
    files = [*([path / "config.json"] if source.config is None else []), *weight_files(path)]
    signatures = tuple(file_signature(file) for file in files if file.exists())
    return _cached_sizes(name, path, signatures, json.dumps(source.config))


@lru_cache(maxsize=64)
def _cached_sizes(name: str, path: Path, signatures: tuple[Any, ...], config: str) -> _Sizes:
    return count_values(name, path, json.loads(config))


@confined
def count_values(name: str, path: Path, config: Mapping[str, Any] | None) -> _Sizes:
    try:
        config = _checked_config(name, read_json(path / "config.json") if config is None else config)
        contents = [read_contents(file) for file in weight_files(path)]
    except (OSError, ValueError) as error:
        if not path.exists():
            remedy = f"{PUT_BACK[0].upper()}{PUT_BACK[1:]}."
            raise LongtakeError(f"The {name} is not at {path}.", remedy) from error
        raise LongtakeError(
            f"{name} in {path} cannot be read ({error}).", "Download the model's files again."
        ) from error
    all_tensors = {key: tensor for file_contents in contents for key, tensor in file_contents.tensors.items()}
    tensors = {key: tensor for key, tensor in all_tensors.items() if not is_extra(key)}
    is_quantised = any(tensor.dtype in _EIGHT_BIT or tensor.dtype not in BITS for tensor in tensors.values())
    values_by_type = Counter[str]()
    for tensor in tensors.values():
        values_by_type[tensor.dtype] += math.prod(tensor.shape)
    metadata = contents[0].metadata if is_quantised else None
    dtype = compute_type(values_by_type, metadata)
    network = _network_of(name, config)
    counts_by_block = dict[tuple[int, int], ParameterCounts]()
    in_fp32 = (*network.keep_in_fp32, *(network.keep_in_fp32_with_fp16 if dtype == "float16" else ()))
    total = ParameterCounts()
    lists = [path.rpartition(".")[2] for path in block_lists(name, class_named(config))]
    for key, tensor in tensors.items():
        counts = _count(key, tensor, in_fp32, network.keep_in_fp32_with_fp16)
        total += counts
        if block := _block_of(lists, key):
            counts_by_block[block] = counts_by_block.get(block, ParameterCounts()) + counts
    file_bytes = sum(tensor.num_bytes for tensor in tensors.values())
    layers = {key: math.prod(tensor.shape) for key, tensor in tensors.items() if _is_layer(key, tensor)}
    num_copies = 2 if any(file_contents.rotations for file_contents in contents) else 1  # of a cast layer
    linear_sizes = [num_values for key, num_values in layers.items() if not key.endswith(_TABLES)]
    gguf_sizes = [  # the tensors that are dequantised as a whole when their layer computes
        math.prod(tensor.shape)
        for key, tensor in tensors.items()
        if tensor.dtype not in BITS and not key.endswith(_EMBEDDINGS)
    ]
    return _Sizes(
        total, tuple(counts_by_block[block] for block in sorted(counts_by_block)), config, dtype,
        keeps_bf16(file_bytes, is_quantised=is_quantised), file_bytes,
        num_copies * max(layers.values(), default=0), max(linear_sizes, default=0),
        sum(math.prod(tensor.shape) for key, tensor in tensors.items() if key not in layers),
        max(gguf_sizes, default=0),
        any(SCALE.search(key) or tensor.dtype not in BITS for key, tensor in all_tensors.items()),
    )  # fmt: skip


def _checked_config(name: str, config: Any) -> dict[str, Any]:
    if not isinstance(config, Mapping):
        raise ValueError("its config.json is no JSON object")
    config = dict(cast(Mapping[str, Any], config))
    for key in _network_of(name, config).sizes:
        sizes = config.get(key) if key == "block_out_channels" else [config.get(key)]
        sizes = cast(list[Any], sizes) if isinstance(sizes, list) else []
        if not sizes or not all(type(size) is int and 0 < size <= _MAX_CONFIG_SIZE for size in sizes):
            problem = f"its config.json has {short_repr(config.get(key))} for {key}"
            raise ValueError(f"{problem}; expected a whole number from 1 to {_MAX_CONFIG_SIZE}")
    return config


def _network_of(component: str, config: Mapping[str, Any]) -> FamilyNetwork:
    return network_named(component, class_named(config)) or networks_of(component)[0]


def class_named(config: Mapping[str, Any]) -> str:
    class_name = config.get("_class_name") or next(iter(config.get("architectures") or ()), "")
    return class_name if isinstance(class_name, str) else ""


def block_lists(component: str, class_name: str) -> tuple[str, ...]:
    return _network_of(component, {"_class_name": class_name}).block_lists


def _is_layer(name: str, tensor: TensorInfo) -> bool:
    return len(tensor.shape) == 2 and name.endswith(".weight")


def _count(name: str, tensor: TensorInfo, in_fp32: Sequence[str], plain: Sequence[str]) -> ParameterCounts:
    count = math.prod(tensor.shape)
    name_parts = {*name.split(".")}
    if name_parts & {*in_fp32, *plain}:  # a scale is multiplied with its weight
        count = 0 if SCALE.search(name) else count
        is_fp32 = bool(name_parts & {*in_fp32})
        return ParameterCounts(fixed_bytes=4 * count) if is_fp32 else ParameterCounts(plain=count)
    if SCALE.search(name):
        return ParameterCounts(fixed_bytes=4 * count)
    if tensor.dtype not in BITS:
        return ParameterCounts(fixed_bytes=tensor.num_bytes)
    if not _is_layer(name, tensor):
        return ParameterCounts(plain=count)
    rows = 0 if is_precise(name) else tensor.shape[0]
    if tensor.dtype in _EIGHT_BIT:
        return ParameterCounts(eight_bit=count, rows=rows)
    return ParameterCounts(plain=count) if is_precise(name) else ParameterCounts(castable=count, rows=rows)


def _block_of(lists: Sequence[str], name: str) -> tuple[int, int] | None:
    """Find the index of the list of a tensor's block, and the index of the block; None outside of blocks."""
    for match in re.finditer(r"(?:^|\.)(\w+)\.(\d+)\.", name):
        list_name = _DIFFUSERS_LISTS.get(match[1], match[1])
        if list_name in lists:
            return lists.index(list_name), int(match[2])
    return None


def compute_type(values_by_type: Mapping[str, int], metadata: Mapping[str, str] | None = None) -> str:
    """Choose the type of most values; for quantised ones, which have `metadata`, that of their origin."""
    if metadata is not None:
        origin = origin_in(metadata)
        return origin.compute_dtype if origin else _QUANTISED_COMPUTE
    types = values_by_type.items()
    return max(types, key=lambda item: (item[0] in _FLOAT_DTYPES, item[1]), default=("float32", 0))[0]


_WEIGHT = ".weight"
_LORA_RANK = 64
_MIN_DTYPE_BYTES = 2


def own_loras(info: ModelInfo) -> tuple[LoraFile, ...]:
    source = info.components.get(LORA)
    if source is None:
        return ()
    if source.is_missing:
        return _published_loras(info.family)
    return tuple(map(read_lora, weight_files(source.folder)))


def _published_loras(family: Family) -> tuple[LoraFile, ...]:
    config = family.networks["transformer"].config
    width, inner = config["num_attention_heads"] * config["attention_head_dim"], config["ffn_dim"]
    sizes = {
        **{f"attn{n}.to_{name}": (width, width) for n in (1, 2) for name in ("q", "k", "v", "out.0")},
        "ffn.net.0.proj": (width, inner), "ffn.net.2": (inner, width),
    }  # fmt: skip
    pairs = tuple(
        Pair("", "", "", "", Target((f"blocks.{block}.{layer}",)), _LORA_RANK, *layer_sizes)
        for block in range(config["num_layers"])
        for layer, layer_sizes in sizes.items()
    )
    return tuple(LoraFile(Path(f"{noise}_noise"), pairs, len(pairs), ()) for noise in ("high", "low"))


def check_loras(text: str, info: ModelInfo) -> None:
    loras = loras_of(text)
    transformer = info.components["transformer"]
    layers = layers_of(transformer.folder) if loras and not transformer.is_missing else {}
    for _, lora in loras:
        lora.check_family(info.name, info.family)
        if layers:
            lora.fitting(layers)


@confined
def layers_of(folder: Path) -> dict[str, tuple[int, int]]:
    try:
        headers = [read_safetensors(file).tensors for file in weight_files(folder)]
    except (OSError, NotWeights):
        return {}
    layers = {
        name.removesuffix(_WEIGHT): (tensor.shape[0], tensor.shape[1])
        for header in headers
        for name, tensor in header.items()
        if name.endswith(_WEIGHT) and len(tensor.shape) == 2
    }
    return layers if "proj_out" in layers else {}


def with_loras(network: Network, loras: Collection[LoraFile]) -> Network:
    dtype_bytes = max(_MIN_DTYPE_BYTES, network.dtype_bytes)
    blocks = list(network.weights.block_bytes)
    total = network.weights.total_bytes
    lists = block_lists("transformer", class_named(network.config))
    num_first_blocks = int(network.config.get("num_layers", len(blocks))) if len(lists) > 1 else 0
    for layer, values in (item for lora in loras for pair in lora.pairs for item in _layer_values(pair)):
        total += values * dtype_bytes
        group, _, rest_of_name = layer.partition(".")
        if group in lists:
            index = int(rest_of_name.partition(".")[0]) + (num_first_blocks if group in lists[1:] else 0)
            if index < len(blocks):
                blocks[index] += values * dtype_bytes
    return replace(network, weights=replace(network.weights, total_bytes=total, block_bytes=tuple(blocks)))


def _layer_values(pair: Pair) -> Iterator[tuple[str, int]]:
    for index, layer in enumerate(pair.target.layers):
        # It is not known here how the outputs are divided, so all are counted with the first layer.
        outputs = 0 if index else pair.outputs
        yield layer, pair.rank * (pair.inputs + outputs) + (outputs if pair.bias else 0)
