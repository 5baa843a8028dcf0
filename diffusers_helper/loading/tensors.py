"""The tensors of files with weights in any format, mapped into memory as they are stored.

The kernel reads a mapped page when it is used, and may drop it at any time, since it is never written to.
"""

from __future__ import annotations

import math
import mmap
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import torch
from diffusers.quantizers.gguf.utils import SUPPORTED_GGUF_QUANT_TYPES, GGUFParameter
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch._weights_only_unpickler import UnpicklingError

from diffusers_helper.weights.pickle_file import record_places
from diffusers_helper.weights.reading import read_contents
from diffusers_helper.weights.tensors import Contents

# Linux's flag for a mapping without a claim on main memory, which Python does not name.
_NO_RESERVE = 0x4000
_REPACKED = "{file} was packed again by another program; use the file as torch has written it"
# The types of GGUF that torch has, too.
_PLAIN = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def read_tensors(files: Sequence[Path]) -> dict[str, Tensor]:
    """Return the tensors of several files by name, mapped into memory.

    Those that GGUF has quantised are diffusers' `GGUFParameter`.

    Raises:
        OSError: If a file cannot be read.
        ValueError: If a file holds no weights, or weights that cannot be mapped.
    """
    tensors: dict[str, Tensor] = {}
    for file in files:
        contents = read_contents(file)
        if contents.problems:
            raise ValueError(f"{file.name} {contents.problems[0]}")
        tensors |= _READERS[contents.format](file, contents)
    return tensors


def _mapped(file: Path) -> Tensor:
    """Return the bytes of a file, which may be larger than main memory.

    Torch and safetensors map files in a way for which Linux wants to be able to hold all pages in memory, in
    case that they are written to. It refuses files that are larger than main memory then.
    """
    with file.open("rb") as stream:
        if sys.platform == "linux":
            flags, access = mmap.MAP_PRIVATE | _NO_RESERVE, mmap.PROT_READ | mmap.PROT_WRITE
            pages = mmap.mmap(stream.fileno(), 0, flags=flags, prot=access)
        else:
            pages = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY)
    return torch.frombuffer(pages, dtype=torch.uint8)


def _read_safetensors(file: Path, contents: Contents) -> dict[str, Tensor]:
    storage, tensors = _mapped(file), dict[str, Tensor]()
    for name, entry in contents.tensors.items():
        dtype = getattr(torch, entry.dtype)
        data = storage[entry.begin : entry.begin + entry.num_bytes]
        if entry.begin % dtype.itemsize:
            data = data.clone()  # torch needs aligned values
        # A value of torch may stand for two of the file.
        is_paired = entry.num_bytes < math.prod(entry.shape) * dtype.itemsize
        shape = (*entry.shape[:-1], entry.shape[-1] // 2) if is_paired else entry.shape
        tensors[name] = data.view(dtype).view(shape)
    return tensors


def _read_gguf(file: Path, contents: Contents) -> dict[str, Tensor]:
    storage, tensors = _mapped(file), dict[str, Tensor]()
    for name, entry in contents.tensors.items():
        data = storage[entry.begin : entry.begin + entry.num_bytes]
        if entry.dtype in _PLAIN:
            tensors[name] = data.view(_PLAIN[entry.dtype]).view(entry.shape)
            continue
        kind = gguf.GGMLQuantizationType.__members__.get(entry.dtype)
        if kind not in SUPPORTED_GGUF_QUANT_TYPES:
            known = ", ".join(one.name for one in SUPPORTED_GGUF_QUANT_TYPES)
            raise ValueError(f"{file.name} contains {entry.dtype} ({name}); use a file with one of {known}")
        rows = data.view(*entry.shape[:-1], -1)
        tensors[name] = GGUFParameter(rows, quant_type=kind)  # type: ignore[call-arg] - its own __new__
    return tensors


def _read_pickle(file: Path, contents: Contents) -> dict[str, Tensor]:
    try:
        # In this mode torch finds the places of the values without reading them.
        with warnings.catch_warnings(), FakeTensorMode():
            warnings.simplefilter("ignore")  # about types of storage that torch means to replace
            content: Any = torch.load(file, map_location="cpu", weights_only=True)
    except AssertionError as error:  # about the order of the records
        raise ValueError(_REPACKED.format(file=file.name)) from error
    except UnpicklingError as error:
        raise ValueError(
            f"{file.name} contains more than weights, which Longtake does not run; use a .safetensors file"
        ) from error
    is_wrapped = isinstance(content, Mapping) and isinstance(content.get("state_dict"), Mapping)
    found = _tensors_in(content["state_dict"] if is_wrapped else content, "")
    pages, places = _mapped(file), record_places(file)
    return {name: _placed(file, pages, places, fake) for name, fake in found}


def _placed(file: Path, pages: Tensor, places: Mapping[int, int], fake: Tensor) -> Tensor:
    """Return the tensor whose place in a file's bytes torch has found.

    Torch computes the places as it writes them, which is wrong for an archive that was packed again.
    """
    storage = fake.untyped_storage()
    begin = storage._checkpoint_offset
    if begin is None or places.get(begin, -1) < storage.nbytes():
        raise ValueError(_REPACKED.format(file=file.name))
    data = pages[begin : begin + storage.nbytes()]
    if begin % fake.dtype.itemsize:
        data = data.clone()  # torch needs aligned values
    values = data.view(fake.dtype)
    return values.as_strided(fake.shape, fake.stride(), values.storage_offset() + fake.storage_offset())


def _tensors_in(content: Any, prefix: str) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors in nested dictionaries, by their names joined with dots."""
    if isinstance(content, Tensor):
        yield prefix.removeprefix("."), content
    elif isinstance(content, Mapping):
        for name, value in content.items():
            yield from _tensors_in(value, f"{prefix}.{name}")


_READERS = {"safetensors": _read_safetensors, "gguf": _read_gguf, "pickle": _read_pickle}
