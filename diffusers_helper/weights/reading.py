"""The reader of files with weights in any known format, which it recognises by the first bytes."""

from __future__ import annotations

from pathlib import Path

from diffusers_helper.weights.gguf_file import read_gguf
from diffusers_helper.weights.not_weights import foreign_content
from diffusers_helper.weights.pickle_file import read_pickle
from diffusers_helper.weights.safetensors_file import read_safetensors
from diffusers_helper.weights.tensors import Contents, NotWeights

SUFFIXES = (".safetensors", ".gguf", ".ckpt", ".pt", ".pth", ".bin")
_START_BYTES = 2048


def read_contents(file: Path) -> Contents:
    """Return the contents of a file with weights.

    Raises:
        OSError: If the file cannot be read.
        NotWeights: If it is something else, or truncated within the list of its tensors.
    """
    with file.open("rb") as stream:
        start = stream.read(_START_BYTES)
    if start[:4] == b"GGUF":
        return read_gguf(file)
    if start[:2] == b"PK" or (start[:1] == b"\x80" and start[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05")):
        return read_pickle(file)
    # The length of the header precedes it, so its first letter is the ninth byte.
    if start[8:9] == b"{" and int.from_bytes(start[:8], "little") < 2**40:
        return read_safetensors(file)
    if file.suffix == ".safetensors" and 0 < len(start) < 9:
        return read_safetensors(file)
    raise NotWeights(foreign_content(start))
