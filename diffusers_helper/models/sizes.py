"""The sizes of a model's networks, from a table or from the headers of their files, alone and with LoRAs."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

from diffusers_helper.errors import InputError, LongtakeError, short_repr
from diffusers_helper.families.family import FamilyNetwork, Values, is_eight_bit
from diffusers_helper.families.known import FAMILIES, network_named, networks_of
from diffusers_helper.files import sign_of
from diffusers_helper.machine.sysfs import keeps_bf16, slow_types
from diffusers_helper.models.added import PUT_BACK
from diffusers_helper.models.registry import ModelInfo, PartSource
from diffusers_helper.strangers.confined import confined
from diffusers_helper.strangers.limited_json import read_json
from diffusers_helper.weights.lora_files import LoraFile, Pair, loras_of
from diffusers_helper.weights.reading import read_contents, weight_files
from diffusers_helper.weights.recognition import SCALE, is_beside, is_precise
from diffusers_helper.weights.safetensors_file import origin_in, read_safetensors
from diffusers_helper.weights.tensors import BITS, Contents, NotWeights, TensorInfo

NETWORKS = ("text_encoder", "text_encoder_2", "vae", "image_encoder", "transformer")
_WHOLE = ("float32", "float16", "bfloat16")
_EIGHT_BIT = ("float8_e4m3fn", "float8_e5m2", "int8")
# Quantised weights say nothing about the type that computes.
_QUANTISED_COMPUTE = "bfloat16"
# The bytes that a value takes while blocks of GGUF are taken apart: halves, whole numbers and the result.
GGUF_CAST_BYTES = 10
# The same lists in the layouts of HunyuanVideo's authors and of llama.cpp.
_ORIGINAL = {
    "double_blocks": "transformer_blocks", "single_blocks": "single_transformer_blocks", "blk": "layers",
}  # fmt: skip
_MOST_SIZE = 2**20
_EMBEDDINGS = ("embed_tokens.weight", "token_embd.weight")  # only the rows in use are taken apart
_LOOKED_UP = (*_EMBEDDINGS, "shared.weight", "_embedding.weight")


@dataclass(frozen=True, slots=True)
class Weights:
    """The sizes of a model's weights in the type that they have on the device.

    Attributes:
        block_bytes: The size of each block that can be streamed, in the order in which the blocks run. All
            other weights stay on the device while the model is in use.
    """

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


def published_bytes(part: str, family: str = "framepack") -> int:
    """Return the size of a part's weights in a family's published models; 0 for a part without weights."""
    found = FAMILIES[family].networks.get(part)
    return found.total.num_bytes(BITS[found.dtype] // 8, "default") if found else 0


def networks(
    info: ModelInfo,
    *,
    on_cpu: bool,
    widths: Mapping[str, int | None] = MappingProxyType({}),
    weight_dtype: str = "default",
    has_bf16: bool = True,
) -> dict[str, Network]:
    """Return all networks of a model, by the names of their parts.

    Sizes are read from the files where these are on this machine. Otherwise they come from the table of the
    published models.

    Args:
        on_cpu: Whether there is no GPU. Networks stored in a type that is slow there then compute
            in another one (`loaders.dtype_for`).
        widths: The bytes per value of each network that does not compute in its stored type; None for others.
        weight_dtype: The type of the transformer's weights (`request.WEIGHT_TYPES`).
        has_bf16: Whether the device computes in bf16. Otherwise the weights of networks in bf16 are cast to
            fp32 layer by layer, except the VAE's.

    Raises:
        LongtakeError: If a local model's files cannot be read.
    """
    found: dict[str, Network] = {}
    for name in (one for one in NETWORKS if one in info.parts):
        source, storage = info.parts[name], weight_dtype if name == "transformer" else "default"
        counted = _of_published(info.family.networks[name]) if source.is_missing else _counted(name, source)
        keeps = not has_bf16 and name != "vae" and widths.get(name) is None
        found[name] = counted.network(name, widths.get(name), storage, on_cpu=on_cpu, keeps_narrow=keeps)
    return found


@dataclass(frozen=True, slots=True)
class _Counted:
    """The values of one network as its files have them.

    Attributes:
        total, blocks: The values in all, and in each block that can be streamed.
        keeps_bf16: Whether a CPU computes in bf16 if that is the type; see `machine.sysfs.keeps_bf16`.
        largest, largest_linear: The most values of a layer that can be cast, and of one with a product.
        unlayered: The values that belong to no such layer, as those of norms.
        largest_block: The most values of a layer in blocks of GGUF.
        is_fixed: Whether the weights cannot be cast to another type.
    """

    total: Values
    blocks: tuple[Values, ...]
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
        self, name: str, width: int | None, storage: str, *, on_cpu: bool, keeps_narrow: bool
    ) -> Network:
        """Return the network in the types that it is stored and computes in on the device.

        Raises:
            InputError: If the weights cannot be cast to the type that the job asks for.
        """
        if self.is_fixed and storage != "default":
            raise InputError(
                setting="weight_dtype", value=storage,
                expected=f"default, as the {name} is stored in GGUF or with scales, which stays as it is",
                remedy="Set `weight_dtype` to default, or choose another `model`.",
            )  # fmt: skip
        if width is None:
            slow = on_cpu and self.compute_dtype in slow_types(keeps=self.keeps_bf16)
            widened = slow and name != "text_encoder"
            own = 4 if widened else BITS[self.compute_dtype] // 8
            width = 2 if storage in ("bf16", "fp16") else own
        is_cast = is_eight_bit(storage) or (self.total.eight_bit and storage == "default")
        kept, cast, more = width, self.largest if is_cast else 0, 0
        if keeps_narrow and self.compute_dtype == "bfloat16" and storage not in ("bf16", "fp16"):
            kept, width, cast, more = 2, 4, max(cast, self.largest_linear), 2 * self.unlayered
        total = self.total.num_bytes(kept, storage) + more
        blocks = tuple(block.num_bytes(kept, storage) for block in self.blocks)
        cast_bytes = max(cast * width, self.largest_block * GGUF_CAST_BYTES)
        return Network(Weights(name, total, blocks), self.config, width, self.file_bytes, cast_bytes)


def _of_published(known: FamilyNetwork) -> _Counted:
    size = known.total.num_bytes(BITS[known.dtype] // 8, "default")
    largest = known.largest, known.largest
    return _Counted(known.total, known.blocks, known.config, known.dtype, True, size, *largest, 0, 0)


def _counted(name: str, source: PartSource) -> _Counted:
    """Return what `count_values` does, which is remembered until one of the files changes."""
    place = source.folder
    files = [*([place / "config.json"] if source.config is None else []), *weight_files(place)]
    signs = tuple(sign_of(file) for file in files if file.exists())
    return _remembered(name, place, signs, json.dumps(source.config))


def config_here(name: str, source: PartSource) -> Mapping[str, Any]:
    """Return the configuration of a network; an empty one if it is not here, or cannot be read."""
    try:
        return {} if source.is_missing else _counted(name, source).config
    except LongtakeError:
        return {}  # `networks` says what is wrong


@lru_cache(maxsize=64)
def _remembered(name: str, place: Path, signs: tuple[Any, ...], config: str) -> _Counted:
    return count_values(name, place, json.loads(config))


@confined
def count_values(name: str, place: Path, config: Mapping[str, Any] | None) -> _Counted:
    """Return the values of a network, given its folder, or its file and its configuration.

    Raises:
        LongtakeError: If its files cannot be read.
    """
    try:
        config = _checked(name, read_json(place / "config.json") if config is None else config)
        contents = [read_contents(file) for file in weight_files(place)]
    except (OSError, ValueError) as error:
        if not place.exists():
            remedy = f"{PUT_BACK[0].upper()}{PUT_BACK[1:]}."
            raise LongtakeError(f"The {name} is not at {place}.", remedy) from error
        raise LongtakeError(
            f"{name} in {place} cannot be read ({error}).", "Download the model's files again."
        ) from error
    found = {key: tensor for one in contents for key, tensor in one.tensors.items()}
    tensors = {key: one for key, one in found.items() if not is_beside(key)}
    is_quantised = any(one.dtype in _EIGHT_BIT or one.dtype not in BITS for one in tensors.values())
    dtype = _compute_dtype(tensors.values(), contents, is_quantised=is_quantised)
    known, by_block = _network_of(name, config), dict[tuple[int, int], Values]()
    in_fp32 = (*known.in_fp32, *(known.whole if dtype == "float16" else ()))
    total, lists = Values(), [path.rpartition(".")[2] for path in block_lists(name, class_named(config))]
    for key, tensor in tensors.items():
        values = _values(key, tensor, in_fp32, known.whole)
        total += values
        if block := _block_of(lists, key):
            by_block[block] = by_block.get(block, Values()) + values
    file_bytes = sum(tensor.num_bytes for tensor in tensors.values())
    layers = {key: math.prod(one.shape) for key, one in tensors.items() if _is_layer(key, one)}
    linear = [number for key, number in layers.items() if not key.endswith(_LOOKED_UP)]
    in_blocks = [  # the tensors that are taken apart as a whole when their layer computes
        math.prod(one.shape)
        for key, one in tensors.items()
        if one.dtype not in BITS and not key.endswith(_EMBEDDINGS)
    ]
    return _Counted(
        total, tuple(by_block[block] for block in sorted(by_block)), config, dtype,
        keeps_bf16(file_bytes, is_quantised=is_quantised), file_bytes,
        max(layers.values(), default=0), max(linear, default=0),
        sum(math.prod(one.shape) for key, one in tensors.items() if key not in layers),
        max(in_blocks, default=0),
        any(SCALE.search(key) or one.dtype not in BITS for key, one in found.items()),
    )  # fmt: skip


def _checked(name: str, config: Any) -> dict[str, Any]:
    """Return the configuration of a network, which is of unknown origin.

    Raises:
        ValueError: If it lacks a size that the plans need.
    """
    if not isinstance(config, Mapping):
        raise ValueError("its config.json is no JSON object")
    config = dict(cast(Mapping[str, Any], config))
    for key in _network_of(name, config).sizes:
        sizes = config.get(key) if key == "block_out_channels" else [config.get(key)]
        sizes = cast(list[Any], sizes) if isinstance(sizes, list) else []
        if not sizes or not all(type(one) is int and 0 < one <= _MOST_SIZE for one in sizes):
            found = f"its config.json has {short_repr(config.get(key))} for {key}"
            raise ValueError(f"{found}; expected a whole number from 1 to {_MOST_SIZE}")
    return config


def _network_of(part: str, config: Mapping[str, Any]) -> FamilyNetwork:
    """Return the network of a family that a configuration is for; FramePack's for an unknown one."""
    return network_named(part, class_named(config)) or networks_of(part)[0]


