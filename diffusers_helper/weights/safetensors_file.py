"""The header of a safetensors file, and the origin of converted weights, which its metadata contain."""

import json
import math
import os
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

from diffusers_helper.files import sha256_of
from diffusers_helper.untrusted.limited_json import parse_json
from diffusers_helper.weights.comfy_layouts import layouts_in
from diffusers_helper.weights.tensors import (
    BITS,
    Contents,
    NotWeights,
    TensorInfo,
    shape_of,
    truncation_problem,
    unknown_types,
)

_MAX_HEADER_BYTES = 24 * 2**20  # those of known models have less than 1 MB
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
    """Make a new file's header, the offset of each tensor in the file, and the file's size.

    `tensors` has the type, by torch's name, and the shape of each.
    """
    codes = {name: code for code, name in _NAMES.items()}
    entries: dict[str, Any] = {"__metadata__": dict(metadata)}
    offsets: dict[str, int] = {}
    end = 0
    # The widest types come first, so that each tensor is aligned to its type.
    for name, (dtype, shape) in sorted(tensors.items(), key=lambda item: -BITS[item[1][0]]):
        start, end = end, end + math.prod(shape) * BITS[dtype] // 8
        entries[name] = {"dtype": codes[dtype], "shape": list(shape), "data_offsets": [start, end]}
        offsets[name] = start
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    header = struct.pack("<Q", len(text)) + text
    return header, {name: len(header) + start for name, start in offsets.items()}, len(header) + end


def read_safetensors(file: Path) -> Contents:
    with file.open("rb") as stream:
        file_bytes = os.fstat(stream.fileno()).st_size
        start = stream.read(8)
        length = int.from_bytes(start, "little")
        if len(start) < 8 or file_bytes < 8 + length:
            raise NotWeights(truncation_problem(file_bytes))
        try:
            if length > _MAX_HEADER_BYTES:
                raise ValueError(f"a header of {length} bytes")
            contents = _contents(parse_json(stream.read(length), parse_number=int), 8 + length, file_bytes)
            rotations, layout = layouts_in(stream, contents.tensors, contents.metadata)
            return replace(contents, rotations=rotations, layout=layout)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise NotWeights("has a damaged header; download it again.") from error


def _contents(entries: dict[str, Any], data_offset: int, file_bytes: int) -> Contents:
    metadata: Any = entries.pop("__metadata__", {})
    tensors: dict[str, TensorInfo] = {}
    expected_bytes = data_offset
    unknown_dtypes = list[str]()
    damaged = list[str]()
    for name, entry in entries.items():
        code: str = entry["dtype"]
        start, end = shape_of(entry.get("data_offsets", (0, 0)))
        dtype = _NAMES.get(code, code[:99])
        shape = shape_of(entry["shape"])
        size = end - start
        tensors[name] = TensorInfo(dtype, shape, size, data_offset + start)
        if data_offset + end > expected_bytes:  # faster than max(); a load waits for this
            expected_bytes = data_offset + end
        if code not in _NAMES:
            unknown_dtypes.append(dtype)
        elif size != (expected := math.prod(shape) * BITS[dtype] // 8):
            damaged.append(f"is damaged: tensor {name} has {size} bytes of {expected}; download it again.")
    problems = [truncation_problem(file_bytes, expected_bytes)] if file_bytes < expected_bytes else []
    if file_bytes > expected_bytes:
        problems.append(f"has {file_bytes - expected_bytes} bytes after its last tensor; download it again.")
    problems += [*unknown_types(unknown_dtypes), *damaged[:1]]
    texts = {name: text for name, text in metadata.items() if isinstance(text, str)}
    return Contents("safetensors", tensors, texts, tuple(problems))


_KEY = "longtake"
_COMPUTE = ("float32", "float16", "bfloat16")
_SHA256_LENGTH = 64  # the length of a SHA-256 checksum, by which the hub's cache names its files
NO_SUM = "0" * _SHA256_LENGTH
_PIECE_BYTES = 1024**2


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of converted weights: its files, each with size, time of change in nanoseconds and checksum.

    The copy's files have sums: that of `copy_sum` for the weights, and SHA-256 for others; none in old
    copies.
    """

    model: str
    files: tuple[tuple[str, int, int, str], ...]
    weight_dtype: str
    compute_dtype: str
    version: str
    sums: tuple[tuple[str, str], ...] = ()

    def metadata(self) -> dict[str, str]:
        return {"format": "pt", _KEY: json.dumps(asdict(self))}

    def is_same(self, other: "Origin | None") -> bool:
        return other is not None and (self.files, self.weight_dtype) == (other.files, other.weight_dtype)


def files_of_origin(files: Iterable[Path]) -> tuple[tuple[str, int, int, str], ...]:
    facts: list[tuple[str, int, int, str]] = []
    for file in files:
        status = file.stat()
        target = file.resolve().name
        is_sum = target != file.name and len(target) == _SHA256_LENGTH
        facts.append((file.name, status.st_size, status.st_mtime_ns, target if is_sum else ""))
    return tuple(facts)


def origin_in(metadata: Mapping[str, str]) -> Origin | None:
    try:
        content: Any = json.loads(metadata[_KEY])
        files = tuple((str(fact[0]), int(fact[1]), int(fact[2]), str(fact[3])) for fact in content["files"])
        names = ("model", "weight_dtype", "compute_dtype", "version")
        model, weight_dtype, compute_dtype, version = (str(content[name]) for name in names)
        sums = tuple((str(fact[0]), str(fact[1])) for fact in content.get("sums", ()))
    except (KeyError, IndexError, ValueError, TypeError):
        return None
    if compute_dtype not in _COMPUTE:
        return None
    return Origin(model, files, weight_dtype, compute_dtype, version, sums)


def copy_sum(header: bytes, sums: Mapping[int, str]) -> str:
    """Compute the checksum of a file with converted weights, whose tensors may be written in any order.

    `header` has `NO_SUM` in its place; `sums` are the tensors' SHA-256 checksums by offset.
    """
    return sha256_of([header, *(f"{offset} {sums[offset]}\n".encode() for offset in sorted(sums))])


def has_copy_sum(file: Path, checksum: str) -> bool:
    sums = dict[int, str]()
    with file.open("rb") as stream:
        size = stream.read(8)
        header = size + stream.read(int.from_bytes(size, "little"))
        for tensor in read_safetensors(file).tensors.values():
            stream.seek(tensor.offset)
            if tensor.num_bytes:
                sums[tensor.offset] = sha256_of(_pieces(stream, tensor.num_bytes))
    return copy_sum(header.replace(checksum.encode(), NO_SUM.encode()), sums) == checksum


def _pieces(stream: BinaryIO, size: int) -> Iterator[bytes]:
    while size and (piece := stream.read(min(size, _PIECE_BYTES))):
        size -= len(piece)
        yield piece
