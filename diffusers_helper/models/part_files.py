"""The type and the identity of a part's weights, read from its files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors import safe_open

from diffusers_helper.files import sha256_of

# The number and size of the samples of each file that make up a fingerprint.
_SAMPLES, _SAMPLE_BYTES = 16, 65536


def stored_dtype(folder: Path) -> torch.dtype:
    """Return the floating-point type in which most of a part's weights are stored.

    Raises:
        FileNotFoundError: If the folder has no safetensors file.
        ValueError: If the weights are not floating-point numbers.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise FileNotFoundError(f"{folder} has no safetensors file")
    with safe_open(files[0], "pt") as weights:
        counts = Counter(weights.get_slice(key).get_dtype() for key in weights.keys())  # noqa: SIM118
    kinds = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
    most = max(counts, key=lambda kind: (kind in kinds, counts[kind]))
    if most not in kinds:
        raise ValueError(f"{files[0].name} stores its weights as {most}; expected F32, F16 or BF16")
    return kinds[most]


def fingerprint(folder: Path) -> str:
    """Return a checksum of weights, from the names and sizes of their files and samples of the content.

    Reading all of a large model would take minutes, and an accidental change is very likely to show in a
    sample or in a size.
    """
    return sha256_of(part for path in sorted(folder.glob("*.safetensors")) for part in _samples(path))


def _samples(path: Path) -> Iterator[bytes]:
    size = path.stat().st_size
    yield f"{path.name} {size} ".encode()
    with path.open("rb") as file:
        for place in range(_SAMPLES):
            file.seek(size * place // _SAMPLES)
            yield file.read(_SAMPLE_BYTES)