def class_named(config: Mapping[str, Any]) -> str:
    """Return the class that a configuration names, or "" if it names none."""
    named = config.get("_class_name") or next(iter(config.get("architectures") or ()), "")
    return named if isinstance(named, str) else ""


def block_lists(part: str, kind: str) -> tuple[str, ...]:
    """Return the paths of the lists of blocks of a network of a class, in the order in which they run."""
    return _network_of(part, {"_class_name": kind}).lists


def _is_layer(name: str, tensor: TensorInfo) -> bool:
    return len(tensor.shape) == 2 and name.endswith(".weight")


def _values(name: str, tensor: TensorInfo, in_fp32: Sequence[str], whole: Sequence[str]) -> Values:
    number, parts = math.prod(tensor.shape), {*name.split(".")}
    if parts & {*in_fp32, *whole}:  # a scale is multiplied with its weight
        number = 0 if SCALE.search(name) else number
        return Values(fixed_bytes=4 * number) if parts & {*in_fp32} else Values(plain=number)
    if SCALE.search(name):
        return Values(fixed_bytes=4 * number)
    if tensor.dtype not in BITS:
        return Values(fixed_bytes=tensor.num_bytes)
    if not _is_layer(name, tensor):
        return Values(plain=number)
    rows = 0 if is_precise(name) else tensor.shape[0]
    if tensor.dtype in _EIGHT_BIT:
        return Values(eight_bit=number, rows=rows)
    return Values(plain=number) if is_precise(name) else Values(castable=number, rows=rows)


