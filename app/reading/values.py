"""The conversion of plain data to JSON and back, by the types that the readers of files declare."""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, Union, cast, get_args, get_origin, get_type_hints


def to_data(value: Any, blobs: list[bytes]) -> Any:
    """Return a value as data for JSON. Bytes are appended to `blobs`, and have their place there instead."""
    if isinstance(value, bytes):
        blobs.append(value)
        return len(blobs) - 1
    if isinstance(value, Path):
        return str(value)
    if is_dataclass(value):
        return {one.name: to_data(getattr(value, one.name), blobs) for one in fields(value)}
    if isinstance(value, Mapping):
        entries = cast(Mapping[Any, Any], value).items()
        return {name: to_data(one, blobs) for name, one in entries}
    if isinstance(value, list | tuple):
        return [to_data(one, blobs) for one in cast(Sequence[Any], value)]
    return cast(object, value)


def from_data(data: Any, kind: Any, blobs: Sequence[bytes]) -> Any:
    """Return the value of a type that `to_data` has made data of."""
    origin, inner = get_origin(kind), get_args(kind)
    if kind is bytes:
        place: int = data
        return blobs[place]
    if kind is Path:
        return Path(data)
    if is_dataclass(kind):
        hints = _hints(cast(type, kind))
        return cast(type, kind)(**{name: from_data(data[name], hints[name], blobs) for name in data})
    if origin in (Union, types.UnionType):
        (other,) = (one for one in inner if one is not types.NoneType)
        return None if data is None else from_data(data, other, blobs)
    if origin is tuple and inner[1:] == (...,):
        return tuple(from_data(one, inner[0], blobs) for one in data)
    if origin is tuple:
        return tuple(from_data(one, of, blobs) for one, of in zip(data, inner, strict=True))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {name: from_data(one, inner[1], blobs) for name, one in data.items()}
    return data


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)
