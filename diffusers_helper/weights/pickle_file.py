"""The list of tensors in a `.pt`, `.ckpt` or `.bin` file: a ZIP archive with a pickle, and records of values.

Python's unpickler calls the functions that a pickle names. Here each call becomes a stand-in, which keeps the
arguments, from which the tensors are read.
"""

import itertools
import math
import pickle
import re
import struct
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from io import BytesIO, FileIO
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, NamedTuple, cast

from diffusers_helper.weights.tensors import (
    BITS,
    Contents,
    NotWeights,
    TensorInfo,
    shape_of,
    unknown_types,
)

_REMEDY = "download it again."
# The limits of the list of tensors, of its entries, and of a name. Known files have at most a tenth of them.
_MAX_BYTES, _MAX_ENTRIES, _MAX_NAME_LENGTH = 8 * 2**20, 500_000, 500
# The header before each record of a ZIP archive, which ends with the lengths of a name and of extra bytes.
_LOCAL_HEADER = struct.Struct("<4s5H3L2H")
_STORAGES = {
    "Double": "float64", "Float": "float32", "Half": "float16", "BFloat16": "bfloat16", "Long": "int64",
    "Int": "int32", "Short": "int16", "Char": "int8", "Byte": "uint8", "Bool": "bool",
    "ComplexFloat": "complex64", "ComplexDouble": "complex128", "Untyped": "uint8",
}  # fmt: skip
# The functions and classes of weights, and those that old checkpoints of Stable Diffusion name beside them
_HARMLESS = re.compile(
    r"torch\.(?:(?:storage\.)?\w+Storage|_utils\._rebuild_\w+|nn\.parameter\.Parameter|Tensor|Size|device)"
    rf"|torch\.(?:{'|'.join(BITS)}|serialization\._get_layout)|collections\.OrderedDict|_codecs\.encode"
    r"|numpy\.(?:_?core\.multiarray\.scalar|dtype)"
    r"|pytorch_lightning\.callbacks\.model_checkpoint\.ModelCheckpoint"
)
# The exceptions of zipfile and pickle for damaged files, of which only a few are documented
_DAMAGE_ERRORS = (
    zipfile.BadZipFile, pickle.UnpicklingError, struct.error, EOFError, RuntimeError, ValueError, TypeError,
    LookupError, AttributeError, OverflowError,
)  # fmt: skip


@dataclass(frozen=True, eq=False, slots=True)
class _Name:
    path: str


class _Table(dict[Any, Any]):
    """A dict whose keys are plain values. A few bytes can describe a tuple whose hash takes forever."""

    def __setitem__(self, key: Any, value: Any, /) -> None:
        if not isinstance(key, str | int | float | bytes | _Name | None):
            raise ValueError("a key that is no plain value")
        super().__setitem__(key, value)


class _StandIn(_Table):
    """The result of a call that is not carried out. It may be filled as a dict."""

    def __init__(self, function: _Name, arguments: tuple[Any, ...]) -> None:
        super().__init__()
        self.path = function.path
        self.arguments = arguments


class _Storage(NamedTuple):
    dtype: str
    key: str


class _Stream(FileIO):
    """A file that is not read in large pieces, as sizes in it may ask for."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size and size > _MAX_BYTES:
            raise ValueError(f"a piece of {size} bytes")
        return super().read(size)


_Python: Any = pickle._Unpickler  # pyright: ignore[reportPrivateUsage]


class _Unpickler(_Python):
    """Python's own unpickler, which calls nothing here, and changes nothing but lists and tables."""

    stack: list[Any]

    def __init__(self, stream: BinaryIO) -> None:
        _Python.__init__(self, stream)
        self.names: dict[str, _Name] = {}

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        path = _checked_name(f"{module_name}.{global_name}")
        return self.names.setdefault(path, _Name(path))

    def persistent_load(self, pid: Any, /) -> Any:
        kind, key = pid[1:3]
        name: str = kind.path.rpartition(".")[2].removesuffix("Storage")
        return _Storage(_STORAGES.get(name, name), _checked_name(key))

    def _call(self) -> None:
        arguments = self.stack.pop()
        self.stack[-1] = _StandIn(self.stack[-1], arguments)

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = {
        **_Python.dispatch,
        pickle.EMPTY_DICT[0]: lambda self: self.stack.append(_Table()),
        pickle.REDUCE[0]: _call,
        pickle.NEWOBJ[0]: _call,
        pickle.BUILD[0]: _Python.load_pop,
        pickle.EMPTY_SET[0]: _Python.load_empty_list,
        pickle.ADDITEMS[0]: _Python.load_appends,
    }
    # These would build dicts and sets of any members, or memory of any size. torch writes none of them.
    for _opcode in (pickle.DICT, pickle.FROZENSET, pickle.BYTEARRAY8):
        del dispatch[_opcode[0]]


