"""Files that appear whole or not at all, and checksums."""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path

from diffusers_helper.errors import InputError


def given_path(path: str | Path, setting: str) -> Path:
    """Return a path that a person gave for a setting, with `~` replaced by the home folder it stands for.

    Raises:
        InputError: If there is no such home folder, or for a name that is not UTF-8 and so cannot be told.
    """
    try:
        str(path).encode()
        return Path(path).expanduser()
    except RuntimeError as error:
        raise InputError(
            setting=setting, value=str(path), expected="a home folder that exists after the ~",
            remedy="Write the whole path.",
        ) from error  # fmt: skip
    except UnicodeEncodeError as error:
        raise InputError(
            setting=setting, value=str(path), expected="a name in UTF-8",
            remedy="Rename it, or choose another one.",
        ) from error  # fmt: skip


@contextmanager
def replacing(path: Path) -> Generator[Path]:
    """Give a temporary path that takes the place of `path` when the block ends well.

    A reader, or a crash, sees the old file or the new one, never a part.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_atomic(path: Path, data: bytes) -> None:
    """Write a file as `replacing` does."""
    with replacing(path) as temporary:
        temporary.write_bytes(data)


def sha256_of(parts: Iterable[bytes]) -> str:
    """Return the SHA-256 sum of some bytes, in hexadecimal."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def file_sum(path: Path) -> str:
    """Return the SHA-256 sum of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync_folder(folder: Path) -> None:
    """Make sure that the names in a folder, and not only the files' contents, are on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
