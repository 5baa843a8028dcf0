"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from diffusers_helper.errors import InputError


def given_path(path: str | Path, setting: str) -> Path:
    """Return a path that a person gave, with `~` replaced by the home folder it stands for.

    Args:
        path: The path.
        setting: What it was given as.

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


def write_atomic(path: Path, data: bytes) -> None:
    """Writes a file so that a reader, or a crash, sees the old content or the new one, never a part."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
