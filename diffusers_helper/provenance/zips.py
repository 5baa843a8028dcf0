"""A ZIP file of other files as they are, which is made while it is sent; its size is known before."""

import io
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from zipfile import ZIP64_LIMIT, ZipFile, ZipInfo

from diffusers_helper.errors import InputError
from diffusers_helper.units import size_text

_CHUNK_BYTES = 1 << 20
# The bytes besides names and content: of each file the head, the sums behind the content and the entry in the
# directory, and the directory's end.
_FILE_BYTES, _END_BYTES = 30 + 16 + 46, 22

Entry = tuple[ZipInfo, Iterable[bytes]]
"""The name in ASCII and the size of a file, and its content."""


class _Sink(io.RawIOBase):
    """What was written since it was last taken. It cannot seek, so zipfile puts sums behind the content."""

    def __init__(self) -> None:
        self._data = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data: bytes | bytearray | memoryview, /) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        self._data += data
        return len(data)

    def take(self) -> bytes:
        data = bytes(self._data)
        self._data.clear()
        return data


def file_entry(name: str, path: Path) -> Entry:
    def chunks() -> Iterator[bytes]:
        with path.open("rb") as source:
            while chunk := source.read(_CHUNK_BYTES):
                yield chunk

    return ZipInfo.from_file(path, name, strict_timestamps=False), chunks()


def sized_entry(name: str, size: int, content: Iterable[bytes]) -> Entry:
    info = ZipInfo(name)
    info.file_size = size
    return info, content


def stored_zip(entries: Sequence[Entry]) -> tuple[int, Iterator[bytes]]:
    """Return the size in bytes of a ZIP file, and its parts.

    It is refused without files, and with more than 2 GB, beyond which older programs do not open it.
    """
    size = _END_BYTES + sum(_FILE_BYTES + 2 * len(info.filename) + info.file_size for info, _ in entries)
    if not entries:
        raise InputError("None of these videos has a file.", "Select others.")
    if size > ZIP64_LIMIT:
        raise InputError(
            f"These files have {size_text(size)}; expected at most 2 GB.", "Select fewer, or a shorter video."
        )
    return size, _parts(entries)


def _parts(entries: Sequence[Entry]) -> Iterator[bytes]:
    sink = _Sink()
    with ZipFile(sink, "w") as archive:
        for info, content in entries:
            with archive.open(info, "w") as target:
                for chunk in content:
                    target.write(chunk)
                    yield sink.take()
    yield sink.take()
