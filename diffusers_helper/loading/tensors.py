"""The tensors of files with weights in any format, mapped into memory as they are stored.

The kernel reads a mapped page when it is used, and may drop it at any time, since it cannot be written to.
"""

import ctypes
import math
import mmap
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from weakref import WeakSet

import gguf
import numpy as np
import torch
from diffusers.quantizers.gguf.utils import SUPPORTED_GGUF_QUANT_TYPES, GGUFParameter
from torch import Tensor

from diffusers_helper.weights.reading import read_contents
from diffusers_helper.weights.tensors import Contents, layout_problem

ROTATION = "weight_rotation"
# The maps of each file that tensors still refer to
MAPS = defaultdict[Path, WeakSet[mmap.mmap]](WeakSet)
# The types of GGUF that torch has, too.
_PLAIN = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def read_tensors(files: Sequence[Path]) -> dict[str, Tensor]:
    """Map the tensors of several files into memory, by name, or raise ValueError.

    Those that GGUF has quantised are diffusers' `GGUFParameter`. Beside a weight that ComfyUI has rotated,
    `ROTATION` has the size of the groups.
    """
    tensors: dict[str, Tensor] = {}
    for file in files:
        contents = read_contents(file)
        if problems := [*contents.problems, *([layout_problem(contents.layout)] if contents.layout else [])]:
            raise ValueError(f"{file.name} {problems[0]}")
        tensors |= (_read_gguf if contents.format == "gguf" else _read_plain)(file, contents)
    return tensors


def _mapped(file: Path) -> Tensor:
    """Map the bytes of a file, which may be larger than main memory, and cannot be written to.

    Linux has to be able to hold all pages of a private mapping that can be written to, and ROCm's driver
    copies such pages before it reads them: two seconds for each weight (safetensors issue 821).
    """
    with file.open("rb") as stream:
        pages = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    MAPS[file].add(pages)
    # Torch warns of a read-only buffer, so it gets one that does not say that it is read-only.
    buffer: Any = (ctypes.c_ubyte * len(pages)).from_address(np.frombuffer(pages, np.uint8).ctypes.data)
    buffer.pages = pages  # which stay mapped as long as torch keeps the buffer
    return torch.frombuffer(buffer, dtype=torch.uint8)


def _read_plain(file: Path, contents: Contents) -> dict[str, Tensor]:
    storage = _mapped(file)
    tensors = {f"{layer}.{ROTATION}": torch.tensor(size) for layer, size in contents.rotations.items()}
    for name, entry in contents.tensors.items():
        dtype = getattr(torch, entry.dtype)
        num_bytes = entry.num_bytes
        if entry.strides:
            dimensions = zip(entry.strides, entry.shape, strict=True)
            num_bytes = dtype.itemsize * (1 + sum(stride * (size - 1) for stride, size in dimensions))
        data = storage[entry.offset : entry.offset + num_bytes]
        if entry.offset % dtype.itemsize:
            data = data.clone()  # torch needs aligned values
        if entry.strides:
            tensors[name] = data.view(dtype).as_strided(entry.shape, entry.strides)
            continue
        # A value of torch may hold two values of the file.
        is_paired = num_bytes < math.prod(entry.shape) * dtype.itemsize
        shape = (*entry.shape[:-1], entry.shape[-1] // 2) if is_paired else entry.shape
        tensors[name] = data.view(dtype).view(shape)
    return tensors


def _read_gguf(file: Path, contents: Contents) -> dict[str, Tensor]:
    storage = _mapped(file)
    tensors = dict[str, Tensor]()
    for name, entry in contents.tensors.items():
        data = storage[entry.offset : entry.offset + entry.num_bytes]
        if entry.dtype in _PLAIN:
            tensors[name] = data.view(_PLAIN[entry.dtype]).view(entry.shape)
            continue
        quant_type = gguf.GGMLQuantizationType.__members__.get(entry.dtype)
        if quant_type not in SUPPORTED_GGUF_QUANT_TYPES:
            names = ", ".join(supported_type.name for supported_type in SUPPORTED_GGUF_QUANT_TYPES)
            raise ValueError(f"{file.name} contains {entry.dtype} ({name}); use a file with one of {names}")
        rows = data.view(*entry.shape[:-1], -1)
        tensors[name] = GGUFParameter(rows, quant_type=quant_type)  # type: ignore[call-arg] - its own __new__
    return tensors
