"""The origin of weights that Longtake has converted, which the metadata of their file contains."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

_KEY = "longtake"
_COMPUTE = ("float32", "float16", "bfloat16")
_SUM = 64  # the length of a SHA-256 checksum, by which the hub's cache names its files


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of converted weights.

    Attributes:
        model: The model, file or folder that was converted, by the name that the user gave.
        files: The names of the source's files, each with its size, the time of its last change in
            nanoseconds, and its SHA-256 checksum if the hub's cache knows it.
        weight_dtype: The type that the weights were converted to (`request.WEIGHT_TYPES`).
        compute_dtype: The type in which the network computes, by torch's name.
        version: The version of Longtake.
    """

    model: str
    files: tuple[tuple[str, int, int, str], ...]
    weight_dtype: str
    compute_dtype: str
    version: str

    def metadata(self) -> dict[str, str]:
        """Return the metadata of a safetensors file with these weights."""
        return {"format": "pt", _KEY: json.dumps(asdict(self))}

    def is_same(self, other: Origin | None) -> bool:
        """Return whether other weights were made in the same way from files that have not changed."""
        return other is not None and (self.files, self.weight_dtype) == (other.files, other.weight_dtype)


def files_of_origin(files: Iterable[Path]) -> tuple[tuple[str, int, int, str], ...]:
    """Return the facts about a source's files that an `Origin` contains."""
    found: list[tuple[str, int, int, str]] = []
    for file in files:
        status, target = file.stat(), file.resolve().name
        is_sum = target != file.name and len(target) == _SUM
        found.append((file.name, status.st_size, status.st_mtime_ns, target if is_sum else ""))
    return tuple(found)


def origin_in(metadata: Mapping[str, str]) -> Origin | None:
    """Return the origin that a file's metadata contains, or None for weights from elsewhere."""
    try:
        content: Any = json.loads(metadata[_KEY])
        files = tuple((str(one[0]), int(one[1]), int(one[2]), str(one[3])) for one in content["files"])
        names = ("model", "weight_dtype", "compute_dtype", "version")
        model, weights, compute, version = (str(content[name]) for name in names)
    except (KeyError, IndexError, ValueError, TypeError):
        return None
    return Origin(model, files, weights, compute, version) if compute in _COMPUTE else None
