"""The list of tensors in a `.pt`, `.ckpt` or `.bin` file, read from the pickle's opcodes without unpickling.

torch writes a ZIP archive with the pickle `data.pkl` and one record for each storage; before version 1.6 it
wrote a sequence of pickles. A pickle is a program for a small machine with a stack. `_Machine` follows that
program without calling anything: each call becomes a `_Call`, from which the tensors are read.

A few bytes can describe an object with endless parts, since parts may be shared: its hash, its text, and a
walk through it would never end. So only plain values are keys, only texts are names, and steps are counted.
"""

from __future__ import annotations

import io
import itertools
import lzma
import math
import pickletools
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, cast

from diffusers_helper.weights.tensors import (
    BITS,
    MOST_TENSORS,
    Contents,
    NotWeights,
    TensorInfo,
    check_name,
    check_unknown,
    cut_off,
    shape_of,
)

# The bytes of a pickle and of an archive's directory, and the opcodes and entries. Known files have a tenth
# of them at most.
_MOST_BYTES, _MOST_STEPS = 16 * 2**20, 1_500_000
_END_BYTES = 2**17
# The header before each record of a ZIP archive, which ends with the lengths of a name and of extra bytes.
_LOCAL_HEADER = struct.Struct("<4s5H3L2H")
_STORAGES = {
    "Double": "float64", "Float": "float32", "Half": "float16", "BFloat16": "bfloat16", "Long": "int64",
    "Int": "int32", "Short": "int16", "Char": "int8", "Byte": "uint8", "Bool": "bool",
}  # fmt: skip
# The functions that torch's weights-only load may call, too. Any other call would run the author's code.
_HARMLESS = {
    "collections.OrderedDict", "torch.Size", "torch.device", "torch.Tensor", "torch.nn.parameter.Parameter",
    "torch.serialization._get_layout", "_codecs.encode",
    # Old checkpoints of Stable Diffusion name these beside their weights.
    "numpy.core.multiarray.scalar", "numpy._core.multiarray.scalar", "numpy.dtype",
    "pytorch_lightning.callbacks.model_checkpoint.ModelCheckpoint",
}  # fmt: skip
_LEGACY_PICKLES = 4  # a number, a version, facts about the machine, and the weights
_MEMOIZE = ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE")
_PUSH = (
    "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT", "UNICODE",
    "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BINSTRING", "SHORT_BINSTRING", "STRING", "BINBYTES",
    "SHORT_BINBYTES", "BINBYTES8",
)  # fmt: skip
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_MARK = object()


@dataclass(frozen=True, slots=True)
class _Name:
    """A function or class that the pickle names."""

    path: str


@dataclass(frozen=True, slots=True)
class _Call:
    """A call in the pickle, with its arguments. It is not carried out."""

    path: str
    arguments: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class _Storage:
    """A reference to the values of one or several tensors, which are outside the pickle."""

    dtype: str
    key: str
    num_values: int


