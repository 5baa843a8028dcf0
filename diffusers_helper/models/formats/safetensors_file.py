"""The header of a safetensors file."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from diffusers_helper.models.formats.tensors import BITS, Contents, NotWeights, Tensor, count, cut_off

_MOST_HEADER_BYTES = 100_000_000
_NAMES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32",
    "I16": "int16", "I8": "int8", "U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8",
    "BOOL": "bool", "C64": "complex64", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu", "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F4": "float4_e2m1fn_x2",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor of a safetensors file, without its values.

    Attributes:
        begin, end: The range of its bytes, counted from the end of the header.
    """

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def count(self) -> int:
        """Return the number of values."""
        return count(self.shape)


@dataclass(frozen=True, slots=True)
class Header:
    """The header of a safetensors file.

    Attributes:
        tensors: The tensors by name.
        metadata: The metadata of the file's author.
        num_bytes: The number of bytes before the first tensor.
    """

    tensors: Mapping[str, Entry]
    metadata: Mapping[str, str]
    num_bytes: int


def read_header(file: Path) -> Header:
    """Return the header of a safetensors file.

    Raises:
        OSError: If the file cannot be read.
        ValueError, struct.error: If it is not a safetensors file.
    """
    with file.open("rb") as stream:
        (length,) = struct.unpack("<Q", stream.read(8))
        if length > _MOST_HEADER_BYTES:
            raise ValueError(f"a header of {length} bytes")
        content: Any = json.loads(stream.read(length))
    if not isinstance(content, dict):
        raise ValueError("a header that is not a JSON object")
    entries = cast(dict[str, Any], content)
    metadata: Any = entries.pop("__metadata__", {})
    try:
        tensors = {
            name: Entry(str(entry["dtype"]), tuple(map(int, entry["shape"])), *_place(entry))
            for name, entry in entries.items()
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError("a header without the type and shape of each tensor") from error
    return Header(tensors, cast(dict[str, str], metadata) if isinstance(metadata, dict) else {}, 8 + length)


def _place(entry: Mapping[str, Any]) -> tuple[int, int]:
    begin, end = entry.get("data_offsets", (0, 0))
    return int(begin), int(end)


def make_header(
    tensors: Mapping[str, tuple[str, tuple[int, ...]]], metadata: Mapping[str, str]
) -> tuple[bytes, dict[str, int], int]:
    """Return the header of a new file, the place of each tensor in it, and the size of the whole file.

    Args:
        tensors: The type, by torch's name, and the shape of each tensor.
        metadata: The metadata.
    """
    types = {name: short for short, name in _NAMES.items()}
    entries: dict[str, Any] = {"__metadata__": dict(metadata)}
    places: dict[str, int] = {}
    end = 0
    # The widest types come first, so that each tensor is aligned to its type.
    for name, (dtype, shape) in sorted(tensors.items(), key=lambda one: -BITS[one[1][0]]):
        begin, end = end, end + count(shape) * BITS[dtype] // 8
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
    size = file.stat().st_size
    try:
        header = read_header(file)
    except (ValueError, struct.error) as error:
        with file.open("rb") as stream:
            start = stream.read(8)
        length = int.from_bytes(start, "little")
        if len(start) < 8 or size < 8 + length <= _MOST_HEADER_BYTES:
            raise NotWeights(cut_off(size, 8 + max(length, 2))) from error
        raise NotWeights(f"has a damaged header ({error}); download it again.") from error
    tensors = {
        name: Tensor(_NAMES.get(entry.dtype, entry.dtype), entry.shape, entry.end - entry.begin)
        for name, entry in header.tensors.items()
    }
    return Contents("safetensors", tensors, header.metadata, tuple(_problems(header, size)))


def _problems(header: Header, size: int) -> Iterable[str]:
    needed = header.num_bytes + max((entry.end for entry in header.tensors.values()), default=0)
    if size < needed:
        yield cut_off(size, needed)
    elif size > needed:
        yield f"has {size - needed} bytes after its last tensor; download it again."
    unknown = sorted({entry.dtype for entry in header.tensors.values()} - set(_NAMES))
    if unknown:
        yield f"has the types {', '.join(unknown)}, which are not known; use another file."
    for name, entry in header.tensors.items():
        expected = entry.count * BITS.get(_NAMES.get(entry.dtype, ""), 0) // 8
        if expected and entry.end - entry.begin != expected:
            yield (
                f"is damaged: tensor {name} has {entry.end - entry.begin} bytes of {expected}; "
                "download it again."
            )
            return