def _checked_name(name: str) -> str:
    if len(name) > _MAX_NAME_LENGTH:
        raise ValueError(f"a name of {len(name)} letters")
    return name


def read_pickle(file: Path) -> Contents:
    with _Stream(file) as stream:
        if stream.read(2) != b"PK":
            raise NotWeights(
                "is in the format of torch before version 1.6, which cannot be mapped into memory; use a "
                ".safetensors file."
            )
        try:
            with zipfile.ZipFile(stream) as archive:
                return _read_archive(archive, stream)
        except _DAMAGE_ERRORS as error:
            if isinstance(error, NotWeights):
                raise
            raise NotWeights(f"is damaged, or contains no weights of torch; {_REMEDY}") from error


def _read_archive(archive: zipfile.ZipFile, stream: FileIO) -> Contents:
    records = {info.filename: info for info in archive.infolist()}
    folder = next((name.removesuffix("data.pkl") for name in records if name.endswith("data.pkl")), None)
    if folder is None:
        raise NotWeights("is a ZIP archive without weights; unpack it, and give the file inside.")
    if any(info.compress_type != zipfile.ZIP_STORED for info in records.values()):
        raise NotWeights("is a compressed archive, which cannot be mapped into memory; use another file.")
    unpickler = _Unpickler(BytesIO(archive.read(f"{folder}data.pkl")))
    content: Any = unpickler.load()
    wrapped: Any = cast(dict[Any, Any], content).get("state_dict") if isinstance(content, dict) else None
    problems = [
        f"contains more than weights: it names {name}, which Longtake does not run; use a .safetensors file."
        for name in unpickler.names
        if not _HARMLESS.fullmatch(name)
    ][:1]
    if f"{folder}byteorder" in records and archive.read(f"{folder}byteorder") == b"big":
        problems.append("has the byte order of another kind of processor; use another file.")
    tensors = dict[str, TensorInfo]()
    truncated = list[str]()
    for name, call in _tensor_calls(wrapped if isinstance(wrapped, dict) else content, "", itertools.count()):
        key: str = call.arguments[0].key
        record = records[folder + "data/" + key]
        tensors[name], expected_bytes = _tensor(call, _data_offset(record, stream))
        if record.file_size < expected_bytes:
            truncated.append(
                f"is damaged: its record {key} has {record.file_size} bytes of {expected_bytes}; {_REMEDY}"
            )
    problems += [*truncated[:1], *unknown_types({tensor.dtype for tensor in tensors.values()} - BITS.keys())]
    return Contents("pickle", tensors, problems=tuple(problems))


def _data_offset(info: zipfile.ZipInfo, stream: FileIO) -> int:
    stream.seek(info.header_offset)
    *_, name, extra = _LOCAL_HEADER.unpack(stream.read(_LOCAL_HEADER.size))
    return info.header_offset + _LOCAL_HEADER.size + name + extra


def _tensor_calls(content: Any, prefix: str, counter: Iterator[int]) -> Iterator[tuple[str, _StandIn]]:
    """Yield the dotted name of each tensor in nested dicts, and the call that makes it.

    `counter` bounds the entries of all dicts, which may share others, and contain themselves.
    """
    if next(counter) > _MAX_ENTRIES:
        raise ValueError("too many entries")
    path = content.path if isinstance(content, _StandIn) else ""
    if path.endswith("_rebuild_parameter"):
        yield from _tensor_calls(content.arguments[0], prefix, counter)
    elif "_rebuild_tensor" in path:
        yield prefix.removeprefix("."), content
    elif isinstance(content, dict):
        for name, value in cast(Mapping[Any, Any], content).items():
            yield from _tensor_calls(value, _checked_name(f"{prefix}.{name}"), counter)


def _tensor(call: _StandIn, storage_offset: int) -> tuple[TensorInfo, int]:
    storage, offset, raw_shape, raw_strides = call.arguments[:4]
    (first,), shape, strides = shape_of((offset,)), shape_of(raw_shape), shape_of(raw_strides)
    dtype: str = storage.dtype
    if call.path.endswith("_v3"):  # of a type for which torch has no storage
        dtype = call.arguments[6].path.rpartition(".")[2]
    bits = BITS.get(dtype, 8)
    num_values = math.prod(shape)
    last = sum(stride * (size - 1) for stride, size in zip(strides, shape, strict=True)) if num_values else -1
    is_plain = strides == tuple(math.prod(shape[dimension + 1 :]) for dimension in range(len(shape)))
    info = TensorInfo(
        dtype,
        shape,
        num_values * bits // 8,
        storage_offset + first * bits // 8,
        () if is_plain or not num_values else strides,
    )
    return info, (first + last + 1) * bits // 8
