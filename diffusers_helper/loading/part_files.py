"""The identity of a part's weights, read from its files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from diffusers_helper.files import sha256_of
from diffusers_helper.weights.folders import weight_files

# The number and size of the samples of each file that make up a fingerprint.
_SAMPLES, _SAMPLE_BYTES = 16, 65536


def fingerprint(place: Path) -> str:
    """Return a checksum of weights, from the names and sizes of their files and samples of the content.

    Reading all of a large model would take minutes, and an accidental change is very likely to show in a
    sample or in a size.
    """
    return sha256_of(part for path in weight_files(place) for part in _samples(path))


def _samples(path: Path) -> Iterator[bytes]:
    size = path.stat().st_size
    yield f"{path.name} {size} ".encode()
    with path.open("rb") as file:
        for place in range(_SAMPLES):
            file.seek(size * place // _SAMPLES)
            yield file.read(_SAMPLE_BYTES)
