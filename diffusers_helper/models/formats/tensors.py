"""The tensors of a file with weights as its header lists them, in one form for all formats."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Format = Literal["safetensors", "gguf", "pickle", "diffusers"]


class NotWeights(ValueError):
    """A file that holds no weights, or that was cut off before the list of its tensors ends.

    The text is the end of a sentence that begins with the file's name.
    """


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor, without its values.

    Attributes:
        dtype: The type by torch's name, or by GGUF's for its blocks.
        begin: The place of its bytes in a GGUF file; 0 in other formats.
    """

    dtype: str
    shape: tuple[int, ...]
    num_bytes: int
    begin: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Contents:
    """The contents of a file with weights.

    Attributes:
        metadata: What the file's author has noted.
        problems: What is wrong with the file; each is the end of a sentence that begins with the file's name.
    """

    format: Format
    tensors: Mapping[str, Tensor]
    metadata: Mapping[str, str] = field(default_factory=dict[str, str])
    problems: tuple[str, ...] = ()


# Bits of one value, by torch's name of the type.
BITS = {
    "complex128": 128, "complex64": 64, "float64": 64, "int64": 64, "uint64": 64, "float32": 32, "int32": 32,
    "uint32": 32, "float16": 16, "bfloat16": 16, "int16": 16, "uint16": 16, "float8_e4m3fn": 8,
    "float8_e4m3fnuz": 8, "float8_e5m2": 8, "float8_e5m2fnuz": 8, "float8_e8m0fnu": 8, "int8": 8, "uint8": 8,
    "bool": 8, "float4_e2m1fn_x2": 4,
}  # fmt: skip


def count(shape: tuple[int, ...]) -> int:
    """Return the number of values in a tensor of this shape."""
    return math.prod(shape)


def cut_off(size: int, needed: int) -> str:
    """Return the sentence's end for a file that is shorter than its header says."""
    return f"is incomplete: it has {size} bytes of {needed}; download it again."
