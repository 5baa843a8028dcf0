"""A ZIP file of other files as they are, which is made while it is sent; its size is known before."""

import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from zipfile import ZIP64_LIMIT, ZipFile, ZipInfo

from diffusers_helper.errors import InputError
from diffusers_helper.units import size_text

_CHUNK_BYTES = 1 << 20
# The bytes besides names and content: of each file the head, the sums behind the content and the entry in the
# directory, and the directory's end.
_FILE_BYTES, _END_BYTES = 30 + 16 + 46, 22


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


def stored_zip(files: Sequence[tuple[str, Path]]) -> tuple[int, Iterator[bytes]]:
    """Return the size in bytes of a ZIP file of files under other names in ASCII, and its parts.

    It is refused without files, and with more than 2 GB, beyond which older programs do not open it.
    """
    infos = [ZipInfo.from_file(path, name, strict_timestamps=False) for name, path in files]
    size = _END_BYTES + sum(_FILE_BYTES + 2 * len(info.filename) + info.file_size for info in infos)
    if not files:
        raise InputError("None of these videos has a file.", "Select others.")
    if size > ZIP64_LIMIT:
        raise InputError(f"These files have {size_text(size)}; expected at most 2 GB.", "Select fewer.")
    return size, _parts(infos, [path for _, path in files])


def _parts(infos: Sequence[ZipInfo], paths: Sequence[Path]) -> Iterator[bytes]:
    sink = _Sink()
    with ZipFile(sink, "w") as archive:
        for info, path in zip(infos, paths, strict=True):
            with path.open("rb") as source, archive.open(info, "w") as target:
                while chunk := source.read(_CHUNK_BYTES):
                    target.write(chunk)
                    yield sink.take()
    yield sink.take()
