"""The list of a file's tensors, in one form for all formats."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, cast

Format = Literal["safetensors", "gguf", "pickle", "diffusers"]
MAX_DIMENSIONS, _MAX_SIZE = 16, 2**48  # far more than any model has
_MAX_UNKNOWN_TYPES = 8


class NotWeights(ValueError):
    """The error for a file without weights, as the end of a sentence that begins with the file's name."""


class TensorInfo(NamedTuple):  # a tuple is made in half the time of a frozen dataclass
    """A tensor without its values, whose `dtype` is torch's name or GGUF's; no `strides` if it is dense."""

    dtype: str
    shape: tuple[int, ...]
    num_bytes: int
    offset: int = 0
    strides: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Contents:
    """The contents of a file with weights; problems are ends of sentences after the file's name.

    `rotations` are the sizes of the groups in which the weights of layers are rotated.
    """

    format: Format
    tensors: Mapping[str, TensorInfo]
    metadata: Mapping[str, str] = field(default_factory=dict[str, str])
    problems: tuple[str, ...] = ()
    rotations: Mapping[str, int] = field(default_factory=dict[str, int])
    layout: str = ""


# The bits of a value, by the name of the type in torch.
BITS = {
    "complex128": 128, "complex64": 64, "float64": 64, "int64": 64, "uint64": 64, "float32": 32, "int32": 32,
    "uint32": 32, "float16": 16, "bfloat16": 16, "int16": 16, "uint16": 16, "float8_e4m3fn": 8,
    "float8_e4m3fnuz": 8, "float8_e5m2": 8, "float8_e5m2fnuz": 8, "float8_e8m0fnu": 8, "int8": 8, "uint8": 8,
    "bool": 8, "float4_e2m1fn_x2": 4,
}  # fmt: skip


def shape_of(sizes: Any) -> tuple[int, ...]:
    if not isinstance(sizes, list | tuple) or len(cast(list[Any], sizes)) > MAX_DIMENSIONS:
        raise ValueError("a shape that no tensor has")
    shape = tuple(cast(list[Any], sizes))
    if not all(type(size) is int and 0 <= size < _MAX_SIZE for size in shape):  # True is no size
        raise ValueError("a shape that no tensor has")
    return shape


def unknown_types(dtypes: Iterable[str], label: str = "") -> list[str]:
    unknown = sorted({*dtypes})
    if len(unknown) > _MAX_UNKNOWN_TYPES:
        raise NotWeights(f"has {len(unknown)} {label}types that are not known; use another file.")
    names = ", ".join(unknown)
    return [f"has the {label}types {names}, which are not known; use another file."] if names else []


def layout_problem(layout: str) -> str:
    return (
        f"has weights in the layout {layout}, which only ComfyUI reads; use one in 16 bit, fp8, int8 or GGUF."
    )


def truncation_problem(size: int, expected_bytes: int | None = None) -> str:
    """Say that a file is shorter than its header says, or ends in it (None), as the end of a sentence."""
    problem = (
        f"ends within its header, after {size} bytes"
        if expected_bytes is None
        else f"has {size} bytes of {expected_bytes}"
    )
    return f"is incomplete: it {problem}; download it again."
