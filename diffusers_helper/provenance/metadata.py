"""Functions that write recipes into MP4 and PNG files and read them, without decoding pictures or video.

An MP4 file has the recipe's JSON as its comment, which players and ffprobe can show, and the pictures in
boxes at the end, where they do not delay players. A WebM file has the JSON alone, as its comment. A PNG file
has both in chunks. Other programs skip boxes
and chunks that they do not know, and copies of the file keep them. The start picture has a box and a chunk of
its own kind; those of other pictures begin with the name of the setting and a zero.
"""

import os
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO
from uuid import UUID

from PIL.PngImagePlugin import PngImageFile, PngInfo

from diffusers_helper.errors import InputError, first_line
from diffusers_helper.picture_names import is_picture_name
from diffusers_helper.request import START_PICTURE

MAX_TEXT, MAX_PICTURE = 4 * 2**20, 64 * 2**20
_PNG = b"\x89PNG\r\n\x1a\n"
_MATROSKA = b"\x1aE\xdf\xa3"
_WEBM_TAG = (0x18538067, 0x1254C367, 0x7373, 0x67C8)  # the elements Segment, Tags, Tag and SimpleTag
_TAG_NAME, _TAG_STRING = 0x45A3, 0x4487
_MOST_ELEMENTS = 10_000
_KEYWORD = "Longtake recipe"
_PICTURE_CHUNK = b"ltPc"  # the case of the letters means that it is ancillary, private and safe to copy
_NAMED_CHUNK = b"ltNp"
_PICTURE_BOX = UUID("6c6f6e67-7461-6b65-8070-696374757265").bytes
_NAMED_BOX = UUID("6c6f6e67-7461-6b65-806e-616d65706963").bytes
_COMMENT = (b"moov", b"udta", b"meta", b"ilst", b"\xa9cmt", b"data")
_SKIP = {b"meta": 4, b"data": 8}  # bytes before the content: version, flags, type and language


Embedded = tuple[bytes | None, dict[str, bytes]]
"""The text of a recipe, as read from a file, or None if it lacks one, and the pictures by setting."""


def append_pictures(video: Path, pictures: Mapping[str, bytes]) -> None:
    with video.open("ab") as file:
        for name, picture in pictures.items():
            box, content = _picture_entry(name, picture, _PICTURE_BOX, _NAMED_BOX)
            file.write(struct.pack(">I4s16s", 24 + len(content), b"uuid", box))
            file.write(content)


def png_chunks(text: str, pictures: Mapping[str, bytes]) -> PngInfo:
    chunks = PngInfo()
    chunks.add_itxt(_KEYWORD, text)
    for name, picture in pictures.items():
        chunks.add(*_picture_entry(name, picture, _PICTURE_CHUNK, _NAMED_CHUNK))
    return chunks


def _picture_entry(name: str, picture: bytes, start_kind: bytes, named_kind: bytes) -> tuple[bytes, bytes]:
    return (start_kind, picture) if name == START_PICTURE else (named_kind, name.encode() + b"\0" + picture)


def _add_picture(pictures: dict[str, bytes], kind: bytes, content: bytes) -> None:
    name, picture = START_PICTURE, content
    if kind in (_NAMED_BOX, _NAMED_CHUNK):
        name, _, picture = content.partition(b"\0")
        name = name.decode("ascii", "replace")
    if is_picture_name(name):
        pictures[name] = picture


def read_embedded(file: BinaryIO) -> Embedded | None:
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    header = file.read(12)
    if header.startswith(_PNG):
        file.seek(0)
        return _read_png(file)
    if header.startswith(_MATROSKA):
        file.seek(0)
        return _read_webm(file, size)
    return _read_mp4(file, size) if header[4:8] == b"ftyp" else None


def _read_mp4(file: BinaryIO, size: int) -> Embedded:
    pictures = dict[str, bytes]()
    for kind, start, end in _boxes(file, 0, size):
        box = _content(file, start, min(end, start + 16)) if kind == b"uuid" else b""
        if box in (_PICTURE_BOX, _NAMED_BOX):
            _add_picture(pictures, box, _content(file, start + 16, end))
    start, end = 0, size
    for box_type in _COMMENT:
        match = next((box for box in _boxes(file, start, end) if box[0] == box_type), None)
        if match is None:
            return None, pictures
        start, end = match[1] + _SKIP.get(box_type, 0), match[2]
    return _content(file, start, end), pictures


def _read_webm(file: BinaryIO, size: int) -> Embedded:
    """Read a tag as RFC 9559 describes it: a stranger's file comes to no library of films here."""
    regions = [(0, size)]
    for kind in _WEBM_TAG:
        elements = [element for region in regions for element in _elements(file, *region)]
        regions = [(start, end) for element_kind, start, end in elements if element_kind == kind]
    for region in regions:
        parts = {kind: (start, end) for kind, start, end in _elements(file, *region)}
        if parts.keys() >= {_TAG_NAME, _TAG_STRING} and _content(file, *parts[_TAG_NAME]) == b"COMMENT":
            return _content(file, *parts[_TAG_STRING]), {}
    return None, {}


def _elements(file: BinaryIO, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    for _ in range(_MOST_ELEMENTS):
        if start >= end:
            return
        kind, start = _number(file, start, has_marker=True)
        length, start = _number(file, start)
        stop = min(end, start + length)  # an unknown length is the largest number
        yield kind, start, stop
        start = stop
    raise _damaged("it has more parts than any recipe")


def _number(file: BinaryIO, start: int, *, has_marker: bool = False) -> tuple[int, int]:
    """Read a number whose first bits tell how many bytes it has, and where it ends."""
    length = 9 - _content(file, start, start + 1)[0].bit_length()
    if length > 8:
        raise _damaged("a number is too long")
    value = int.from_bytes(_content(file, start, start + length))
    return value if has_marker else value & (2 ** (7 * length) - 1), start + length


def _boxes(file: BinaryIO, start: int, end: int) -> Iterator[tuple[bytes, int, int]]:
    while start < end:
        length, kind = struct.unpack(">I4s", _content(file, start, start + 8))
        header_bytes = 8
        if length == 1:
            (length,) = struct.unpack(">Q", _content(file, start + 8, start + 16))
            header_bytes = 16
        length = length or end - start  # 0 means that the box reaches to the end
        if length < header_bytes or start + length > end:
            raise _damaged("a box extends past the end")
        yield kind, start + header_bytes, start + length
        start += length


def _content(file: BinaryIO, start: int, end: int) -> bytes:
    if end - start > MAX_PICTURE:
        raise _damaged("its parts are larger than any recipe")
    file.seek(start)
    content = file.read(end - start)
    if len(content) < end - start:
        raise _damaged("it ends early")
    return content


def _read_png(file: BinaryIO) -> Embedded:
    try:
        image = PngImageFile(file)  # reads and checks the chunks before the pixels, where a recipe is
    except (SyntaxError, ValueError, OSError) as error:
        raise _damaged(first_line(error)) from error
    pictures = dict[str, bytes]()
    for kind, content, *_ in image.private_chunks:
        if kind in (_PICTURE_CHUNK, _NAMED_CHUNK):
            _add_picture(pictures, kind, content)
    text = image.info.get(_KEYWORD)
    return text.encode() if isinstance(text, str) else None, pictures


def _damaged(reason: str) -> InputError:
    return InputError(
        f"The file is damaged ({reason}); expected an MP4, WebM or PNG file that Longtake wrote.",
        "Use another copy of it.",
    )