class _Machine:
    """A stack machine that follows a pickle's opcodes, and records calls instead of carrying them out."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def run(self, stream: BinaryIO) -> Any:
        """Return the object that one pickle describes.

        Raises:
            ValueError, IndexError, TypeError, KeyError: If it is damaged.
        """
        for step, (opcode, argument, _) in enumerate(pickletools.genops(stream)):
            if step == _MOST_STEPS:
                raise ValueError("too many opcodes")
            self._step(opcode.name, argument)
        return self._stack.pop()

    def _step(self, name: str, argument: Any) -> None:
        stack = self._stack
        if name in _PUSH:
            stack.append(argument)
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name == "MARK":
            stack.append(_MARK)
        elif name in _MEMOIZE:
            self._memo[len(self._memo) if name == "MEMOIZE" else argument] = stack[-1]
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            stack.append(self._memo[argument])
        elif name in ("EMPTY_DICT", "DICT", "EMPTY_LIST", "LIST", "EMPTY_TUPLE", "TUPLE", "EMPTY_SET"):
            self._container(name)
        elif name in ("TUPLE1", "TUPLE2", "TUPLE3"):
            length = int(name[-1])
            stack[-length:] = [tuple(stack[-length:])]
        elif name in ("APPEND", "APPENDS", "SETITEM", "SETITEMS", "ADDITEMS"):
            self._fill(name)
        elif name in ("GLOBAL", "STACK_GLOBAL", "REDUCE", "NEWOBJ", "NEWOBJ_EX", "OBJ", "INST", "BUILD"):
            self._call(name, argument)
        elif name in ("PERSID", "BINPERSID"):
            stack.append(_storage(argument if name == "PERSID" else stack.pop()))
        elif name == "POP":
            stack.pop()
        elif name == "DUP":
            stack.append(stack[-1])
        elif name not in ("PROTO", "FRAME", "STOP"):
            raise ValueError(f"opcode {name}")

    def _marked(self) -> list[Any]:
        """Remove the values above the last mark from the stack, and return them."""
        items: list[Any] = []
        while (item := self._stack.pop()) is not _MARK:
            items.append(item)
        return items[::-1]

    def _container(self, name: str) -> None:
        items = [] if name.startswith("EMPTY") else self._marked()
        if name.endswith("DICT"):
            self._stack.append(_dict_of(items))
        else:
            self._stack.append(tuple(items) if name.endswith("TUPLE") else items)

    def _fill(self, name: str) -> None:
        taken = 2 if name == "SETITEM" else 1
        items = self._marked() if name.endswith("S") else [self._stack.pop() for _ in range(taken)][::-1]
        target = self._stack[-1]
        if isinstance(target, list):
            cast(list[Any], target).extend(items)
        elif isinstance(target, dict):
            cast(dict[Any, Any], target).update(_dict_of(items))

    def _call(self, name: str, argument: Any) -> None:
        stack = self._stack
        if name in ("GLOBAL", "STACK_GLOBAL"):
            path = argument.replace(" ", ".")
            if name == "STACK_GLOBAL":
                path = ".".join(check_name(stack.pop()) for _ in range(2))
            stack.append(self._named(path))
            return
        if name == "BUILD":  # the state of an object, which says nothing about tensors
            stack.pop()
            return
        if name in ("OBJ", "INST"):
            items = self._marked()
            if name == "INST":
                items = [self._named(argument.replace(" ", ".")), *items]
            function, arguments = items[0], tuple(items[1:])
        else:
            arguments, function = stack.pop(), stack.pop()
            if not isinstance(arguments, tuple):
                raise TypeError("arguments that are no tuple")
        path = function.path if isinstance(function, _Name) else ""
        # An ordered dictionary is one that is filled later.
        stack.append(
            {} if path == "collections.OrderedDict" and not arguments else _Call(path, cast(Any, arguments))
        )

    def _named(self, path: str) -> _Name:
        self.names.add(check_name(path))
        return _Name(path)


def _dict_of(items: list[Any]) -> dict[Any, Any]:
    """Return the dict of alternating keys and values, whose keys are plain values.

    Raises:
        TypeError: If a key is anything else. Even its hash might take forever.
    """
    if not all(key is None or type(key) in (str, int, float, bool, bytes) for key in items[::2]):
        raise TypeError("a key that is no plain value")
    return dict(zip(items[::2], items[1::2], strict=True))


def _storage(reference: Any) -> Any:
    if not isinstance(reference, tuple):
        return None
    entries = cast(tuple[Any, ...], reference)
    if len(entries) < 5 or entries[0] != "storage" or not isinstance(entries[1], _Name):
        return None
    name = entries[1].path.rpartition(".")[2].removesuffix("Storage")
    (values,) = shape_of(entries[4:5])
    return _Storage(_STORAGES.get(name, name), check_name(entries[2]), values)


# What zipfile raises for archives that are none, of which it documents only the first.
_DAMAGES = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, EOFError, RuntimeError, ValueError)


class _Stream(io.FileIO):
    """A file that is never read in large pieces, as a directory that lies about its size would have it."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or size < 0:  # the end, where the directory is looked for
            size = _END_BYTES
        if size > _MOST_BYTES:
            raise ValueError(f"a piece of {size} bytes")
        return super().read(size)


def read_pickle(file: Path) -> Contents:
    """Return the contents of a file that `torch.save` has written.

    Raises:
        OSError: If the file cannot be read.
        NotWeights: If it is damaged, or contains something else.
    """
    with file.open("rb") as stream:
        is_archive = stream.read(2) == b"PK"
    return _read_archive(file) if is_archive else _read_legacy(file)


def _read_archive(file: Path) -> Contents:
    try:
        with _Stream(file) as stream, zipfile.ZipFile(stream) as archive:
            sizes = {info.filename: info.file_size for info in archive.infolist()}
            pickles = [name for name in sizes if name.endswith("data.pkl")]
            if not pickles:
                raise NotWeights("is a ZIP archive without weights; unpack it, and give the file inside.")
            if any(info.compress_type != zipfile.ZIP_STORED for info in archive.infolist()):
                raise NotWeights(
                    "is a compressed archive, which cannot be mapped into memory; use another file."
                )
            if sizes[pickles[0]] > _MOST_BYTES:
                raise NotWeights(
                    f"has a list of tensors of {sizes[pickles[0]]} bytes, which is too long; use another one."
                )
            data = archive.read(pickles[0])
            orders = [name for name in sizes if name.endswith("/byteorder") and sizes[name] == len("big")]
            is_big = any(archive.read(name) == b"big" for name in orders[:1])
    except NotWeights:
        raise
    except _DAMAGES as error:
        raise NotWeights("is damaged or incomplete; download it again.") from error
    tensors, storages, problems = _tensors(BytesIO(data), pickles=1)
    if is_big:
        problems.append("has the byte order of another kind of processor; use another file.")
    folder = pickles[0].removesuffix("data.pkl")
    for storage in storages:
        found = sizes.get(f"{folder}data/{storage.key}", 0)
        needed = storage.num_values * BITS.get(storage.dtype, 8) // 8
        if found < needed:
            problems.append(
                f"is damaged: its record {storage.key} has {found} bytes of {needed}; download it again."
            )
            break
    return Contents("pickle", tensors, problems=tuple(problems))


