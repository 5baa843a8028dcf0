"""The header of a GGUF file, versions 2 and 3: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import BinaryIO

from diffusers_helper.models.formats.tensors import Contents, NotWeights, Tensor, count, cut_off

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
_MOST_TENSORS, _MOST_TEXT = 1_000_000, 64 * 1024**2
_ALIGNMENT = 32


def bytes_per_value(kind: str) -> float:
    """Return the bytes that a value takes in a type that is stored in blocks."""
    block, size = next((block, size) for name, block, size in _TYPES.values() if name == kind)
    return size / block


class _Reader:
    """A reader of the values of a GGUF header, one after the other."""

    def __init__(self, stream: BinaryIO, size: int) -> None:
        self._stream, self._size = stream, size

    def number(self, kind: str) -> int | float:
        length = struct.calcsize(kind)
        data = self._take(length)
        return struct.unpack(f"<{kind}", data)[0]

    def whole(self, kind: str, most: int) -> int:
        value = int(self.number(kind))
        if value > most:
            raise NotWeights(f"has a damaged GGUF header (a count of {value}); download it again.")
        return value

    def text(self) -> str:
        return self._take(self.whole("Q", _MOST_TEXT)).decode("utf-8", "replace")

    def value(self, kind: int) -> str:
        """Return one value of the metadata as text. For a list, return its length."""
        if kind == _TEXT:
            return self.text()
        if kind == _LIST:
            inner, length = self.whole("I", _MOST_TEXT), self.whole("Q", _MOST_TEXT)
            if inner in _KINDS:
                self._take(length * struct.calcsize(_KINDS[inner]))
            else:
                for _ in range(length):
                    self.value(inner)
            return f"{length} values"
        if kind not in _KINDS:
            raise NotWeights(f"has a damaged GGUF header (metadata of kind {kind}); download it again.")
        return str(self.number(_KINDS[kind]))

    def place(self) -> int:
        return self._stream.tell()

    def _take(self, length: int) -> bytes:
        data = self._stream.read(length) if length <= self._size else b""
        if len(data) < length:
            raise NotWeights(cut_off(self._size))
        return data


def read_gguf(file: Path) -> Contents:
    """Return the contents of a GGUF file, with shapes in torch's order of dimensions.

    Raises:
        OSError: If the file cannot be read.
        NotWeights: If its header is damaged or incomplete.
    """
    size = file.stat().st_size
    with file.open("rb") as stream:
        reader = _Reader(stream, size)
        stream.seek(4)
        version = reader.number("I")
        if version not in (2, 3):
            raise NotWeights(f"has GGUF version {version}, which is not 2 or 3; use a newer file.")
        tensor_count, value_count = reader.whole("Q", _MOST_TENSORS), reader.whole("Q", _MOST_TENSORS)
        metadata: dict[str, str] = {}
        for _ in range(value_count):
            name = reader.text()
            metadata[name] = reader.value(reader.whole("I", _MOST_TEXT))
        tensors: dict[str, Tensor] = {}
        unknown: set[int] = set()
        end = 0
        for _ in range(tensor_count):
            name = reader.text()
            sides = tuple(int(reader.number("Q")) for _ in range(reader.whole("I", 8)))
            kind, offset = reader.whole("I", _MOST_TEXT), int(reader.number("Q"))
            dtype, block, block_bytes = _TYPES.get(kind, (f"type {kind}", 1, 0))
            num_bytes = count(sides) // block * block_bytes
            tensors[name] = Tensor(dtype, sides[::-1], num_bytes, offset)
            end = max(end, offset + num_bytes)
            unknown |= set() if kind in _TYPES else {kind}
        alignment = int(metadata.get("general.alignment", _ALIGNMENT)) or _ALIGNMENT
        begin = -(-reader.place() // alignment) * alignment
        tensors = {name: tensor._replace(begin=begin + tensor.begin) for name, tensor in tensors.items()}
        needed = begin + end
    problems = [cut_off(size, needed)] if size < needed else []
    if unknown:
        kinds = ", ".join(map(str, sorted(unknown)))
        problems.append(f"has the GGUF types {kinds}, which are not known; use a file of another type.")
    return Contents("gguf", tensors, metadata, tuple(problems))