def _block_of(lists: Sequence[str], name: str) -> tuple[int, int] | None:
    """Return the place of a tensor's block: the number of its list, and its own; None outside of blocks."""
    for match in re.finditer(r"(?:^|\.)(\w+)\.(\d+)\.", name):
        known = _ORIGINAL.get(match[1], match[1])
        if known in lists:
            return lists.index(known), int(match[2])
    return None


def _compute_dtype(tensors: Iterable[TensorInfo], contents: Iterable[Contents], *, is_quantised: bool) -> str:
    kinds: Counter[str] = Counter()
    for tensor in tensors:
        kinds[tensor.dtype] += math.prod(tensor.shape)
    if is_quantised:
        origin = next(filter(None, (origin_in(one.metadata) for one in contents)), None)
        return _QUANTISED_COMPUTE if origin is None else origin.compute_dtype
    return max(kinds, key=lambda kind: (kind in _WHOLE, kinds[kind]), default="float32")


_WEIGHT = ".weight"
_LEAST_VALUE_BYTES = 2


def check_loras(text: str, info: ModelInfo) -> None:
    """Check the LoRAs of a request.

    What cannot be judged here is left to the engine: the fit to a model that is not on this machine, or whose
    transformer is stored in another way.

    Args:
        text: The setting `lora`, with paths.

    Raises:
        InputError: If a file is missing, holds no LoRA, or does not fit the model.
    """
    loras = loras_of(text)
    transformer = info.parts["transformer"]
    layers = layers_of(transformer.folder) if loras and not transformer.is_missing else {}
    for _, lora in loras:
        lora.check_family(info.name, info.family)
        if layers:
            lora.fitting(layers)


