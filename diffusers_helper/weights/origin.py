"""The origin of weights that Longtake has converted, which the metadata of their file contains."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

from diffusers_helper.files import sha256_of
from diffusers_helper.weights.safetensors_file import read_safetensors

_KEY = "longtake"
_COMPUTE = ("float32", "float16", "bfloat16")
_SUM = 64  # the length of a SHA-256 checksum, by which the hub's cache names its files
NO_SUM = "0" * _SUM
_PIECE_BYTES = 1024**2


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of converted weights.

    Attributes:
        model: The model, file or folder that was converted, by the name that the user gave.
        files: The names of the source's files, each with its size, the time of its last change in
            nanoseconds, and its SHA-256 checksum if the hub's cache knows it.
        weight_dtype: The type that the weights were converted to (`request.WEIGHT_TYPES`).
        compute_dtype: The type in which the network computes, by torch's name.
        sums: The names of the copy's files, each with its checksum: that of `copy_sum` for the weights, and
            SHA-256 for others. It is empty for copies of versions that did not record it.
    """

    model: str
    files: tuple[tuple[str, int, int, str], ...]
    weight_dtype: str
    compute_dtype: str
    version: str
    sums: tuple[tuple[str, str], ...] = ()

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
        sums = tuple((str(one[0]), str(one[1])) for one in content.get("sums", ()))
    except (KeyError, IndexError, ValueError, TypeError):
        return None
    return Origin(model, files, weights, compute, version, sums) if compute in _COMPUTE else None


def copy_sum(header: bytes, sums: Mapping[int, str]) -> str:
    """Return the checksum of a file with converted weights, whose tensors may be written in any order.

    Args:
        header: The header of the file, which has `NO_SUM` in place of this checksum.
        sums: The SHA-256 checksum of each tensor by its place in the file.
    """
    return sha256_of([header, *(f"{place} {sums[place]}\n".encode() for place in sorted(sums))])


def has_copy_sum(file: Path, checksum: str) -> bool:
    """Return whether a file with converted weights has the checksum that it contains.

    Raises:
        OSError: If it cannot be read.
        NotWeights: If it is not a safetensors file.
    """
    tensors, sums = read_safetensors(file).tensors.values(), dict[int, str]()
    with file.open("rb") as stream:
        size = stream.read(8)
        head = size + stream.read(int.from_bytes(size, "little"))
        for tensor in tensors:
            stream.seek(tensor.begin)
            if tensor.num_bytes:
                sums[tensor.begin] = sha256_of(_pieces(stream, tensor.num_bytes))
    return copy_sum(head.replace(checksum.encode(), NO_SUM.encode()), sums) == checksum


def _pieces(stream: BinaryIO, size: int) -> Iterator[bytes]:
    """Yield the next bytes of a file, a piece at a time, up to this many or to its end."""
    while size and (piece := stream.read(min(size, _PIECE_BYTES))):
        size -= len(piece)
        yield piece
