"""The header of a GGUF file, versions 2 and 3: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.

gguf's own reader is not used: it takes 7.5 s and 0.6 GB for the vocabulary of Llama, instead of 0.25 s.
"""

import math
import os
import struct
from pathlib import Path
from typing import BinaryIO

from diffusers_helper.weights.tensors import (
    MAX_DIMENSIONS,
    Contents,
    NotWeights,
    TensorInfo,
    shape_of,
    truncation_problem,
    unknown_types,
)

# The name, the values per block and the bytes per block of each type.
_TYPES: dict[int, tuple[str, int, int]] = {
    0: ("float32", 1, 4), 1: ("float16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22), 7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34), 9: ("Q8_1", 32, 36),
    10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110), 12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292), 16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98), 19: ("IQ1_S", 256, 50), 20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82), 23: ("IQ4_XS", 256, 136), 24: ("int8", 1, 1), 25: ("int16", 1, 2),
    26: ("int32", 1, 4), 27: ("int64", 1, 8), 28: ("float64", 1, 8), 29: ("IQ1_M", 256, 56),
    30: ("bfloat16", 1, 2), 34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66), 39: ("MXFP4", 32, 17),
}  # fmt: skip
# The types that diffusers can dequantise, from the largest to the smallest
LOADABLE = (
    "Q8_0", "Q6_K", "Q5_1", "Q5_0", "Q5_K", "Q4_1", "Q4_0", "Q4_K", "IQ4_NL", "IQ4_XS", "Q3_K", "Q2_K",
)  # fmt: skip
# The kinds of metadata by their numbers, as formats of `struct`; 8 is a text, and 9 is a list.
_KINDS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_TEXT, _LIST = 8, 9
_ALIGNMENT = 32
_MAX_HEADER_BYTES = 64 * 2**20  # and thus the limit of any count in it; known headers have up to 20 MB


def bytes_per_value(kind: str) -> float:
    block, size = next((block, size) for name, block, size in _TYPES.values() if name == kind)
    return size / block


class _Reader:
    def __init__(self, stream: BinaryIO, size: int) -> None:
        self._stream = stream
        self._size = size

    def number(self, kind: str) -> int | float:
        if self._stream.tell() > _MAX_HEADER_BYTES:
            raise ValueError("a header without an end")
        return struct.unpack(f"<{kind}", self._stream.read(struct.calcsize(kind)))[0]

    def integer(self, kind: str = "Q") -> int:
        return int(self.number(kind))

    def count(self, kind: str = "Q", maximum: int = _MAX_HEADER_BYTES) -> int:
        """Read a count; ValueError or struct.error if there cannot be so many in this file."""
        if (value := self.integer(kind)) > maximum:
            raise ValueError(f"a count of {value}")
        if value > self._size:
            raise struct.error
        return value

    def text(self) -> str:
        length = self.count()
        data = self._stream.read(length)
        if len(data) < length:
            raise struct.error
        return data.decode("utf-8", "replace")

    def value(self, kind: int) -> str:
        if kind == _TEXT:
            return self.text()
        if kind != _LIST:
            return str(self.number(_KINDS[kind]))
        inner = self.integer("I")
        length = self.count()
        if inner in _KINDS:
            self._stream.seek(length * struct.calcsize(_KINDS[inner]), os.SEEK_CUR)
        else:
            for _ in range(length):
                self.value(inner)
        return f"{length} values"


def read_gguf(file: Path) -> Contents:
    """Read a GGUF file's contents, with shapes in torch's order. NotWeights if the header is damaged."""
    file_bytes = file.stat().st_size
    with file.open("rb") as stream:
        stream.seek(4)
        reader = _Reader(stream, file_bytes)
        try:
            version, tensor_count, value_count = reader.number("I"), reader.count(), reader.count()
            if version not in (2, 3):
                raise NotWeights(f"has GGUF version {version}, which is not 2 or 3; use a newer file.")
            metadata = {reader.text(): reader.value(reader.integer("I")) for _ in range(value_count)}
            listed = dict(_tensor(reader) for _ in range(tensor_count))
            alignment = abs(int(metadata.get("general.alignment", _ALIGNMENT))) or _ALIGNMENT
            data_offset = -(-stream.tell() // alignment) * alignment
        except struct.error as error:
            raise NotWeights(truncation_problem(file_bytes)) from error
        except (ValueError, LookupError, RecursionError) as error:
            if isinstance(error, NotWeights):
                raise
            raise NotWeights("has a damaged GGUF header; download it again.") from error
    tensors = {name: tensor._replace(offset=data_offset + tensor.offset) for name, tensor in listed.items()}
    needed_bytes = max((tensor.offset + tensor.num_bytes for tensor in tensors.values()), default=data_offset)
    problems = [truncation_problem(file_bytes, needed_bytes)] if file_bytes < needed_bytes else []
    unknown = {tensor.dtype for tensor in tensors.values()} - {name for name, *_ in _TYPES.values()}
    problems += unknown_types(unknown, "GGUF ")
    return Contents("gguf", tensors, metadata, tuple(problems))


def _tensor(reader: _Reader) -> tuple[str, TensorInfo]:
    name = reader.text()
    sizes = shape_of([reader.integer() for _ in range(reader.count("I", MAX_DIMENSIONS))])
    type_id, offset = reader.integer("I"), reader.integer()
    dtype, block_values, block_bytes = _TYPES.get(type_id, (str(type_id), 1, 0))
    return name, TensorInfo(dtype, sizes[::-1], math.prod(sizes) // block_values * block_bytes, offset)
