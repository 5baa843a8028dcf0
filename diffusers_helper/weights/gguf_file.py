"""The header of a GGUF file, versions 2 and 3: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.

gguf's own reader is not used: it makes an array for each value before any size is checked, so a list that
claims 2**60 numbers keeps it busy forever, and it recurses as deeply as lists are nested.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from diffusers_helper.errors import short_repr
from diffusers_helper.weights.tensors import (
    MOST_SIDES,
    MOST_TENSORS,
    Contents,
    NotWeights,
    TensorInfo,
    check_name,
    check_unknown,
    cut_off,
    shape_of,
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
# The types that diffusers can take apart, from the largest to the smallest.
LOADABLE = (
    "Q8_0", "Q6_K", "Q5_1", "Q5_0", "Q5_K", "Q4_1", "Q4_0", "Q4_K", "IQ4_NL", "IQ4_XS", "Q3_K", "Q2_K",
)  # fmt: skip
# The kinds of metadata by their numbers, as formats of `struct`; 8 is a text, and 9 is a list.
_KINDS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_TEXT, _LIST = 8, 9
# The bytes of a header and the values in it. The vocabularies in the largest known ones have 20 MB.
_MOST_HEADER, _MOST_VALUES = 64 * 2**20, 1_500_000
_MOST_DEPTH = 4
_KEPT_LETTERS = 1000  # of each text in the metadata
_ALIGNMENT, _MOST_ALIGNMENT = 32, 2**20


def bytes_per_value(kind: str) -> float:
    """Return the bytes that a value takes in a type that is stored in blocks."""
    block, size = next((block, size) for name, block, size in _TYPES.values() if name == kind)
    return size / block


class _Reader:
    """A reader of the values of a GGUF header, one after the other.

    Attributes:
        place: The number of bytes before the next value.
    """

    def __init__(self, stream: BinaryIO, size: int) -> None:
        self._stream, self._size = stream, size
        self.place, self._values = stream.tell(), 0

    def number(self, kind: str) -> int | float:
        return struct.unpack(f"<{kind}", self._take(struct.calcsize(kind)))[0]

    def whole(self, kind: str, most: int) -> int:
        value = int(self.number(kind))
        if value > most:
            raise _damaged(f"a count of {value}")
        return value

    def text(self) -> str:
        return self._take(self.whole("Q", _MOST_HEADER)).decode("utf-8", "replace")

    def value(self, kind: int, depth: int = 0) -> str:
        """Return one value of the metadata as text. For a list, return its length."""
        self._values += 1
        if self._values > _MOST_VALUES:
            raise _damaged(f"more than {_MOST_VALUES} values")
        if kind == _TEXT:
            return self.text()[:_KEPT_LETTERS]
        if kind == _LIST:
            inner, length = self.whole("I", _MOST_HEADER), self.whole("Q", _MOST_HEADER)
            if depth == _MOST_DEPTH:
                raise _damaged(f"lists more than {_MOST_DEPTH} deep")
            if inner in _KINDS:
                self._skip(length * struct.calcsize(_KINDS[inner]))
            else:
                for _ in range(length):
                    self.value(inner, depth + 1)
            return f"{length} values"
        if kind not in _KINDS:
            raise _damaged(f"metadata of kind {kind}")
        return str(self.number(_KINDS[kind]))

    def _take(self, length: int) -> bytes:
        self._move(length)
        data = self._stream.read(length)
        if len(data) < length:
            raise NotWeights(cut_off(self._size))
        return data

    def _skip(self, length: int) -> None:
        self._move(length)
        self._stream.seek(self.place)

    def _move(self, length: int) -> None:
        self.place += length
        if self.place > self._size:
            raise NotWeights(cut_off(self._size))
        if self.place > _MOST_HEADER:
            raise _damaged(f"more than {_MOST_HEADER} bytes")


def _damaged(what: str) -> NotWeights:
    """Return the error for a header that no program has written."""
    return NotWeights(f"has a damaged GGUF header ({what}); download it again.")


def read_gguf(file: Path) -> Contents:
    """Return the contents of a GGUF file, with shapes in torch's order of dimensions.

    Raises:
        OSError: If the file cannot be read.
        NotWeights: If its header is damaged or incomplete.
    """
    size = file.stat().st_size
    with file.open("rb") as stream:
        stream.seek(4)
        reader = _Reader(stream, size)
        version = reader.number("I")
        if version not in (2, 3):
            raise NotWeights(f"has GGUF version {version}, which is not 2 or 3; use a newer file.")
        tensor_count, value_count = reader.whole("Q", MOST_TENSORS), reader.whole("Q", MOST_TENSORS)
        metadata: dict[str, str] = {}
        try:
            for _ in range(value_count):
                name = check_name(reader.text())
                metadata[name] = reader.value(reader.whole("I", _MOST_HEADER))
            tensors, unknown = _tensors(reader, tensor_count)
        except ValueError as error:
            raise error if isinstance(error, NotWeights) else _damaged(str(error)) from error
        alignment = _alignment(metadata)
        begin = -(-reader.place // alignment) * alignment
        tensors = {name: tensor._replace(begin=begin + tensor.begin) for name, tensor in tensors.items()}
        needed = max((one.begin + one.num_bytes for one in tensors.values()), default=begin)
    problems = [cut_off(size, needed)] if size < needed else []
    if unknown:
        kinds = ", ".join(map(str, sorted(unknown)))
        problems.append(f"has the GGUF types {kinds}, which are not known; use a file of another type.")
    return Contents("gguf", tensors, metadata, tuple(problems))


def _tensors(reader: _Reader, number: int) -> tuple[dict[str, TensorInfo], set[int]]:
    """Return the next tensors, each with its place behind the header, and the types that are not known.

    Raises:
        ValueError: If one cannot be a tensor.
    """
    tensors: dict[str, TensorInfo] = {}
    unknown: set[int] = set()
    for _ in range(number):
        name = check_name(reader.text())
        sides = shape_of([reader.number("Q") for _ in range(reader.whole("I", MOST_SIDES))])
        kind, offset = int(reader.number("I")), int(reader.number("Q"))
        dtype, block, block_bytes = _TYPES.get(kind, (f"type {kind}", 1, 0))
        tensors[name] = TensorInfo(dtype, sides[::-1], math.prod(sides) // block * block_bytes, offset)
        if kind not in _TYPES:
            unknown.add(kind)
            check_unknown(unknown)
    return tensors, unknown


def _alignment(metadata: Mapping[str, str]) -> int:
    text = metadata.get("general.alignment", str(_ALIGNMENT))
    alignment = int(text) if re.fullmatch(r"[0-9]{1,7}", text) else -1
    if not 0 <= alignment <= _MOST_ALIGNMENT:
        raise _damaged(f"an alignment of {short_repr(text)}")
    return alignment or _ALIGNMENT
