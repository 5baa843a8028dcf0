"""PNG files with recipes, as version 0.1 has written them."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping

_PNG = b"\x89PNG\r\n\x1a\n"
_KEYWORD = b"Longtake recipe"


def with_recipe(png: bytes, text: str, pictures: Mapping[str, bytes]) -> bytes:
    """Return the content of a PNG file with a recipe and its pictures added; its own picture is unchanged.

    Raises:
        ValueError: If `png` is not a PNG file.
    """
    end = png.rfind(struct.pack(">I4s", 0, b"IEND"))
    if not png.startswith(_PNG) or end < 0:
        raise ValueError("the file is not a PNG")
    # The zeros mean: end of the keyword, no compression, no language, no translated keyword
    written = _KEYWORD + b"\0\0\0\0\0" + text.encode()
    chunks = [
        _chunk(b"ltPc", one) if name == "image" else _chunk(b"ltNp", name.encode() + b"\0" + one)
        for name, one in pictures.items()
        if one
    ]
    return png[:end] + _chunk(b"iTXt", written) + b"".join(chunks) + png[end:]


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I4s", len(content), kind) + content + struct.pack(">I", zlib.crc32(kind + content))
