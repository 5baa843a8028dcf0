"""The sizes of a model's networks, from a table or from the headers of their files."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

from diffusers_helper.errors import LongtakeError
from diffusers_helper.models.formats.safetensors_file import read_header
from diffusers_helper.models.registry import ModelInfo
from diffusers_helper.planning.budget import Weights

NETWORKS = ("text_encoder", "text_encoder_2", "vae", "image_encoder", "transformer")
_BYTES = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "F16": 2, "BF16": 2, "I16": 2}
# The lists of blocks in each network that can be streamed, in the order in which they run.
BLOCKS = {
    "transformer": ("transformer_blocks", "single_transformer_blocks"),
    "text_encoder": ("layers",),
}


@dataclass(frozen=True, slots=True)
class Network:
    """One network, in the number format that it computes in.

    Attributes:
        weights: The sizes of its weights on the device.
        config: The content of its config.json.
        dtype_bytes: The bytes per value in the computation.
        file_bytes: The size of its weights in the files.
    """

    weights: Weights
    config: Mapping[str, Any] = field(hash=False)
    dtype_bytes: int
    file_bytes: int


# The published weights, whose revisions are pinned: the number of all parameters, the number in each block
# that can be streamed, and the configuration entries that the estimates use. Each parameter takes 2 bytes.
_TRANSFORMER = {"num_attention_heads": 24, "attention_head_dim": 128, "num_layers": 20}
_PUBLISHED: dict[str, tuple[int, tuple[int, ...], dict[str, Any]]] = {
    "transformer": (12_874_314_816, (339_831_296,) * 20 + (141_591_808,) * 40, _TRANSFORMER),
    "text_encoder": (
        7_505_186_816, (218_112_000,) * 32,
        {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32},
    ),
    "text_encoder_2": (
        123_060_480, (), {"hidden_size": 768, "intermediate_size": 3072, "max_position_embeddings": 77},
    ),
    "vae": (246_478_803, (), {"block_out_channels": [128, 256, 512, 512], "layers_per_block": 2}),
    "image_encoder": (
        428_225_600, (),
        {"hidden_size": 1152, "intermediate_size": 4304, "image_size": 384, "patch_size": 14},
    ),
}  # fmt: skip


def published_bytes(part: str) -> int:
    """Return the size of a part's weights in the published models, in bytes; 0 for a part without weights."""
    return _BYTES["F16"] * _PUBLISHED[part][0] if part in _PUBLISHED else 0


def networks(
    info: ModelInfo,
    *,
    on_cpu: bool,
    widths: Mapping[str, int] = MappingProxyType({}),
    folders: Mapping[str, Path | None] = MappingProxyType({}),
) -> dict[str, Network]:
    """Return all networks of a model, by the names of their parts.

    Sizes are read from the files where these are on this machine. Otherwise they come from the table of the
    published models.

    Args:
        info: The model.
        on_cpu: Whether there is no GPU. Networks stored in fp16 then compute in other types
            (`loaders.dtype_for`).
        widths: The bytes per value of each network that does not compute in its stored type.
        folders: The folders of the parts that were downloaded from the hub.

    Raises:
        LongtakeError: If a local model's files cannot be read.
    """
    found: dict[str, Network] = {}
    for name in NETWORKS:
        source = info.parts[name]
        folder = folders.get(name) or Path(source.location, source.subfolder)
        if folder.is_dir():
            network = _read(name, folder, on_cpu)
        else:
            total, blocks, config = _PUBLISHED[name]
            stored = "BF16" if name == "transformer" else "F16"
            network = _network(name, {stored: (total, blocks)}, config, on_cpu)
        found[name] = _widened(network, widths[name]) if name in widths else network
    return found


def _widened(network: Network, width: int) -> Network:
    """Return the network with the sizes that it has if it computes with `width` bytes per value."""
    weights, old = network.weights, network.dtype_bytes
    blocks = tuple(size * width // old for size in weights.block_bytes)
    wide = Weights(weights.name, weights.total_bytes * width // old, blocks)
    return replace(network, weights=wide, dtype_bytes=width)


def _read(name: str, folder: Path, on_cpu: bool) -> Network:
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        headers = [read_header(file).tensors for file in sorted(folder.glob("*.safetensors"))]
    except (OSError, ValueError, struct.error) as error:
        raise LongtakeError(
            f"{name} in {folder} cannot be read ({error}).", "Download the model's files again."
        ) from error
    tensors = {key: entry for header in headers for key, entry in header.items()}
    prefixes = BLOCKS.get(name, ())
    pattern = re.compile(rf"(?:^|\.)({'|'.join(prefixes)})\.(\d+)\.") if prefixes else None
    counts: dict[str, tuple[int, dict[tuple[int, int], int]]] = {}
    for key, entry in tensors.items():
        kind, count = entry.dtype, entry.count
        total, blocks = counts.get(kind, (0, {}))
        match = pattern.search(key) if pattern else None
        if match:
            place = prefixes.index(match[1]), int(match[2])
            blocks[place] = blocks.get(place, 0) + count
        counts[kind] = total + count, blocks
    places = sorted({place for _, blocks in counts.values() for place in blocks})
    by_kind = {
        kind: (total, tuple(blocks.get(place, 0) for place in places))
        for kind, (total, blocks) in counts.items()
    }
    return _network(name, by_kind, cast(dict[str, Any], config), on_cpu)


def _network(
    name: str, by_kind: Mapping[str, tuple[int, tuple[int, ...]]], config: Mapping[str, Any], on_cpu: bool
) -> Network:
    """Return a network, given the number of its values per stored type, in total and in each block."""

    def size(kind: str) -> int:
        widened = on_cpu and kind == "F16" and name != "text_encoder"
        return 4 if widened else _BYTES.get(kind, 1)

    total = sum(count * size(kind) for kind, (count, _) in by_kind.items())
    by_block = zip(
        *([count * size(kind) for count in counts] for kind, (_, counts) in by_kind.items()), strict=True
    )
    most = max(by_kind, key=lambda kind: by_kind[kind][0], default="F32")
    return Network(
        weights=Weights(name, total, tuple(sum(parts) for parts in by_block)),
        config=config,
        dtype_bytes=size(most),
        file_bytes=sum(count * _BYTES.get(kind, 1) for kind, (count, _) in by_kind.items()),
    )