@confined
def layers_of(folder: Path) -> dict[str, tuple[int, int]]:
    """Return (outputs, inputs) of each linear layer in a transformer's files; none for other files."""
    try:
        headers = [read_safetensors(file).tensors for file in folder.glob("*.safetensors")]
    except (OSError, NotWeights):
        return {}
    found = {
        name.removesuffix(_WEIGHT): (entry.shape[0], entry.shape[1])
        for header in headers
        for name, entry in header.items()
        if name.endswith(_WEIGHT) and len(entry.shape) == 2
    }
    return found if "proj_out" in found else {}


def with_loras(network: Network, loras: Collection[LoraFile]) -> Network:
    """Return the transformer with the sizes that it has together with LoRAs.

    Args:
        loras: The LoRAs, as `lora_adapters` attaches them: with two matrices for each layer.
    """
    if not loras:
        return network
    weights, width = network.weights, max(_LEAST_VALUE_BYTES, network.dtype_bytes)
    blocks, total = list(weights.block_bytes), weights.total_bytes
    lists, first = block_lists("transformer", class_named(network.config)), len(blocks)
    if len(lists) > 1:
        first = int(network.config.get("num_layers", first))
    for layer, values in (found for lora in loras for pair in lora.pairs for found in _layer_values(pair)):
        total += values * width
        group, _, rest = layer.partition(".")
        if group in lists:
            place = int(rest.partition(".")[0]) + (first if group in lists[1:] else 0)
            if place < len(blocks):
                blocks[place] += values * width
    return replace(network, weights=replace(weights, total_bytes=total, block_bytes=tuple(blocks)))


def _layer_values(pair: Pair) -> Iterator[tuple[str, int]]:
    """Yield the layers that a change concerns, with the number of values for each."""
    layers = pair.target.layers
    for place, layer in enumerate(layers):
        # How the outputs are divided is not known here; all of them are counted with the first layer.
        outputs = 0 if place else pair.outputs
        yield layer, pair.rank * (pair.inputs + outputs) + (outputs if pair.bias else 0)