def record_places(file: Path) -> dict[int, int]:
    """Return the bytes of each record of an archive of torch by the place where they begin.

    Raises:
        OSError, zipfile.BadZipFile: If it cannot be read.
    """
    places: dict[int, int] = {}
    with _Stream(file) as stream, zipfile.ZipFile(stream) as archive:
        for info in archive.infolist():
            stream.seek(info.header_offset)
            *_, name, extra = _LOCAL_HEADER.unpack(stream.read(_LOCAL_HEADER.size))
            places[info.header_offset + _LOCAL_HEADER.size + name + extra] = info.file_size
    return places


def _read_legacy(file: Path) -> Contents:
    size = file.stat().st_size
    with file.open("rb") as stream:
        pickles = BytesIO(stream.read(_MOST_BYTES))
    tensors, storages, problems = _tensors(pickles, pickles=_LEGACY_PICKLES)
    # The pickles are followed by the list of storages, and by each storage after its length.
    needed = pickles.tell() + sum(8 + one.num_values * BITS.get(one.dtype, 8) // 8 for one in storages)
    if size < needed:
        problems.append(cut_off(size, needed))
    problems.append(
        "is in the format of torch before version 1.6, which cannot be mapped into memory; use a "
        ".safetensors file."
    )
    return Contents("pickle", tensors, problems=tuple(problems))


def _tensors(stream: BinaryIO, *, pickles: int) -> tuple[dict[str, TensorInfo], list[_Storage], list[str]]:
    """Return the tensors, the storages and the problems that consecutive pickles describe."""
    names: set[str] = set()
    content: Any = None
    tensors: dict[str, TensorInfo] = {}
    storages: dict[str, _Storage] = {}
    try:
        for _ in range(pickles):
            machine = _Machine()
            content = machine.run(stream)
            names |= machine.names
        unknown = set[str]()
        for name, storage, shape in _found(content, "", itertools.count()):
            bits = BITS.get(storage.dtype, 8)
            tensors[check_name(name)] = TensorInfo(storage.dtype, shape, math.prod(shape) * bits // 8)
            storages[storage.key] = storage
            if storage.dtype not in BITS:
                unknown.add(storage.dtype)
                check_unknown(unknown)
            if len(tensors) > MOST_TENSORS:
                raise ValueError("too many tensors")
    except (ValueError, IndexError, TypeError, KeyError, AttributeError) as error:
        raise NotWeights("is damaged, or contains no weights of torch; download it again.") from error
    code = sorted(name for name in names if not _is_harmless(name))
    problems = [
        f"contains more than weights: it names {name}, which Longtake does not run; use a .safetensors file."
        for name in code[:1]
    ]
    return tensors, list(storages.values()), problems


def _is_harmless(name: str) -> bool:
    module, _, attribute = name.rpartition(".")
    if module == "torch._utils":
        return attribute.startswith("_rebuild_")
    is_type = module == "torch" and attribute in {*BITS, "float", "half", "double", "long", "int"}
    is_storage = module in ("torch", "torch.storage") and attribute.endswith("Storage")
    return name in _HARMLESS or is_type or is_storage


def _found(
    content: Any, prefix: str, steps: Iterator[int]
) -> Iterator[tuple[str, _Storage, tuple[int, ...]]]:
    """Yield the name, storage and shape of each tensor in nested dicts, whose keys are joined with dots.

    Args:
        steps: The numbers of the steps through all dicts, which may be shared, and contain themselves.

    Raises:
        ValueError: If there are too many steps, or the dicts are nested deeply, which makes long names.
    """
    if next(steps) == _MOST_STEPS:
        raise ValueError("too many entries")
    if isinstance(content, _Call):
        arguments = content.arguments
        if content.path.endswith("_rebuild_parameter") and arguments:
            yield from _found(arguments[0], prefix, steps)
        elif "_rebuild_tensor" in content.path and len(arguments) > 2 and isinstance(arguments[0], _Storage):
            yield prefix.removeprefix("."), arguments[0], shape_of(arguments[2])
    elif isinstance(content, Mapping):
        entries = cast(Mapping[Any, Any], content)
        is_wrapped = not prefix and isinstance(entries.get("state_dict"), dict)
        for name, value in (entries["state_dict"] if is_wrapped else entries).items():
            if isinstance(value, _Call | Mapping):
                yield from _found(value, check_name(f"{prefix}.{name}"), steps)
