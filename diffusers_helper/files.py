"""Functions that read files of unknown content, write files atomically, and compute checksums."""

import errno
import hashlib
import json
import logging
import os
import secrets
import shutil
import stat
import time
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from diffusers_helper.errors import InputError

_log = logging.getLogger(__name__)
MAX_BYTES = 64 * 2**20
SAFETENSORS = ".safetensors"
_SHA256_LENGTH = 64
_SYSTEM_FOLDERS, _MAX_FOLDERS = ("__MACOSX", "@eaDir"), 2000


def expanded_path(path: str | Path, setting: str) -> Path:
    """Expand `~` in the path that the user gave for a setting; InputError if it cannot be one in UTF-8."""
    try:
        str(path).encode()
        if not str(path):
            raise InputError(setting=setting, value="", expected="a path", remedy="Name one.")
        return Path(path).expanduser()
    except (RuntimeError, UnicodeEncodeError) as error:
        raise InputError(
            setting=setting, value=str(path), remedy="Write the whole path, or rename it.",
            expected="a name in UTF-8, with ~ only for a user with a home folder",
        ) from error  # fmt: skip


def named_folder(environ: Mapping[str, str], variable: str, default: str) -> Path:
    return expanded_path(environ.get(variable) or default, variable).absolute()


def is_visible(name: str) -> bool:
    """Tell a person's files and folders from those that a Mac or Synology keeps beside them."""
    return not name.startswith(".") and name not in _SYSTEM_FOLDERS


def visible_files(folder: Path) -> Iterator[tuple[Path, list[str]]]:
    seen: set[tuple[int, int]] = set()  # a link may lead to a folder that contains it
    for place, folders, names in os.walk(folder, followlinks=True):
        status = os.stat(place)
        if (status.st_dev, status.st_ino) in seen or len(seen) == _MAX_FOLDERS:
            folders.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        folders[:] = sorted(filter(is_visible, folders))
        yield Path(place), [name for name in names if is_visible(name) and Path(place, name).is_file()]


def weight_names(folder: Path, suffixes: tuple[str, ...] = (SAFETENSORS,)) -> tuple[str, ...]:
    names = (
        (place.relative_to(folder) / name).as_posix()
        for place, files in visible_files(folder)
        for name in files
        if name.lower().endswith(suffixes)
    )
    return tuple(sorted(names, key=str.lower))


def read_file(path: Path, max_bytes: int = MAX_BYTES, *, start: int = 0) -> bytes:
    """Read a regular file from byte `start` on, without waiting for a pipe or a device, or raise OSError."""
    with open(path, "rb", opener=open_at_once) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            error_number = errno.EISDIR if stat.S_ISDIR(status.st_mode) else errno.EINVAL
            raise OSError(error_number, "it is not a regular file", str(path))
        if status.st_size - start > max_bytes:
            raise OSError(errno.EFBIG, f"it is larger than {max_bytes} bytes", str(path))
        file.seek(start)
        return file.read(max_bytes)


def open_at_once(path: str | Path, flags: int, mode: int = 0o666) -> int:
    """Open a file without waiting for the other end of a pipe; see `os.open`."""
    return os.open(path, flags | os.O_NONBLOCK, mode)


def json_line(facts: Mapping[str, Any]) -> bytes:
    """Write a line of JSON that `plain_json` reads. Texts lose what cannot be written as UTF-8."""
    encodable = {
        name: value.encode("utf-8", "replace").decode() if isinstance(value, str) else value
        for name, value in facts.items()
    }
    return json.dumps(encodable, allow_nan=False).encode() + b"\n"


def set_aside(path: Path) -> None:
    damaged_path = path.with_name(f"{path.name}.damaged-{time.time_ns()}")
    _log.warning("%s is damaged; it is kept as %s.", path, damaged_path.name)
    path.rename(damaged_path)


@contextmanager
def replacing(path: Path) -> Generator[Path]:
    """Yield a temporary path whose file replaces `path` if the block ends without an exception."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_atomic(path: Path, data: bytes) -> None:
    with replacing(path) as temporary:
        temporary.write_bytes(data)


def link_or_copy(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def sha256_of(pieces: Iterable[bytes | memoryview]) -> str:
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def has_checksum(path: Path, checksum: str) -> bool:
    """Check a file's checksum, which is of the kind that the hub gives: SHA-256 or git's."""
    if len(checksum) == _SHA256_LENGTH:
        return file_sha256(path) == checksum
    data = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest() == checksum


def file_signature(file: Path) -> tuple[Path, int, int]:
    facts = file.stat()
    return file, facts.st_mtime_ns, facts.st_size
