"""Small files with weights in each format, and files that only look like them."""

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

POINTER = (
    "version https://git-lfs.github.com/spec/v1\n"
    "oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 10737418240\n"
)
PAGE = "<!DOCTYPE html>\n<html><head><title>Sign in\n to the hub</title></head><body>no</body></html>"


def write_gguf(
    file: Path,
    tensors: Mapping[str, tuple[int, Sequence[int], bytes]],
    metadata: Mapping[str, str] | None = None,
) -> Path:
    """Write a GGUF file of version 3, of types' numbers, shapes in torch's order, and bytes."""

    def text(words: str) -> bytes:
        return struct.pack("<Q", len(words.encode())) + words.encode()

    noted = {"general.architecture": "hyvid", **(metadata or {})}
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(noted) + 2)
    for name, value in noted.items():
        head += text(name) + struct.pack("<I", 8) + text(value)
    head += text("numbers") + struct.pack("<IIQ3i", 9, 5, 3, 1, 2, 3)
    head += text("words") + struct.pack("<IIQ", 9, 8, 2) + text("a") + text("b")
    data = b""
    for name, (kind, shape, content) in tensors.items():
        head += text(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
        head += struct.pack("<IQ", kind, len(data))
        data += content + bytes(-len(content) % 32)
    file.write_bytes(head + bytes(-len(head) % 32) + data)
    return file
