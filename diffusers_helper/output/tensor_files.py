"""Files with tensors, metadata and a checksum, as the checkpoints of a job are."""

import json
import logging
from collections.abc import Mapping
from itertools import chain
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, uint8

from diffusers_helper.files import read_file, sha256_of, write_atomic
from diffusers_helper.library_errors import is_storage_trouble
from diffusers_helper.untrusted.limited_json import plain_json

_log = logging.getLogger(__name__)
_MAX_BYTES = 2**30


def write_tensors(file: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write tensors with metadata and a checksum to a file. On return it is complete on the disk."""
    contiguous_tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
    checksum = _checksum(metadata, contiguous_tensors)
    write_atomic(file, save(contiguous_tensors, {**metadata, "checksum": checksum}))


def intact_tensors(file: Path, consequence: str) -> tuple[dict[str, Tensor], dict[str, str]] | None:
    """Read a file as `read_tensors` does; None if it is missing, or damaged, which has a consequence."""
    if not file.is_file():
        return None
    try:
        return read_tensors(file)
    except (OSError, SafetensorError, ValueError, KeyError) as error:
        if is_storage_trouble(error):
            raise
        _log.warning("%s: %s; %s", file, error, consequence)
        return None


def read_tensors(file: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """OSError if the file cannot be read; SafetensorError, ValueError or KeyError if it is damaged."""
    content = read_file(file, _MAX_BYTES)  # the library calls a file missing that cannot be opened now
    tensors = {name: tensor.clone() for name, tensor in load(content).items()}
    header = plain_json(content[8 : 8 + int.from_bytes(content[:8], "little")])
    metadata: dict[str, str] = header["__metadata__"]
    unsigned_metadata = {name: value for name, value in metadata.items() if name != "checksum"}
    if metadata["checksum"] != _checksum(unsigned_metadata, tensors):
        raise ValueError("the checksum does not match")
    return tensors, metadata


def _checksum(metadata: Mapping[str, str], tensors: Mapping[str, Tensor]) -> str:
    contents = (tensors[name].flatten().view(uint8).numpy().tobytes() for name in sorted(tensors))
    return sha256_of(chain([json.dumps(metadata, sort_keys=True).encode()], contents))
