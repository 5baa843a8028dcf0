"""Functions that read files of unknown content, write files atomically, and compute checksums."""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import secrets
import shutil
import stat
import time
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from diffusers_helper.errors import InputError

_log = logging.getLogger(__name__)
MOST_BYTES = 64 * 2**20
_SHA256_LETTERS = 64


def given_path(path: str | Path, setting: str) -> Path:
    """Return the path that the user gave for a setting, with `~` expanded.

    Raises:
        InputError: If there is no such home folder, or the name is not UTF-8, which JSON and messages need.
    """
    try:
        str(path).encode()
        return Path(path).expanduser()
    except (RuntimeError, UnicodeEncodeError) as error:
        raise InputError(
            setting=setting, value=str(path), remedy="Write the whole path, or rename it.",
            expected="a name in UTF-8, with ~ only for a user with a home folder",
        ) from error  # fmt: skip


def named_folder(environ: Mapping[str, str], variable: str, usual: str) -> Path:
    """Return the folder that a variable names, or the usual one in the current folder. It need not exist."""
    return given_path(environ.get(variable) or usual, variable).absolute()


def read_file(path: Path, most_bytes: int = MOST_BYTES, *, start: int = 0) -> bytes:
    """Return the content of a regular file from byte `start` on, without waiting for a pipe or a device.

    Raises:
        OSError: If there is no regular file, if it cannot be read, or if more than `most_bytes` are left.
    """
    with open(path, "rb", opener=open_at_once) as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            number = errno.EISDIR if stat.S_ISDIR(found.st_mode) else errno.EINVAL
            raise OSError(number, "it is not a regular file", str(path))
        if found.st_size - start > most_bytes:
            raise OSError(errno.EFBIG, f"it is larger than {most_bytes} bytes", str(path))
        file.seek(start)
        return file.read(most_bytes)


def open_at_once(path: str | Path, flags: int, mode: int = 0o666) -> int:
    """Return the descriptor of a file, without waiting for the other end of a pipe; see `os.open`."""
    return os.open(path, flags | os.O_NONBLOCK, mode)


def json_line(facts: Mapping[str, Any]) -> bytes:
    """Return a line of JSON that `plain_json` reads. Texts lose what cannot be written as UTF-8."""
    plain = {
        name: value.encode("utf-8", "replace").decode() if isinstance(value, str) else value
        for name, value in facts.items()
    }
    return json.dumps(plain, allow_nan=False).encode() + b"\n"


def set_aside(path: Path) -> None:
    """Rename what is at a path to a name that says that it is damaged."""
    aside = path.with_name(f"{path.name}.damaged-{time.time_ns()}")
    _log.warning("%s is damaged; it is kept as %s.", path, aside.name)
    path.rename(aside)


def make_way(path: Path) -> None:
    """Set aside what is at the path of a file and is something else."""
    if os.path.lexists(path) and not path.is_file():
        set_aside(path)


@contextmanager
def replacing(path: Path) -> Generator[Path]:
    """Yield a temporary path whose file replaces `path` if the block ends without an exception.

    Readers see the old file or the new one, and never a part, even after a crash.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        make_way(path)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_atomic(path: Path, data: bytes) -> None:
    """Write a file atomically; see `replacing`."""
    with replacing(path) as temporary:
        temporary.write_bytes(data)


def link_or_copy(source: Path, target: Path) -> None:
    """Give a file a second name, or copy it on a file system without hard links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def sha256_of(parts: Iterable[bytes | memoryview]) -> str:
    """Return the SHA-256 checksum of the concatenated parts, in hexadecimal."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def file_sum(path: Path) -> str:
    """Return the SHA-256 checksum of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync_folder(folder: Path) -> None:
    """Write a folder's list of names to the disk with fsync; that of a file covers only its content."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def has_checksum(path: Path, checksum: str) -> bool:
    """Return whether a file has this checksum, which is of the kind that the hub gives: SHA-256 or git's."""
    if len(checksum) == _SHA256_LETTERS:
        return file_sum(path) == checksum
    data = path.read_bytes()
    digest = hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False)
    return digest.hexdigest() == checksum


def sign_of(file: Path) -> tuple[Path, int, int]:
    """Return what changes with a file's content: its path, the time of its last change, and its size.

    Raises:
        OSError: If it is not there.
    """
    facts = file.stat()
    return file, facts.st_mtime_ns, facts.st_size
