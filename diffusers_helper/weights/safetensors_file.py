"""The header of a safetensors file."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, cast

from diffusers_helper.strangers.limited_json import parse_json
from diffusers_helper.weights.tensors import (
    BITS,
    MOST_TENSORS,
    Contents,
    NotWeights,
    TensorInfo,
    check_name,
    check_unknown,
    count,
    cut_off,
    shape_of,
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
    with file.open("rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        start = stream.read(8)
        length = int.from_bytes(start, "little")
        if len(start) < 8 or size < 8 + length <= _MOST_HEADER_BYTES:
            raise NotWeights(cut_off(size))
        try:
            return _contents(_entries(stream, length), 8 + length, size)
        except ValueError as error:
            raise NotWeights(f"has a damaged header ({error}); download it again.") from error


def _entries(stream: BinaryIO, length: int) -> dict[str, Any]:
    """Return the entries of a header, in which all numbers are whole.

    Raises:
        ValueError: If it is not a header.
    """
    if length > _MOST_HEADER_BYTES:
        raise ValueError(f"a header of {length} bytes")
    content: Any = parse_json(stream.read(length), number=int)
    if not isinstance(content, dict):
        raise ValueError("a header that is not a JSON object")
    if len(cast(dict[str, Any], content)) > MOST_TENSORS:
        raise ValueError(f"more than {MOST_TENSORS} tensors")
    return cast(dict[str, Any], content)


def _contents(entries: dict[str, Any], begin: int, size: int) -> Contents:
    """Return the contents that the entries of a header describe.

    Args:
        begin: The number of bytes before the first tensor.

    Raises:
        ValueError: If an entry does not describe a tensor.
    """
    metadata: Any = entries.pop("__metadata__", {})
    tensors: dict[str, TensorInfo] = {}
    needed, unknown, damaged = begin, set[str](), list[str]()
    try:
        for name, entry in entries.items():
            kind, (first, end) = entry["dtype"], shape_of(entry.get("data_offsets", (0, 0)))
            dtype, shape, found = _NAMES.get(kind) or check_name(kind), shape_of(entry["shape"]), end - first
            tensors[check_name(name)] = TensorInfo(dtype, shape, found, begin + first)
            if begin + end > needed:  # faster than max(); a load waits for this
                needed = begin + end
            if kind not in _NAMES:
                unknown.add(dtype)
                check_unknown(unknown)
            elif found != (expected := count(shape) * BITS[dtype] // 8):
                damaged.append(f"tensor {name} has {found} bytes of {expected}")
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError("a header without the type and shape of each tensor") from error
    problems = [cut_off(size, needed)] if size < needed else []
    if size > needed:
        problems.append(f"has {size - needed} bytes after its last tensor; download it again.")
    if unknown:
        kinds = ", ".join(sorted(unknown))
        problems.append(f"has the types {kinds}, which are not known; use another file.")
    if damaged:
        problems.append(f"is damaged: {damaged[0]}; download it again.")
    return Contents("safetensors", tensors, _texts(metadata), tuple(problems))


def _texts(metadata: Any) -> dict[str, str]:
    """Return the texts of a header's metadata, which has nothing else."""
    if not isinstance(metadata, dict):
        return {}
    entries = cast(dict[str, Any], metadata).items()
    return {name: text for name, text in entries if isinstance(text, str)}
