"""The header of a safetensors file, and the origin of converted weights, which its metadata contain."""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

from diffusers_helper.files import sha256_of
from diffusers_helper.strangers.limited_json import parse_json
from diffusers_helper.weights.tensors import (
    BITS,
    Contents,
    NotWeights,
    TensorInfo,
    cut_off,
    shape_of,
    unknown_types,
)

_MOST_HEADER_BYTES = 24 * 2**20  # those of known models have less than 1 MB
_NAMES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32",
    "I16": "int16", "I8": "int8", "U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8",
    "BOOL": "bool", "C64": "complex64", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu", "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F4": "float4_e2m1fn_x2",
}  # fmt: skip


def make_header(
    tensors: Mapping[str, tuple[str, tuple[int, ...]]], metadata: Mapping[str, str]
) -> tuple[bytes, dict[str, int], int]:
    """Return the header of a new file, the place of each tensor in it, and the size of the whole file.

    Args:
        tensors: The type, by torch's name, and the shape of each tensor.
    """
    types = {name: short for short, name in _NAMES.items()}
    entries: dict[str, Any] = {"__metadata__": dict(metadata)}
    places: dict[str, int] = {}
    end = 0
    # The widest types come first, so that each tensor is aligned to its type.
    for name, (dtype, shape) in sorted(tensors.items(), key=lambda one: -BITS[one[1][0]]):
        begin, end = end, end + math.prod(shape) * BITS[dtype] // 8
        entries[name] = {"dtype": types[dtype], "shape": list(shape), "data_offsets": [begin, end]}
        places[name] = begin
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    header = struct.pack("<Q", len(text)) + text
    return header, {name: len(header) + begin for name, begin in places.items()}, len(header) + end


def read_safetensors(file: Path) -> Contents:
    """Return the contents of a safetensors file.

    Raises:
        OSError: If the file cannot be read.
        NotWeights: If its header is damaged or incomplete.
    """
    with file.open("rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        start = stream.read(8)
        length = int.from_bytes(start, "little")
        if len(start) < 8 or size < 8 + length:
            raise NotWeights(cut_off(size))
        try:
            if length > _MOST_HEADER_BYTES:
                raise ValueError(f"a header of {length} bytes")
            return _contents(parse_json(stream.read(length), number=int), 8 + length, size)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise NotWeights("has a damaged header; download it again.") from error


def _contents(entries: dict[str, Any], begin: int, size: int) -> Contents:
    """Return what the entries of a header describe, given the bytes before the tensors and of the file."""
    metadata: Any = entries.pop("__metadata__", {})
    tensors: dict[str, TensorInfo] = {}
    needed, unknown, damaged = begin, list[str](), list[str]()
    for name, entry in entries.items():
        kind: str = entry["dtype"]
        first, end = shape_of(entry.get("data_offsets", (0, 0)))
        dtype, shape, found = _NAMES.get(kind, kind[:99]), shape_of(entry["shape"]), end - first
        tensors[name] = TensorInfo(dtype, shape, found, begin + first)
        if begin + end > needed:  # faster than max(); a load waits for this
            needed = begin + end
        if kind not in _NAMES:
            unknown.append(dtype)
        elif found != (expected := math.prod(shape) * BITS[dtype] // 8):
            damaged.append(f"is damaged: tensor {name} has {found} bytes of {expected}; download it again.")
    problems = [cut_off(size, needed)] if size < needed else []
    if size > needed:
        problems.append(f"has {size - needed} bytes after its last tensor; download it again.")
    problems += [*unknown_types(unknown), *damaged[:1]]
    texts = {name: text for name, text in metadata.items() if isinstance(text, str)}
    return Contents("safetensors", tensors, texts, tuple(problems))


_KEY = "longtake"
_COMPUTE = ("float32", "float16", "bfloat16")
_SUM = 64  # the length of a SHA-256 checksum, by which the hub's cache names its files
NO_SUM = "0" * _SUM
_PIECE_BYTES = 1024**2


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of converted weights.

    Attributes:
        model: The model, file or folder that was converted, as the user named it.
        files: The names of the source's files, each with its size, the time of its last change in
            nanoseconds, and its SHA-256 checksum if the hub's cache knows it.
        weight_dtype: The type that the weights were converted to (`request.WEIGHT_TYPES`).
        compute_dtype: The type in which the network computes, by torch's name.
        sums: The names of the copy's files, each with its checksum: that of `copy_sum` for the weights, and
            SHA-256 for others. It is empty for copies of versions that did not record it.
    """

    model: str
    files: tuple[tuple[str, int, int, str], ...]
    weight_dtype: str
    compute_dtype: str
    version: str
    sums: tuple[tuple[str, str], ...] = ()

    def metadata(self) -> dict[str, str]:
        """Return the metadata of a safetensors file with these weights."""
        return {"format": "pt", _KEY: json.dumps(asdict(self))}

    def is_same(self, other: Origin | None) -> bool:
        """Return whether other weights were made in the same way from files that have not changed."""
        return other is not None and (self.files, self.weight_dtype) == (other.files, other.weight_dtype)


def files_of_origin(files: Iterable[Path]) -> tuple[tuple[str, int, int, str], ...]:
    """Return the facts about a source's files that an `Origin` contains."""
    found: list[tuple[str, int, int, str]] = []
    for file in files:
        status, target = file.stat(), file.resolve().name
        is_sum = target != file.name and len(target) == _SUM
        found.append((file.name, status.st_size, status.st_mtime_ns, target if is_sum else ""))
    return tuple(found)


def origin_in(metadata: Mapping[str, str]) -> Origin | None:
    """Return the origin that a file's metadata contains, or None for weights from elsewhere."""
    try:
        content: Any = json.loads(metadata[_KEY])
        files = tuple((str(one[0]), int(one[1]), int(one[2]), str(one[3])) for one in content["files"])
        names = ("model", "weight_dtype", "compute_dtype", "version")
        model, weights, compute, version = (str(content[name]) for name in names)
        sums = tuple((str(one[0]), str(one[1])) for one in content.get("sums", ()))
    except (KeyError, IndexError, ValueError, TypeError):
        return None
    return Origin(model, files, weights, compute, version, sums) if compute in _COMPUTE else None


def copy_sum(header: bytes, sums: Mapping[int, str]) -> str:
    """Return the checksum of a file with converted weights, whose tensors may be written in any order.

    Args:
        header: The header of the file, which has `NO_SUM` in place of this checksum.
        sums: The SHA-256 checksum of each tensor by its place in the file.
    """
    return sha256_of([header, *(f"{place} {sums[place]}\n".encode() for place in sorted(sums))])


def has_copy_sum(file: Path, checksum: str) -> bool:
    """Return whether a file with converted weights has the checksum that it contains.

    Raises:
        OSError: If it cannot be read.
        NotWeights: If it is not a safetensors file.
    """
    tensors, sums = read_safetensors(file).tensors.values(), dict[int, str]()
    with file.open("rb") as stream:
        size = stream.read(8)
        head = size + stream.read(int.from_bytes(size, "little"))
        for tensor in tensors:
            stream.seek(tensor.begin)
            if tensor.num_bytes:
                sums[tensor.begin] = sha256_of(_pieces(stream, tensor.num_bytes))
    return copy_sum(head.replace(checksum.encode(), NO_SUM.encode()), sums) == checksum


def _pieces(stream: BinaryIO, size: int) -> Iterator[bytes]:
    """Yield the next bytes of a file, a piece at a time, up to this many or to its end."""
    while size and (piece := stream.read(min(size, _PIECE_BYTES))):
        size -= len(piece)
        yield piece
