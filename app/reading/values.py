"""The conversion of plain data to JSON and back, by the types that the readers of files declare."""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, Union, cast, get_args, get_origin, get_type_hints


def to_data(value: Any, blobs: list[bytes]) -> Any:
    """Turn a value into data for JSON. Bytes are appended to `blobs`, and their index stands in the data."""
    if isinstance(value, bytes):
        blobs.append(value)
        return len(blobs) - 1
    if isinstance(value, Path):
        return str(value)
    if is_dataclass(value):
        return {field.name: to_data(getattr(value, field.name), blobs) for field in fields(value)}
    if isinstance(value, Mapping):
        entries = cast(Mapping[Any, Any], value).items()
        return {name: to_data(item, blobs) for name, item in entries}
    if isinstance(value, list | tuple):
        return [to_data(item, blobs) for item in cast(Sequence[Any], value)]
    return cast(object, value)


def from_data(data: Any, kind: Any, blobs: Sequence[bytes]) -> Any:
    """Turn data that `to_data` made back into a value of the type `kind`."""
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is bytes:
        index: int = data
        return blobs[index]
    if kind is Path:
        return Path(data)
    if is_dataclass(kind):
        hints = _hints(cast(type, kind))
        return cast(type, kind)(**{name: from_data(data[name], hints[name], blobs) for name in data})
    if origin in (Union, types.UnionType):
        (value_type,) = (argument for argument in arguments if argument is not types.NoneType)
        return None if data is None else from_data(data, value_type, blobs)
    if origin is tuple and arguments[1:] == (...,):
        return tuple(from_data(item, arguments[0], blobs) for item in data)
    if origin is tuple:
        items = zip(data, arguments, strict=True)
        return tuple(from_data(item, item_type, blobs) for item, item_type in items)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {name: from_data(item, arguments[1], blobs) for name, item in data.items()}
    return data


@cache
def _hints(dataclass_type: type) -> dict[str, Any]:
    return get_type_hints(dataclass_type)
