"""The sizes that a model's transformer has if its file is in another format."""

from __future__ import annotations

from dataclasses import replace

from diffusers_helper.errors import InputError
from diffusers_helper.models.registry import ModelInfo
from diffusers_helper.models.sizes import GGUF_CAST_BYTES, NETWORKS, Network, Weights, networks
from diffusers_helper.planning.video import network_folders
from diffusers_helper.request import AUTO, SETTINGS, WEIGHT_TYPES
from diffusers_helper.weights.gguf_file import LOADABLE, bytes_per_value

STORED = "as stored"
_PART = "transformer"
_WHOLE = "bf16"
_WIDTH = 2  # the bytes of a value in the type that computes


def networks_by_format(info: ModelInfo) -> dict[Network, tuple[str, ...]]:
    """Return the transformer in each format that can be loaded, with the names of the formats of that size.

    Files in 8 bit keep norms and embedders in 16 bit. The size of a file is that of its weights.

    Raises:
        LongtakeError: If a local model's files cannot be read.
    """
    found: dict[Network, tuple[str, ...]] = {}
    for name, network in _named(info):
        stored = _in_files(network)
        found[stored] = (*found.get(stored, ()), name)
    return found


def transformer_bytes(info: ModelInfo, weight_dtype: str) -> int:
    """Return the size of a copy of the transformer whose weights have this type.

    Raises:
        InputError: If the weights cannot be cast.
        LongtakeError: If a local model's files cannot be read.
    """
    return _transformer(info, weight_dtype).weights.total_bytes


def transformer_in(info: ModelInfo, weight_dtype: str) -> Network:
    """Return the transformer of a copy whose files have weights of this type.

    Raises:
        InputError: If the weights cannot be cast.
        LongtakeError: If a local model's files cannot be read.
    """
    return _in_files(_transformer(info, weight_dtype))


def _in_files(network: Network) -> Network:
    return replace(network, file_bytes=network.weights.total_bytes)


def _named(info: ModelInfo) -> list[tuple[str, Network]]:
    default = SETTINGS["weight_dtype"].default
    found = [(STORED, _transformer(info, default))]
    try:
        known = [name for name in WEIGHT_TYPES if name not in (AUTO, default)]
        types = {name: _transformer(info, name, _WIDTH) for name in known}
    except InputError:  # quantised weights, which are not known in any other type
        return found
    blocks = [(kind, _in_blocks(types[_WHOLE], kind)) for kind in LOADABLE]
    return [*found, *types.items(), *blocks]


def _transformer(info: ModelInfo, weight_dtype: str, width: int | None = None) -> Network:
    known = networks(
        info,
        on_cpu=False,
        widths={} if width is None else {_PART: width},
        places=dict(zip(NETWORKS, network_folders(info), strict=True)),
        weight_dtype=weight_dtype,
    )
    return known[_PART]


def _in_blocks(whole: Network, kind: str) -> Network:
    """Return the network with all values in blocks of GGUF, given the one in 16 bit.

    Files keep biases and norms in a wider type, which are less than a thousandth of all values.
    """
    share = bytes_per_value(kind) / _WIDTH
    sizes = (round(share * size) for size in whole.weights.block_bytes)
    weights = Weights(_PART, round(share * whole.weights.total_bytes), tuple(sizes))
    # The largest layer makes shift, scale and gate twice, for the picture's tokens or the text's.
    inner = whole.config["num_attention_heads"] * whole.config["attention_head_dim"]
    return replace(whole, weights=weights, cast_bytes=6 * inner**2 * GGUF_CAST_BYTES)
