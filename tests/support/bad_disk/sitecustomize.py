"""A disk that is full or records its syncs, simulated in programs by their PYTHONPATH.

BAD_DISK_FULL names a file of two lines, which are a part of a path and a number. For paths with that part,
opening a file for writing, or moving one there, fails as on a full disk, that number of times. Each failure
adds a byte to a file beside it, whose name ends with `.failed`.

BAD_DISK_RECORD names a folder on the same file system. At each sync it receives a file's content as
`contents/INODE`, or a folder's names as `names/INODE.json`. A link to each file, `links/INODE`, keeps other
files from getting the same inode. Files outside the folder BAD_DISK_ROOT are not recorded.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import shutil
import stat
import sys
from pathlib import Path
from typing import Any


def record(descriptor: int, root: Path, folder: Path) -> None:
    """Record the present content of an open file, or the names in an open folder."""
    opened = Path(f"/proc/self/fd/{descriptor}")
    path, found = opened.readlink(), os.fstat(descriptor)
    if not path.is_relative_to(root):
        return
    temporary = folder / secrets.token_hex(8)
    if stat.S_ISDIR(found.st_mode):
        with os.scandir(opened) as entries:
            names = {one.name: [one.inode(), one.is_dir()] for one in entries}
        temporary.write_text(json.dumps(names))
        temporary.replace(folder / "names" / f"{found.st_ino}.json")
        return
    with contextlib.suppress(FileExistsError, FileNotFoundError):  # recorded before, or deleted since
        os.link(path, folder / "links" / str(found.st_ino))
    shutil.copyfile(opened, temporary)
    temporary.replace(folder / "contents" / str(found.st_ino))


def _record_all_syncs(root: Path, folder: Path) -> None:
    sync = os.fsync

    def fsync(descriptor: int) -> None:
        sync(descriptor)
        record(descriptor, root, folder)

    os.fsync = fsync


def _fail_as_full(control: Path) -> None:
    failed = control.with_name(f"{control.name}.failed")

    def fail(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, mode, flags = arguments
            if not (set(mode or "") & set("wax+") or flags & (os.O_WRONLY | os.O_RDWR)):
                return
        elif event == "os.rename":
            path = arguments[1]
        else:
            return
        if not isinstance(path, str) or path == str(failed):
            return
        part, times = control.read_text().splitlines()
        if part in path and (failed.stat().st_size if failed.exists() else 0) < int(times):
            with failed.open("ab") as file:
                file.write(b"x")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    sys.addaudithook(fail)


if "BAD_DISK_FULL" in os.environ:
    _fail_as_full(Path(os.environ["BAD_DISK_FULL"]))
if "BAD_DISK_RECORD" in os.environ:
    _record_all_syncs(Path(os.environ["BAD_DISK_ROOT"]), Path(os.environ["BAD_DISK_RECORD"]))
